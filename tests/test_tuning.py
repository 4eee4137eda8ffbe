from __future__ import annotations

import random

import msgspec

from controllers.errors import SettingsError
from controllers.events import (
    SCHEMA,
    Event,
    EventBatch,
    Snapshot,
    SnapshotBlocks,
    Stored,
    WorkerUp,
    hex_of,
    hexes_of,
)
from controllers.records import Decision
from controllers.retention import RetentionPolicy, Spans
from controllers.retention_policy import SpanRule, TypeRule
from controllers.retention_replay import Prompt
from controllers.retention_worker import FIRST_PRICE
from controllers.tuning import LEARNED, LRU, PRESENT, TIERS, Judged, Proposal, propose
from controllers.tuning_record import Record
from controllers.tuning_tiers import fit, tiers_of

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
    assert record.measured_hit_rate == 0.0


def test_what_was_found_cached_is_measured() -> None:
    record = Record()
    record.add_batch(batch(UP, stored(None, 1, 2, 3)))
    record.add_decision(msgspec.structs.replace(decision(3, 3), cached_tokens=2 * B + 1))
    record.add_decision(msgspec.structs.replace(decision(2, 2), cached_tokens=B))
    record.add_decision(msgspec.structs.replace(decision(9, 2), cached_tokens=B))  # not known
    record.prompts()
    assert record.measured_hit_rate == 3 / 5


def test_what_had_no_first_token_says_nothing_of_hits() -> None:
    """Refused or cancelled while it waited: its cached tokens are written as 0."""
    record = Record()
    record.add_batch(batch(UP, stored(None, 1, 2, 3)))
    record.add_decision(msgspec.structs.replace(decision(3, 3), cached_tokens=2 * B))
    record.add_decision(msgspec.structs.replace(decision(3, 3), ttft_ms=None, status="cancelled"))
    assert [len(each) for each in record.prompts().values()] == [1]
    assert (record.num_decisions, record.num_known, record.num_unserved) == (2, 1, 1)
    assert record.measured_hit_rate == 2 / 3


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
    tiers = tiers_for(mix(60), RetentionPolicy())
    tiers.check()
    agent, chat = tiers.request_types["agent"], tiers.request_types["interactive"]
    assert (agent.current.retention_priority or 0) > (chat.current.retention_priority or 0)
    assert 6.0 <= (agent.current.duration_s or 0.0) <= 60.0
    assert tiers.request_types["oneoff"] == RetentionPolicy().request_types["oneoff"]
    assert tiers.request_types["batch"] == RetentionPolicy().request_types["batch"]


def tiers_for(
    prompts: list[Prompt], present: RetentionPolicy, price: float = FIRST_PRICE
) -> RetentionPolicy:
    return tiers_of(fit(prompts, B), {prompt.request_type for prompt in prompts}, present, price)


def test_tiers_of_nothing_are_the_present_ones() -> None:
    assert tiers_for([], RetentionPolicy()) == RetentionPolicy()


def test_what_is_not_worth_the_price_is_not_promised() -> None:
    prompts = mix(60)
    cheap, dear, dearest = (
        tiers_for(prompts, RetentionPolicy(), price).request_types["agent"].current
        for price in (1e-6, 0.02, 10.0)
    )
    assert (cheap.retention_priority or 0) == (dear.retention_priority or 0) > 35
    assert (cheap.duration_s or 0.0) > (dear.duration_s or 0.0)
    assert dearest == SpanRule(0)


def test_a_type_that_comes_again_may_keep_system_prompts_too() -> None:
    """Else nothing behind them could be kept better than a new block."""
    alone = RetentionPolicy(
        request_types={"agent": TypeRule(history=SpanRule(20), current=SpanRule(20))}
    )
    tiers = tiers_for(mix(60), alone)
    tiers.check()
    assert tiers.request_types["agent"].system == alone.shared == SpanRule(100)
    assert (tiers.request_types["agent"].history.retention_priority or 0) > 35


def by_name(proposal: Proposal) -> dict[str, Judged]:
    return {judged.name: judged for judged in proposal.judged}


