from __future__ import annotations

import numpy as np
import pytest

from bench.decision_time import decision_rows
from bench.decision_workload import BLOCK_SIZE, LENGTHS, Times, Workload, generate


@pytest.fixture(scope="module")
def workload() -> Workload:
    return generate(
        num_workers=4, num_blocks=20_000, prompts_per_length=4, blocks_per_event=16, seed=3
    )


def test_same_arguments_same_workload(workload: Workload) -> None:
    again = generate(
        num_workers=4, num_blocks=20_000, prompts_per_length=4, blocks_per_event=16, seed=3
    )
    for length in LENGTHS:
        for ours, theirs in zip(workload.prompts[length], again.prompts[length], strict=True):
            assert np.array_equal(ours, theirs)
    assert [(run.worker, run.names) for run in workload.stored] == [
        (run.worker, run.names) for run in again.stored
    ]


def test_nothing_is_stored_twice_and_parents_come_first(workload: Workload) -> None:
    held: list[set[int]] = [set() for _ in range(workload.num_workers)]
    for run in workload.stored:
        assert len(run.tokens) == BLOCK_SIZE * len(run.names) <= BLOCK_SIZE * 16
        assert run.parent is None or run.parent in held[run.worker]
        assert not held[run.worker] & set(run.names)
        held[run.worker].update(run.names)
    assert workload.num_blocks == sum(map(len, held)) >= 20_000


def test_every_other_prompt_continues_what_two_workers_hold(workload: Workload) -> None:
    for length, prompts in workload.prompts.items():
        num_holders = []
        for prompt in prompts:
            assert len(prompt) == length * BLOCK_SIZE
            half = prompt[: length // 2 * BLOCK_SIZE]
            holders = {
                run.worker
                for run in workload.stored
                if run.end * BLOCK_SIZE == len(half)
                and np.array_equal(run.chain.tokens[: len(half)], half)
            }
            num_holders.append(len(holders))
        assert num_holders == [2, 0, 2, 0]


def test_times_become_microseconds_by_kind() -> None:
    times = Times()
    for index, seconds in enumerate((1e-6, 3e-6)):
        times.add("run", 64, index, seconds)
    assert times.figures() == pytest.approx(
        {"run 64 half p50": 1.0, "run 64 p50": 2.0, "run 64 p99": 2.98, "run 64 none p50": 3.0}
    )


def test_the_target_is_a_third_of_the_peer() -> None:
    ours = {"pass sent p50 ms": 4.0, "pass held p50 ms": 6.0}
    peer = {}
    for length in LENGTHS:
        for way in ("run", "choose", "hashing"):
            ours |= {f"{way} {length} p50": 50.0, f"{way} {length} p99": 70.0}
        for way in ("tokens", "hashed", "hashes"):
            peer |= {f"{way} {length} p50": 120.0, f"{way} {length} p99": 300.0}
    rows = {row.name: row for row in decision_rows({"ours": ours, "peer": peer})}
    first = rows["64 blocks, p50"]
    assert (first.ours, first.peer, first.target, first.is_met) == (50.0, 120.0, 40.0, False)
    assert rows["64 blocks, p99"].target is None
    passes = [rows[f"pass over a full queue, all {fate}"].is_met for fate in ("sent", "held")]
    assert passes == [True, False]
    alone = {row.name: row for row in decision_rows({"ours": ours})}
    assert (alone["64 blocks, p50"].peer, alone["64 blocks, p50"].target) == (None, None)
