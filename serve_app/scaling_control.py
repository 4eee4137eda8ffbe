"""Autoscaling in Serve's controller: keeps what the policy knows, tells the log what it decided.

Serve pickles the policy's module by value, so state lives here, in an importable one. Everything
runs on the controller's event loop, ten times a second: nothing here waits for anything. Knows no
type of Ray's.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from controllers.autoscaling import Observation, Verdict
from controllers.autoscaling_fleet import fleet_of
from controllers.autoscaling_record import record_of
from controllers.autoscaling_report import ReplicaReport, report_of, settings_of
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import BusError
from controllers.record_codec import encode
from controllers.scaled_fleet import ScaledFleet
from infra.event_bus_base import Producer, Topics

logger = logging.getLogger(__name__)


class Figures(NamedTuple):
    """A replica's newest figures, and the replica's own time of them."""

    values: Mapping[str, float]
    timestamp: float


class Tick(NamedTuple):
    """What Serve says at one tick of its control loop. `figures` by replica id."""

    deployment: str
    target: int
    running: Collection[str]
    figures: Callable[[], Mapping[str, Figures]]  # asked for only when a decision is due
    num_in_routers: Callable[[], float]
    min_replicas: int
    max_replicas: int


class ScalingControl:
    """One deployment's autoscaling. `settings` arrive with the figures; until then nothing is
    decided."""

    def __init__(
        self,
        producer: Producer,
        topics: Topics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._clock = clock
        self._fleet = ScaledFleet()
        self._settings: AutoscalingSettings | None = None
        self._reports: dict[str, ReplicaReport] = {}
        self._fresh: dict[str, tuple[float, float]] = {}  # replica -> its timestamp, first seen at
        self._decided_at = float("-inf")
        self._recorded_at = float("-inf")
        self._last_verdict: tuple[int, str] | None = None
        self._told: int | None = None  # the target that Serve was given last
        self.num_dropped = 0  # records that the bus had no room for
        self._num_lost = 0  # those, and others that it never got; as last told

    def target(self, tick: Tick) -> int:
        """How many replicas Serve shall run now."""
        now = self._clock()
        interval_s = (self._settings or AutoscalingSettings()).interval_s
        if now - self._decided_at < interval_s:
            return tick.target
        self._decided_at = now
        self._take_figures(tick, now)
        if self._settings is None:
            return tick.target
        seen = self._observation(tick)
        if self._told is not None and self._told != seen.target:
            self._note_others_decision(tick, seen._replace(target=self._told), now)
        self._told, verdict = self._fleet.decide(seen, self._settings, now)
        self._record(tick, seen, verdict, now)
        return self._told

    def victims(self, running: Collection[str], num: int) -> list[str] | None:
        """Replica ids to remove; None to leave it to Serve."""
        return self._fleet.victims(running, num)

    def close(self) -> None:
        self._producer.close(0.0)

    def _observation(self, tick: Tick) -> Observation:
        num_in_routers = tick.num_in_routers()
        is_possible = math.isfinite(num_in_routers) and num_in_routers >= 0
        return Observation(
            target=tick.target,
            num_running=len(tick.running),
            reports=self._reports,
            num_in_routers=num_in_routers if is_possible else 0.0,
            min_replicas=tick.min_replicas,
            max_replicas=tick.max_replicas,
        )

    def _take_figures(self, tick: Tick, now: float) -> None:
        """A replica is known if its figures are possible and have changed lately. Ages are of our
        own clock: that of another machine may be wrong."""
        figures = tick.figures()
        self._fresh = {name: seen for name, seen in self._fresh.items() if name in figures}
        for name, (_, timestamp) in figures.items():
            if self._fresh.get(name, (None,))[0] != timestamp:
                self._fresh[name] = (timestamp, now)
        if self._fresh:  # they agree, but for moments after a change
            newest = max(self._fresh, key=lambda name: self._fresh[name][1])
            self._settings = settings_of(figures[newest].values) or self._settings
        stale_after_s = (self._settings or AutoscalingSettings()).stale_after_s
        self._reports = {}
        for name, (_, seen_at) in self._fresh.items():
            report = report_of(figures[name].values) if now - seen_at <= stale_after_s else None
            if report is not None:
                self._reports[name] = report

    def _note_others_decision(self, tick: Tick, before: Observation, now: float) -> None:
        """Serve starts the first replica after none; a deployment may set another number."""
        action = "up" if tick.target > before.target else "down"
        load = fleet_of(before.reports.values(), before.num_in_routers)
        self._record(tick, before, Verdict(tick.target, action, "set by Ray Serve", load, 1.0), now)

    def _record(self, tick: Tick, seen: Observation, verdict: Verdict, now: float) -> None:
        """Every change of what is decided, and in between now and then that nothing changed."""
        assert self._settings is not None
        said = (verdict.target, verdict.action)
        has_changed = verdict.action != "hold" and said != self._last_verdict
        if not has_changed and now - self._recorded_at < self._settings.record_interval_s:
            return
        self._recorded_at, self._last_verdict = now, said
        ts_ms = time.time_ns() // 1_000_000
        record = record_of(verdict, seen, self._settings, tick.deployment, ts_ms)
        if verdict.action != "hold":
            logger.info("%s: %s", tick.deployment, record)
        try:
            accepted = self._producer.publish(
                self._topics.scaling, tick.deployment.encode(), encode(record)
            )
        except BusError as error:
            logger.warning("scaling record: %s", error)
            accepted = False
        self.num_dropped += not accepted
        self._tell_losses()

    def _tell_losses(self) -> None:
        num_lost = self.num_dropped + self._producer.health().num_failed
        if num_lost > self._num_lost:
            logger.warning("%d scaling records did not reach the bus", num_lost - self._num_lost)
        self._num_lost = num_lost


_controls: dict[str, ScalingControl] = {}


def replace(deployment: str, control: ScalingControl) -> None:
    """Serve made the deployment's policy anew; the one before is closed."""
    before = _controls.pop(deployment, None)
    if before is not None:  # closing waits for the bus; the control loop must not
        threading.Thread(target=before.close, daemon=True).start()
    _controls[deployment] = control


def find(deployment: str) -> ScalingControl | None:
    return _controls.get(deployment)
