"""The autoscaling policy as Ray Serve's controller calls it. The only reader of Serve's context.

Serve pickles this module by value, so it holds no state: `serve_app.scaling_control` does. Private
parts of Serve that are touched: its choice of replicas to stop, in `serve_app.victim_choice`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

from infra.event_bus import KafkaBus
from infra.event_bus_base import Topics
from infra.event_producer import ProducerLimits
from infra.settings import with_environment
from serve_app import scaling_control
from serve_app.scaling_control import Figures, ScalingControl, Tick
from serve_app.victim_choice import install

logger = logging.getLogger(__name__)

# Records wait here while the bus is away; more of them are dropped and counted.
MAX_PENDING_RECORDS = 1000
COMPLAIN_INTERVAL_S = 30.0


class ScalingPolicy:
    """Made once for each version of the deployment, called ten times a second."""

    def __init__(self, kafka: dict[str, Any]) -> None:
        """`kafka` is that section without secrets; those come from this process's environment."""
        self._kafka = with_environment({"kafka": kafka}).kafka
        self._control: ScalingControl | None = None
        self._complained_at = float("-inf")
        install(choose_victims)

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """Never raises: one error here would stop Serve's loop over all deployments."""
        try:
            if self._control is None:
                self._control = self._open(str(ctx.deployment_id))
            return self._control.target(tick_of(ctx)), {}
        except Exception:
            if time.monotonic() - self._complained_at > COMPLAIN_INTERVAL_S:
                self._complained_at = time.monotonic()
                logger.exception("autoscaling of %s holds still", ctx.deployment_name)
            return ctx.target_num_replicas, {}

    def _open(self, deployment: str) -> ScalingControl:
        """The producer connects in a thread of its own."""
        bus = KafkaBus(self._kafka, ProducerLimits(max_pending=MAX_PENDING_RECORDS))
        control = ScalingControl(bus.producer(), Topics(self._kafka.topic_prefix))
        scaling_control.replace(deployment, control)
        return control


def choose_victims(deployment: str, running: Collection[str], num: int) -> list[str] | None:
    control = scaling_control.find(deployment)
    return None if control is None else control.victims(running, num)


def tick_of(ctx: Any) -> Tick:
    """What the context says, in our own words."""
    return Tick(
        deployment=ctx.deployment_name,
        target=ctx.target_num_replicas,
        running=[replica.unique_id for replica in ctx.running_replicas],
        figures=lambda: newest_figures(ctx.raw_metrics or {}),
        num_in_routers=lambda: float(ctx.total_queued_requests or 0.0),
        min_replicas=ctx.capacity_adjusted_min_replicas,
        max_replicas=ctx.capacity_adjusted_max_replicas,
    )


def newest_figures(metrics: Mapping[str, Mapping[Any, Any]]) -> dict[str, Figures]:
    """Metric -> replica -> series, turned round. Only points of a replica's newest report count: a
    figure that it no longer gives stays in its series for a while."""
    found: dict[str, dict[str, Any]] = {}
    for name, by_replica in metrics.items():
        for replica, series in by_replica.items():
            if series:
                found.setdefault(replica.unique_id, {})[name] = series[-1]
    return {replica: _of_newest(points) for replica, points in found.items()}


def _of_newest(points: Mapping[str, Any]) -> Figures:
    newest = max(point.timestamp for point in points.values())
    values = {name: point.value for name, point in points.items() if point.timestamp == newest}
    return Figures(values, newest)
