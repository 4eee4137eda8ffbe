"""What a simulated fleet is like. Who routes in it is `routers`'s."""

from __future__ import annotations

import math

import msgspec

from controllers.errors import SettingsError
from controllers.gate import GATHER_S
from controllers.placement_types import PlacementSettings
from controllers.retention import RetentionPolicy
from controllers.simulation.timing import DYNAMO_MOCKER, TimingCurve


class Outage(msgspec.Struct, frozen=True):
    """A worker is gone from `at_s` on, with its cache; `back_s` inf: for ever."""

    worker: int
    at_s: float
    back_s: float = math.inf


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`shares_bookings`: routers of ours tell each other what they send. `gather_s`: of
    workers' gates, with several routers.

    `retention` None: requests say nothing of what to keep, so the caches are plain LRU.

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
    max_batched_tokens: int = 8192
    max_sequences: int = 256
    event_lag_s: float = 0.0
    event_loss: float = 0.0
    load_interval_s: float = 0.5
    slowness: dict[int, float] = {}
    blocks_of: dict[int, int] = {}
    outages: tuple[Outage, ...] = ()
    curve: TimingCurve = DYNAMO_MOCKER
    routing: PlacementSettings = PlacementSettings()
    retention: RetentionPolicy | None = None

    def check(self) -> None:
        """Raises SettingsError that names the field."""
        for name in (
            "num_workers", "num_blocks", "speedup", "num_routers", "max_batched_tokens",
            "max_sequences", "load_interval_s",
        ):  # fmt: skip
            _require(name, getattr(self, name), 0.0, is_open=True)
        for name in ("num_host_blocks", "event_lag_s", "booking_lag_s", "gather_s", "seed"):
            _require(name, getattr(self, name), 0.0)
        for name in ("event_loss", "jitter"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise SettingsError(f"{name} is {value}, must be 0 or more and below 1")
        if self.max_batched_tokens <= self.max_sequences:
            raise SettingsError(
                f"max_batched_tokens is {self.max_batched_tokens}: an iteration in which "
                f"max_sequences {self.max_sequences} decode leaves no token for a prompt"
            )
        self._check_workers()

    def _check_workers(self) -> None:
        for outage in self.outages:
            _require("outages at_s", outage.at_s, 0.0)
            if not outage.back_s > outage.at_s:
                raise SettingsError(f"outages back_s is {outage.back_s}, not after {outage.at_s}")
        named = {*self.slowness, *self.blocks_of, *(outage.worker for outage in self.outages)}
        for worker in sorted(named):
            if not 0 <= worker < self.num_workers:
                raise SettingsError(f"worker {worker} is none of 0 ... {self.num_workers - 1}")
        for num_blocks in self.blocks_of.values():
            _require("blocks_of", num_blocks, 0.0, is_open=True)
        for slowness in self.slowness.values():
            _require("slowness", slowness, 0.0, is_open=True)


def _require(name: str, value: float, least: float, is_open: bool = False) -> None:
    if not math.isfinite(value) or value < least or (is_open and value == least):
        raise SettingsError(
            f"{name} is {value}, must be a number {'above 0' if is_open else 'from 0 on'}"
        )