def test_a_proposal_holds_on_what_it_was_not_made_from() -> None:
    proposal = propose({W: mix(120)}, {W: 30}, B, RetentionPolicy())
    judged = by_name(proposal)
    assert list(judged) == [LRU, PRESENT, TIERS, LEARNED]
    assert judged[LRU].hits.rate < judged[PRESENT].hits.rate
    assert judged[TIERS].gains[0] == judged[TIERS].first.rate - judged[PRESENT].first.rate
    assert judged[TIERS].gains[1] == judged[TIERS].hits.rate - judged[PRESENT].hits.rate
    assert judged[LEARNED].hits.rate > judged[LRU].hits.rate
    assert proposal.num_fitted == proposal.num_judged == 720


POOR = RetentionPolicy(  # keeps what nobody asks for again, and not what is
    request_types={
        "agent": TypeRule(history=SpanRule(20), current=SpanRule(20), decode=SpanRule(0)),
        "interactive": TypeRule(
            system=SpanRule(100), history=SpanRule(90), current=SpanRule(90), decode=SpanRule(90)
        ),
    }
)


def test_a_better_proposal_is_named_and_holds() -> None:
    proposal = propose({W: mix(120)}, {W: 30}, B, POOR)
    judged = by_name(proposal)
    assert judged[TIERS].holds
    assert judged[TIERS].gains[1] > 0.05
    assert proposal.best.holds
    assert proposal.best.hits.rate == max(each.hits.rate for each in judged.values())


def test_what_was_better_only_at_first_does_not_hold() -> None:
    """Then agents and chat change places: what was learned of them is wrong."""
    swapped = {"agent": "interactive", "interactive": "agent"}
    prompts = mix(120)
    half = len(prompts) // 2
    changed = [p._replace(request_type=swapped[p.request_type]) for p in prompts[half:]]
    proposal = propose({W: prompts[:half] + changed}, {W: 30}, B, POOR)
    tiers = by_name(proposal)[TIERS]
    assert tiers.gains[0] > 0.05
    assert not tiers.holds
    assert proposal.best.name != TIERS


def test_all_workers_are_cut_at_one_time() -> None:
    """The second worker came late: nothing of the first half is its."""
    early = [Prompt(float(i), "agent", "t", [i], Spans(0, 0, B)) for i in range(60)]
    late = [Prompt(100.0 + i, "agent", "t", [i], Spans(0, 0, B)) for i in range(60)]
    proposal = propose({"a": early, "b": late}, {"a": 10, "b": 80}, B, RetentionPolicy())
    assert (proposal.num_fitted, proposal.num_judged) == (60, 60)
    assert [judged.first.asked.total() for judged in proposal.judged] == [60] * 4
    assert [judged.hits.hit.total() for judged in proposal.judged] == [0] * 4


def test_the_present_policy_stays_where_nothing_is_better() -> None:
    prompts = [Prompt(float(i), "agent", "t", [i], Spans(0, 0, B)) for i in range(200)]
    proposal = propose({W: prompts}, {W: 10}, B, RetentionPolicy())
    assert proposal.best.name == PRESENT


def test_without_evictions_no_policy_is_better() -> None:
    roomy, tight = (propose({W: mix(20)}, {W: n}, B, RetentionPolicy()) for n in (10_000, 30))
    assert (roomy.is_full, roomy.is_tie) == (False, True)
    assert (tight.is_full, tight.is_tie) == (True, False)
    assert roomy.best.name == PRESENT


def test_types_that_the_policy_does_not_know_are_taken_for_its_default() -> None:
    prompts = mix(20)
    renamed = [
        p._replace(request_type="vip") if p.request_type == "interactive" else p for p in prompts
    ]
    known, strange = (
        propose({W: each}, {W: 30}, B, RetentionPolicy()) for each in (prompts, renamed)
    )
    assert (known.unknown_types, strange.unknown_types) == ([], ["vip"])
    before, after = by_name(known)[PRESENT], by_name(strange)[PRESENT]
    assert after.hits.hit.total() == before.hits.hit.total()
    assert after.hits.rate_of("vip") == before.hits.rate_of("interactive")
    tiers = by_name(strange)[TIERS].policy
    assert tiers is not None
    tiers.check()
    assert "vip" in tiers.request_types


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
