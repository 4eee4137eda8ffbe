"""A replica's meter and the watches over its caches, as one report."""

from __future__ import annotations

from controllers.events import Event, Load, Removed, Stored, hexes_of
from controllers.replica_meter import TierTarget
from controllers.replica_stats import ReplicaShape, ReplicaStats
from controllers.retention import Retention, TokenRange

SHAPE = ReplicaShape(
    max_batched_tokens=8192,
    max_running=64,
    num_blocks=1000,
    block_size=32,
    tokens_of_hash=512,
    num_ranks=2,
)
KEPT = Retention(ranges=(TokenRange(0, None, 80, 300.0),))


def stored(*hashes: int) -> Stored:
    num = len(hashes)
    return Stored(
        parent=None, hashes=hexes_of(hashes), num_tokens=[512] * num, retention_priority=[80] * num
    )


def test_a_report_has_the_shape_and_what_all_ranks_hold() -> None:
    stats = ReplicaStats(SHAPE, 0.0)
    stats.on_events(0, [stored(*range(0, 2**64, 2**54))], 1.0)
    stats.on_events(1, [stored(3)], 1.0)
    report = stats.report(3, 2.0)
    assert (report.max_running, report.block_size) == (128, 32)
    assert report.content_tokens == 512 * 820.0  # 1,025 hashes at 80 of 100
    assert report.sample == stats.watches[0].sample()
    assert report.sample != stats.watches[1].sample()
    assert (report.uptime_s, report.num_waiting, report.tiers) == (2.0, 3, {})


def test_what_is_stored_again_while_it_is_wanted_is_pressure() -> None:
    stats = ReplicaStats(SHAPE, 0.0)
    events: list[Event] = [stored(1, 2), Removed(hashes=hexes_of([1, 2])), stored(1)]
    stats.on_events(1, events, 100.0)
    assert stats.report(0, 100.0).reasked_tokens_per_s == 0.0  # nobody asked to keep it
    stats.watches[1].on_request(KEPT)
    stats.on_events(1, events, 100.0)
    assert stats.report(0, 100.0).reasked_tokens_per_s > 0.0
    assert stats.report(0, 1000.0).reasked_tokens_per_s == 0.0


def test_requests_and_loads_are_the_meters() -> None:
    stats = ReplicaStats(SHAPE, 0.0)
    stats.meter.arrived("a", TierTarget("interactive", 0), 4096, 50.0)
    load = Load(
        num_active=2,
        num_queued=1,
        queued_prefill_tokens=0,
        decode_tokens=0,
        used_blocks={"gpu": 10},
        total_blocks={"gpu": 1000},
    )
    stats.meter.on_load(0, load, 50.0)
    report = stats.report(1, 51.0)
    assert (report.num_active, report.num_waiting, report.used_blocks) == (2, 2, 10)
    assert report.tiers["interactive"].backlog_ms > 0.0
