"""Records of every topic, and every event."""

from __future__ import annotations

import msgspec

from controllers.events import (
    Cleared,
    Event,
    EventBatch,
    Iteration,
    Load,
    Lost,
    Removed,
    Snapshot,
    SnapshotBlocks,
    Stored,
    Updated,
    WorkerDown,
    WorkerUp,
    hexes_of,
)
from controllers.records import Booking, BookingBatch, Decision, PrefixUse, ScalingDecision

H = hexes_of([1, 2])

EVERY_EVENT: list[Event] = [
    WorkerUp(num_blocks={"gpu": 8}, executor="local", version="1", salt_id="s", max_seq_len=64),
    Stored(parent=None, hashes=H, num_tokens=[4, 2], retention_priority=[100, 80], tier="chat"),
    Stored(
        parent=H[0],
        hashes=H[1:],
        num_tokens=[4],
        retention_priority=[0],
        medium="host",
        tenant="acme",
    ),
    Removed(hashes=H),
    Updated(hashes=H, medium="host", old_medium="gpu"),
    Updated(hashes=H, retention_priority=10, old_retention_priority=35),
    Cleared(),
    Snapshot(
        snapshot_id=1,
        part=0,
        num_parts=1,
        blocks=SnapshotBlocks(
            hashes=H,
            parents=["", H[0]],
            mediums=["gpu", "host"],
            retention_priority=[100, 35],
            tiers=["chat", "chat"],
            num_tokens=[4, 4],
        ),
        num_blocks={"gpu": 8},
        max_seq_len=64,
        salt_id="s",
    ),
    Load(
        num_active=1,
        num_queued=0,
        queued_prefill_tokens=10,
        decode_tokens=20,
        used_blocks={"gpu": 2},
        total_blocks={"gpu": 8},
        iterations=[Iteration(512, 2, 30, 12.5, 3)],
    ),
    Lost(reason="buffer full", first=1, last=4),
    WorkerDown(reason="stopped"),
]

RECORDS: dict[str, list[msgspec.Struct]] = {
    "kv-events": [
        EventBatch(
            schema=1,
            worker="r-0",
            replica="r",
            dp_rank=0,
            model="m",
            epoch=1,
            seq=i,
            ts_ms=2,
            block_size=4,
            events=[event],
        )
        for i, event in enumerate(EVERY_EVENT)
    ],
    "decisions": [
        Decision(
            schema=1,
            ts_ms=1,
            request_id="q",
            model="m",
            request_type="interactive",
            tenant="default",
            worker="r-0",
            reason="overlap",
            num_candidates=2,
            prompt_tokens=100,
            prompt_blocks=3,
            predicted_cached_tokens=96,
            best_cached_tokens=96,
            cached_tokens=96,
            predicted_ttft_ms=4.5,
            ttft_ms=None,
            queue_ms=None,
            total_ms=10.0,
            output_tokens=0,
            num_attempts=1,
            status="cancelled",
        )
    ],
    "scaling": [
        ScalingDecision(
            schema=1, ts_ms=1, deployment="Executor", num_replicas=1, target_replicas=2, reason="r"
        )
    ],
    "bookings": [
        BookingBatch(
            schema=1,
            ts_ms=1,
            router="i",
            seq=0,
            num_open=1,
            bookings=[
                Booking(
                    request_id="q",
                    worker="r-0",
                    state="sent",
                    prefill_tokens=4,
                    num_blocks=3,
                    rank=1,
                    service_ms=2.5,
                )
            ],
            part=1,
            num_parts=2,
        ),
        BookingBatch(schema=1, ts_ms=1, router="i", seq=1, num_open=0, bookings=[]),
    ],
    "uses": [
        PrefixUse(
            schema=1,
            ts_ms=1,
            router="i",
            seq=0,
            request_id="q",
            state="sent",
            worker="r-0",
            request_type="agent",
            tenant="t",
            num_tokens=9,
            block_size=4,
            hashes="".join(H),
        ),
        PrefixUse(
            schema=1,
            ts_ms=2,
            router="i",
            seq=1,
            request_id="q",
            state="done",
            worker="r-0",
            num_cached_blocks=2,
        ),
    ],
}
