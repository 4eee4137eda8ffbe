"""Learned retention in the simulated fleet: the classes of production, told what they are told
there."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
import pytest

from controllers.errors import InvalidRequest
from controllers.records import PrefixUse
from controllers.retention import Retention, RetentionPolicy, Spans
from controllers.retention_replay import Learned, Prompt, replay
from controllers.simulation.fleet import Fleet
from controllers.simulation.keeper import Keeper
from controllers.simulation.late import Late
from controllers.simulation.result import Run
from controllers.simulation.settings import FleetSettings, Outage
from controllers.simulation.timing import parse_curve
from controllers.simulation.trace import TRACE_BLOCK, Row, build, read_rows
from tests.mix_slice import FILE, POLICY
from tests.simulation_rig import sessions, simulated, trace_of

LEARNED = RetentionPolicy(policy="learned", request_types=POLICY.request_types)
NO_TIME = parse_curve("1e-9,1e-9,1e-9,1e-9,1e-9,1e-9")


def mix_rows() -> list[Row]:
    """Whole trace blocks, one output token, and no two requests at one time."""
    with gzip.open(FILE, "rt") as lines:
        rows = sorted(read_rows(lines, FILE.name), key=lambda row: row.timestamp)
    return [
        msgspec.structs.replace(
            row,
            timestamp=row.timestamp + 5 * number,
            input_length=TRACE_BLOCK * len(row.hash_ids),
            output_length=1,
        )
        for number, row in enumerate(rows)
    ]


def run_mix(rows: list[Row], num_blocks: int, policy: RetentionPolicy | None) -> Run:
    """One worker. Blocks of one token, so that output takes hardly any room."""
    settings = FleetSettings(
        num_workers=1,
        num_blocks=TRACE_BLOCK * num_blocks + len(rows),
        jitter=0.0,
        curve=NO_TIME,
        max_batched_tokens=1_000_000,
        retention=policy,
    )
    return Fleet(build(rows, 1), settings, "round_robin").run()


class OnTheBeat(Learned):
    """Fits when load records come, as production does, and not when requests come."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(LEARNED, TRACE_BLOCK, num_blocks)
        self._next_beat_s = 0.5

    def retention(self, prompt: Prompt) -> Retention:
        while self._next_beat_s < prompt.at_s:
            self.learned.fit_if_due(self._next_beat_s)
            self._next_beat_s += 0.5
        self._use = self.learned.use(self._prompt_use(prompt), prompt.at_s)
        return self.learned.promise(self._use, "replay", prompt.at_s)


@pytest.mark.parametrize("num_blocks", [150, 250])
def test_one_worker_hits_what_the_replay_hits(num_blocks: int) -> None:
    rows = mix_rows()
    first_ms = rows[0].timestamp
    prompts = [
        Prompt(
            (row.timestamp - first_ms) / 1e3,
            row.request_type,
            "default",
            row.hash_ids,
            Spans(row.system_length, row.history_length, row.input_length),
        )
        for row in rows
    ]
    hits = replay(prompts, OnTheBeat(num_blocks), num_blocks, TRACE_BLOCK)
    run = run_mix(rows, num_blocks, LEARNED)
    assert int(run.cached_tokens.sum()) == TRACE_BLOCK * sum(hits.hit.values())


def test_it_beats_lru_on_a_mix() -> None:
    rows = mix_rows()
    lru, learned = (run_mix(rows, 125, policy).report.num_hit_blocks for policy in (None, LEARNED))
    assert learned > 1.1 * lru


def test_several_routers_learn_of_each_others_requests() -> None:
    """Two routers, one worker: told after a moment, each knows what it would know alone."""
    rows = mix_rows()
    num_hits = []
    for num_routers, is_told in ((1, True), (2, True), (2, False)):
        settings = FleetSettings(
            num_workers=1,
            num_blocks=TRACE_BLOCK * 200 + len(rows),
            jitter=0.0,
            curve=NO_TIME,
            max_batched_tokens=1_000_000,
            num_routers=num_routers,
            booking_lag_s=0.001,
            shares_bookings=is_told,
            retention=LEARNED,
        )
        report = Fleet(build(rows, 1), settings, "round_robin").run().report
        num_hits.append(report.num_hit_blocks)
    alone, told, untold = num_hits
    assert told == alone
    assert untold != alone


def test_a_plan_holds_for_all_pieces_and_is_told_to_the_others_once() -> None:
    late: Late[PrefixUse] = Late(0.0)
    heard: list[PrefixUse] = []
    late.listeners = [lambda record, now: None, lambda record, now: heard.append(record)]
    keeper = Keeper(0, LEARNED, 16, late)
    keeper.set_workers({"w0": 1600, "w1": 1600})
    request = trace_of([Row(0, 2048, 5, [1, 2, 3, 4])]).requests[0]
    first = keeper.retention(request, "w0", 1000.0)
    assert first.ranges[0].retention_priority > 35
    assert keeper.retention(request, "w0", 1100.0) is first
    keeper.retention(request, "w1", 1200.0)
    keeper.finished(request, 1024, 2000.0)
    keeper.finished(request, 1024, 2000.0)
    late.deliver(2000.0)
    assert [(r.seq, r.state, r.worker, bool(r.hashes), r.num_cached_blocks) for r in heard] == [
        (0, "sent", "w0", True, None),
        (1, "sent", "w1", False, None),
        (2, "done", "w1", False, 2),
    ]


def test_the_same_seed_gives_the_same_bytes_also_with_faults() -> None:
    faults: dict[str, Any] = {
        "num_blocks": 900, "num_routers": 2, "event_lag_s": 0.05, "event_loss": 0.02,
        "outages": (Outage(2, 5.0, 8.0),), "retention": LEARNED,
    }  # fmt: skip
    first, again, other = (
        msgspec.json.encode(simulated(sessions(20), seed=seed, **faults).report)
        for seed in (3, 3, 4)
    )
    assert first == again != other


def test_long_prompts_in_pieces_are_planned_as_one() -> None:
    """A prompt of many iterations, seen twice: its pieces keep what the whole is worth."""
    ids = list(range(1, 161))
    rows = [Row(0.0, 512 * 160, 5, ids), Row(60_000.0, 512 * 160, 5, ids)]
    run = simulated(rows, num_workers=1, num_blocks=16 * 170, retention=LEARNED)
    assert run.cached_tokens.tolist() == [0, 512 * 160]


def test_types_that_the_policy_does_not_know_are_refused_before_the_run() -> None:
    with pytest.raises(InvalidRequest, match="'poem' is none of"):
        simulated([Row(0, 10, 1, [], "poem")], retention=LEARNED)
