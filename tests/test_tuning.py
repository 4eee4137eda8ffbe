from __future__ import annotations

import random

import msgspec

from controllers.errors import SettingsError
from controllers.events import (
    SCHEMA,
    Decision,
    Event,
    EventBatch,
    Snapshot,
    SnapshotBlocks,
    Stored,
    WorkerUp,
    hex_of,
    hexes_of,
)
from controllers.retention import RetentionPolicy, Spans
from controllers.retention_replay import Prompt
from controllers.tuning import LEARNED, LRU, PRESENT, TIERS, propose, tiers_of
from controllers.tuning_record import Record

B = 4
W = "r1:0"


def batch(*events: Event, worker: str = W) -> EventBatch:
    return EventBatch(
        schema=SCHEMA, worker=worker, replica="r1", dp_rank=0, model="m", epoch=1, seq=0, ts_ms=0,
        block_size=B, events=list(events),
    )  # fmt: skip


def stored(parent: int | None, *hashes: int) -> Stored:
    return Stored(
        parent=None if parent is None else hex_of(parent),
        hashes=hexes_of(hashes),
        num_tokens=[B] * len(hashes),
        retention_priority=[35] * len(hashes),
    )


def decision(last: int | None, num_blocks: int, ts_ms: int = 5000, worker: str = W) -> Decision:
    return Decision(
        schema=SCHEMA, ts_ms=ts_ms, request_id="q", model="m", request_type="agent", tenant="t",
        worker=worker, reason="overlap", num_candidates=1, prompt_tokens=num_blocks * B + 1,
        prompt_blocks=num_blocks, predicted_cached_tokens=0, best_cached_tokens=0, cached_tokens=0,
        predicted_ttft_ms=0.0, ttft_ms=1.0, queue_ms=0.0, total_ms=1000.0, output_tokens=1,
        num_attempts=1, status="ok", prompt_hash=None if last is None else hex_of(last),
        system_tokens=1, history_tokens=B,
    )  # fmt: skip


UP = WorkerUp(num_blocks={"gpu": 100}, executor="x", version="1", salt_id="s", max_seq_len=4096)


def test_a_decision_and_the_events_name_the_whole_prompt() -> None:
    record = Record()
    record.add_batch(batch(UP, stored(None, 1, 2), stored(2, 3)))
    record.add_decision(decision(3, 3))
    record.add_decision(decision(2, 2, ts_ms=4000))
    assert record.prompts() == {
        W: [
            Prompt(3.0, "agent", "t", [1, 2], Spans(1, B, 2 * B + 1)),
            Prompt(4.0, "agent", "t", [1, 2, 3], Spans(1, B, 3 * B + 1)),
        ]
    }
    assert (record.num_decisions, record.num_unknown, record.block_size) == (2, 0, B)


def test_a_snapshot_tells_of_what_was_stored_before() -> None:
    blocks = SnapshotBlocks(
        hashes=hexes_of([1, 2]),
        parents=["", hex_of(1)],
        mediums=["gpu"] * 2,
        retention_priority=[35] * 2,
        tiers=["default"] * 2,
        num_tokens=[B] * 2,
    )
    record = Record()
    record.add_batch(
        batch(
            Snapshot(
                snapshot_id=1, part=0, num_parts=1, blocks=blocks, num_blocks={"gpu": 50},
                max_seq_len=1, salt_id="s",
            )
        )
    )  # fmt: skip
    record.add_decision(decision(2, 2))
    assert [prompt.hashes for prompt in record.prompts()[W]] == [[1, 2]]
    assert record.num_blocks_of == {W: 50}


def test_what_cannot_be_known_is_counted_and_left_out() -> None:
    record = Record()
    record.add_batch(batch(UP, stored(7, 8), stored(None, 1, 2)))
    record.add_decision(decision(8, 2))  # its first block was stored before the record
    record.add_decision(decision(None, 0))  # no full block, or an older program
    record.add_decision(decision(2, 3))  # not what it says it is
    record.add_decision(decision(2, 2, worker="other"))  # of unknown size
    assert record.prompts() == {}
    assert record.num_unknown == 4


def mix(num: int, seed: int = 0) -> list[Prompt]:
    """Agents that come again after some 5 s, three times; batches that never do, in bulk."""
    rng = random.Random(seed)
    prompts = []
    for i in range(num):
        at_s = 10.0 * i
        for turn in range(4):
            hashes = range(1000 * i, 1000 * i + 4 + turn)
            spans = Spans(0, max(0, 3 + turn) * B if turn else 0, len(hashes) * B)
            prompts.append(Prompt(at_s, "agent", "t", hashes, spans))
            at_s += rng.uniform(4, 6)
        for k in range(8):
            hashes = range(1000 * i + 100 * (k + 1), 1000 * i + 100 * (k + 1) + 6)
            prompts.append(
                Prompt(10.0 * i + k, "interactive", "t", hashes, Spans(0, 0, len(hashes) * B))
            )
    return sorted(prompts, key=lambda each: each.at_s)


def test_proposed_tiers_are_lawful_and_rank_by_what_comes_again() -> None:
    tiers = tiers_of(mix(60), B, RetentionPolicy())
    tiers.check()
    agent, chat = tiers.request_types["agent"], tiers.request_types["interactive"]
    assert (agent.current.retention_priority or 0) > (chat.current.retention_priority or 0)
    assert 6.0 <= (agent.current.duration_s or 0.0) <= 60.0
    assert tiers.request_types["oneoff"] == RetentionPolicy().request_types["oneoff"]
    assert tiers.request_types["batch"] == RetentionPolicy().request_types["batch"]


def test_tiers_of_nothing_are_the_present_ones() -> None:
    assert tiers_of([], B, RetentionPolicy()) == RetentionPolicy()


def test_a_proposal_holds_on_what_it_was_not_made_from() -> None:
    proposal = propose({W: mix(120)}, {W: 30}, B, RetentionPolicy())
    rates = {judged.name: judged.hits.rate for judged in proposal.judged}
    assert set(rates) == {LRU, PRESENT, TIERS, LEARNED}
    assert rates[LRU] < rates[PRESENT]
    assert rates[TIERS] >= rates[PRESENT]
    assert rates[LEARNED] > rates[LRU]
    assert proposal.best.hits.rate == max(rates.values())
    assert proposal.num_fitted == proposal.num_judged == 720


def test_the_present_policy_stays_where_nothing_is_better() -> None:
    prompts = [Prompt(float(i), "agent", "t", [i], Spans(0, 0, B)) for i in range(200)]
    proposal = propose({W: prompts}, {W: 10}, B, RetentionPolicy())
    assert proposal.best.name == PRESENT


def test_every_proposal_can_be_written_as_settings() -> None:
    for judged in propose({W: mix(20)}, {W: 30}, B, RetentionPolicy()).judged:
        if judged.policy is None:
            continue
        plain = msgspec.to_builtins(judged.policy)
        again = msgspec.convert(plain, RetentionPolicy)
        try:
            again.check()
        except SettingsError as error:
            raise AssertionError(f"{judged.name}: {error}") from error
        assert again == judged.policy
