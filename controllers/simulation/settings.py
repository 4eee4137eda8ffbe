"""What a simulated fleet is like. Who routes in it is `routers`'s."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from controllers.admission import AdmissionSettings
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import SettingsError
from controllers.fair_queue import Bounds
from controllers.gate import GATHER_S
from controllers.placement_types import PlacementSettings
from controllers.rate_limits import TenantLimits
from controllers.retention import RetentionPolicy
from controllers.service_tiers import TierPolicy
from controllers.simulation.timing import DYNAMO_MOCKER, TimingCurve


class Outage(msgspec.Struct, frozen=True):
    """A worker is gone from `at_s` on, with its cache; `back_s` inf: for ever."""

    worker: int
    at_s: float
    back_s: float = math.inf


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`shares_bookings`: routers of ours tell each other what they send. `gather_s`: of
    workers' gates, with several routers.

    `hand_back_s`: until its router has a request again that a gate hands back, and it is on its
    way to another one.

    `autoscaling` None: `num_workers`, all the time. Else there are as many as its policy says, from
    its fewest on, and a new one takes `start_s` to start.

    `retention` None: requests say nothing of what to keep, so the caches are plain LRU.

    `admission` None: nobody is refused for others, and gates take everybody. Else the bounds of
    routers and gates and the tenants' limits hold, as in production; for routers of ours alone.
    `max_kept_share`: of a gate, see `places`.

    `slowness` and `blocks_of` are by worker index; others are as `num_blocks` says, at speed 1.
    """

    num_workers: int = 8
    num_blocks: int = 65_536
    num_host_blocks: int = 0
    speedup: float = 1.0
    jitter: float = 0.01
    seed: int = 0
    num_routers: int = 1
    booking_lag_s: float = 0.02
    shares_bookings: bool = True
    gather_s: float = GATHER_S
    hand_back_s: float = 0.002
    max_batched_tokens: int = 8192
    max_sequences: int = 256
    event_lag_s: float = 0.0
    event_loss: float = 0.0
    load_interval_s: float = 0.5
    slowness: dict[int, float] = {}
    blocks_of: dict[int, int] = {}
    outages: tuple[Outage, ...] = ()
    autoscaling: AutoscalingSettings | None = None
    start_s: float = 60.0
    curve: TimingCurve = DYNAMO_MOCKER
    routing: PlacementSettings = PlacementSettings()
    retention: RetentionPolicy | None = None
    tiers: TierPolicy = TierPolicy()
    tenants: dict[str, TenantLimits] = {}
    admission: AdmissionSettings | None = None
    gate_bounds: Bounds = Bounds(1000)
    max_kept_share: float = 0.5

    @property
    def reference_blocks(self) -> int:
        """What the timing curve's share of blocks is a share of: those of the largest worker."""
        return max(self.num_blocks, *self.blocks_of.values(), 0)

    def check(self, names: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raises SettingsError that names the field, or what `names` calls it."""
        for name in (
            "num_workers", "num_blocks", "speedup", "num_routers", "max_batched_tokens",
            "max_sequences", "load_interval_s",
        ):  # fmt: skip
            _require(names.get(name, name), getattr(self, name), 0.0, is_open=True)
        for name in (
            "num_host_blocks",
            "event_lag_s",
            "booking_lag_s",
            "gather_s",
            "hand_back_s",
            "seed",
            "start_s",
        ):
            _require(names.get(name, name), getattr(self, name), 0.0)
        for name in ("event_loss", "jitter"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise SettingsError(
                    f"{names.get(name, name)} is {value}, must be 0 or more and below 1"
                )
        if not 0.0 <= self.max_kept_share <= 1.0:
            raise SettingsError(f"max_kept_share is {self.max_kept_share}, must be in 0 ... 1")
        if self.max_batched_tokens <= self.max_sequences:
            batched, sequences = (
                names.get(name, name) for name in ("max_batched_tokens", "max_sequences")
            )
            raise SettingsError(
                f"{batched} is {self.max_batched_tokens}: an iteration in which "
                f"{sequences} {self.max_sequences} decode leaves no token for a prompt"
            )
        self._check_workers(names)
        self._check_outages(names.get("outages", "outages"))

    def _check_workers(self, names: Mapping[str, str]) -> None:
        """Workers that come later may be named as well."""
        if self.autoscaling is not None:
            self.autoscaling.check()
        num_workers = self.num_workers if self.autoscaling is None else math.inf
        named: dict[str, Iterable[int]] = {
            "slowness": self.slowness,
            "blocks_of": self.blocks_of,
            "outages": [outage.worker for outage in self.outages],
        }
        for field, workers in named.items():
            for worker in sorted(workers):
                if not 0 <= worker < num_workers:
                    raise SettingsError(
                        f"{names.get(field, field)}: worker {worker} is none of "
                        f"0 ... {self.num_workers - 1}"
                    )
        by_worker: dict[str, Mapping[int, float]] = {
            "slowness": self.slowness,
            "blocks_of": self.blocks_of,
        }
        for field, values in by_worker.items():
            for worker, value in values.items():
                name = f"{names.get(field, field)} of worker {worker}"
                _require(name, value, 0.0, is_open=True)

    def _check_outages(self, name: str) -> None:
        for outage in self.outages:
            _require(f"{name}: at_s", outage.at_s, 0.0)
            if not outage.back_s > outage.at_s:
                raise SettingsError(f"{name}: back_s is {outage.back_s}, not after {outage.at_s}")
            if self.autoscaling is not None and math.isfinite(outage.back_s):
                raise SettingsError(
                    f"{name}: back_s is {outage.back_s}: with autoscaling a dead worker is "
                    "replaced by another one and does not come back"
                )
        ordered = sorted(self.outages, key=lambda outage: (outage.worker, outage.at_s))
        for first, then in itertools.pairwise(ordered):
            if first.worker == then.worker and then.at_s <= first.back_s:
                until = f"to {first.back_s:g} s" if math.isfinite(first.back_s) else "on"
                raise SettingsError(
                    f"{name}: worker {then.worker} is to die at {then.at_s:g} s, but is gone from "
                    f"{first.at_s:g} s {until} already"
                )


def _require(name: str, value: float, least: float, is_open: bool = False) -> None:
    if not math.isfinite(value) or value < least or (is_open and value == least):
        raise SettingsError(
            f"{name} is {value}, must be a number {'above 0' if is_open else 'from 0 on'}"
        )
