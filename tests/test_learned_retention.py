from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.learned_retention import LearnedRetention, Use
from controllers.promises import DEFAULT_PROMISE, Promise
from controllers.promising import AS_LRU, LOWEST_PROMISED
from controllers.prompt_use import PromptUse
from controllers.retention import Retention, TokenRange, ranges_of_blocks

B = 4
W = "r1:0"


def hashes_of(tokens: list[int]) -> list[int]:
    hashes, at = [], 0
    for token in tokens:
        at = hash((at, token))
        hashes.append(at)
    return hashes


def prompt(tokens: list[int], kind: str = "agent", tenant: str = "a", **more: object) -> PromptUse:
    """A block for each token, and a partial one."""
    return PromptUse(hashes_of(tokens), B * len(tokens) + 1, B, kind, tenant, **more)  # type: ignore[arg-type]


def promise_of(given: TokenRange | None) -> Promise:
    assert given is not None
    return Promise.of(given.retention_priority, given.duration_s)


def by_block(retention: Retention, use: PromptUse) -> list[Promise]:
    return [promise_of(g) for g in ranges_of_blocks(retention, use.num_tokens, B)]


def serve(
    learned: LearnedRetention, use: PromptUse, now: float, took_s: float = 0.0
) -> tuple[Use, Retention]:
    under_way = learned.use(use, now)
    retention = learned.promise(under_way, W, now)
    learned.finished(under_way, None, now + took_s)
    learned.fit_if_due(now + took_s)
    return under_way, retention


def taught(num_blocks: int = 1000) -> LearnedRetention:
    """Agents come again after 5 s, documents never."""
    learned = LearnedRetention()
    learned.set_workers({W: num_blocks})
    for i in range(60):
        for turn in range(3):
            serve(learned, prompt([i, *range(turn + 2)]), 100.0 * i + 5.0 * turn)
        serve(learned, prompt([1000 + i, 1, 2], "document"), 100.0 * i + 50.0)
    learned.fit_if_due(10_000.0)
    return learned


def test_what_comes_again_is_promised_more_and_as_long_as_it_takes() -> None:
    learned = taught()
    agent, document = prompt([7777, 1, 2]), prompt([8888, 1, 2], "document")
    first, second = (by_block(serve(learned, use, 10_000.0)[1], use) for use in (agent, document))
    assert first[0].retention_priority > second[0].retention_priority
    assert 5.0 <= first[0].duration_s < 60.0


def test_without_room_newcomers_are_refused_and_old_promises_stand() -> None:
    learned = taught(num_blocks=10)
    old, new = prompt([7777, 1, 2, 3, 4, 5, 6]), prompt([8888, 1, 2, 3, 4, 5, 6])
    first, retention = serve(learned, old, 10_000.0)
    assert first.num_refused == 0
    assert by_block(retention, old)[-1].retention_priority >= LOWEST_PROMISED
    second, retention = serve(learned, new, 10_001.0)
    assert second.num_refused == 6
    assert [p.retention_priority > 35 for p in by_block(retention, new)] == [True] + [False] * 7
    third, _ = serve(learned, old, 10_005.0)  # its own room is its own again
    assert third.num_refused <= 1


def test_evictions_make_room() -> None:
    learned = taught(num_blocks=10)
    old, new = prompt([7777, 1, 2, 3, 4, 5, 6]), prompt([8888, 1, 2, 3, 4, 5, 6])
    serve(learned, old, 10_000.0)
    learned.removed(W, [*old.hashes, 12345], 10_001.0)
    learned.removed("stranger", new.hashes, 10_001.0)
    assert serve(learned, new, 10_001.0)[0].num_refused == 0


def test_one_off_requests_are_promised_nothing() -> None:
    learned = taught()
    use = prompt([7777, 1, 2], is_kept=False)
    _, retention = serve(learned, use, 10_000.0)
    assert retention == Retention((TokenRange(0, None, 0),), 0)


def test_a_ceiling_holds() -> None:
    learned = taught()
    for ceiling in (0, 20, 35, 36, 38):
        use = prompt([7777 + ceiling, 1, 2], ceiling=ceiling)
        _, retention = serve(learned, use, 10_000.0)
        assert all(p.retention_priority <= max(35, ceiling) for p in by_block(retention, use))


def test_a_cache_that_hits_less_than_lru_would_is_made_one_until_it_does_not() -> None:
    learned = taught()
    floors = learned._workers[W].floors
    agent, document = prompt([7777, 1, 2]), prompt([8888, 1, 2], "document")
    floors.count("chat", 100, num_hits=0, num_lru_hits=1000)
    plans = [by_block(serve(learned, use, 10_000.0)[1], use) for use in (agent, document)]
    assert {p.retention_priority for p in [*plans[0], *plans[1]][:-1]} <= {AS_LRU}
    assert len({p.duration_s for plan in plans for p in plan}) == 1
    floors.count("chat", 100, num_hits=2000, num_lru_hits=0)
    other = prompt([7778, 1, 2])
    again = by_block(serve(learned, other, 10_001.0)[1], other)
    assert LOWEST_PROMISED <= again[0].retention_priority < AS_LRU


def test_a_wrong_label_now_and_then_changes_nothing() -> None:
    learned = taught()
    labels = ("agent", "agent", "agent", "document", "agent", "chat", "agent")
    for turn, label in enumerate(labels):
        use = prompt([7777, *range(turn + 2)], label)
        under_way, _ = serve(learned, use, 10_000.0 + 5.0 * turn)
        assert under_way.group == ("agent", "a")
        assert {run.label for run in under_way.path} == {"agent"}


def test_another_attempt_counts_as_the_same_use() -> None:
    learned = taught()
    learned.set_workers({W: 1000, "r2:0": 1000})
    under_way = learned.use(prompt([7777, 1, 2]), 10_000.0)
    first = learned.promise(under_way, W, 10_000.0)
    second = learned.promise(under_way, "r2:0", 10_001.0)
    assert second == first
    assert [run.num_uses for run in under_way.path] == [1]
    learned.finished(under_way, 2, 10_002.0)
    assert {w: g.until_s < math.inf for w, g in under_way.path[0].grants.items()} == {
        W: True,
        "r2:0": True,
    }


def test_an_unknown_worker_is_told_nothing() -> None:
    learned = LearnedRetention()
    use = learned.use(prompt([1, 2]), 0.0)
    assert learned.promise(use, "new", 0.0) == Retention()
    learned.finished(use, 1, 1.0)


def test_time_runs_from_the_end_of_the_request() -> None:
    learned = taught()
    use, retention = serve(learned, prompt([7777, 1, 2]), 10_000.0, took_s=30.0)
    grant = use.path[0].grants[W]
    assert grant.until_s == 10_030.0 + grant.duration_s
    assert retention.ranges[0].duration_s == int(grant.duration_s * 1e3) / 1e3


def test_what_was_not_asked_for_in_long_is_forgotten() -> None:
    learned = taught()
    serve(learned, prompt([7777, 1, 2]), 10_001.0)
    assert learned.num_blocks == 3
    learned.fit_if_due(100_000.0)
    assert learned.num_blocks == 0


request = st.tuples(
    st.lists(st.integers(0, 2), min_size=1, max_size=7),
    st.sampled_from(["agent", "chat", "oneoff"]),
    st.sampled_from(["a", "b"]),
    st.floats(0.0, 40.0),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(request, max_size=50), st.integers(1, 60), st.integers(0, 2**16))
def test_every_plan_keeps_the_laws(
    requests: list[tuple[list[int], str, str, float, bool]], num_blocks: int, seed: int
) -> None:
    learned = LearnedRetention()
    learned.set_workers({W: num_blocks})
    rng = random.Random(seed)
    promised: dict[int, tuple[str, Promise, float]] = {}  # block -> tenant, promise, when
    now = 0.0
    for tokens, kind, tenant, pause_s, keeps_reply in requests:
        now += pause_s
        use = prompt(tokens, kind, tenant, is_kept=kind != "oneoff", keeps_reply=keeps_reply)
        under_way, retention = serve(learned, use, now)
        _check_ranges(retention)
        promises = by_block(retention, use)
        reply = Promise.of(retention.decode_retention_priority, retention.decode_duration_s)
        for before, after in zip(promises, [*promises[1:], reply], strict=True):
            assert before.covers(after)
        for block, now_said in zip(use.hashes, promises[:-1], strict=True):
            _check_not_lowered(promised.get(block), tenant, now_said, now)
            promised[block] = (tenant, now_said, now)
        learned.finished(under_way, rng.randrange(len(tokens) + 1), now)
        learned.removed(W, rng.sample(use.hashes, rng.randrange(len(tokens) + 1)), now)
        room = learned._workers[W].room
        assert min(room._held) >= 0


def _check_ranges(retention: Retention) -> None:
    ranges = retention.ranges
    assert ranges[0].start == 0
    assert ranges[-1].end is None
    assert [r.end for r in ranges[:-1]] == [r.start for r in ranges[1:]]
    for each in ranges:
        assert 0 <= each.retention_priority <= 100
        if each.duration_s is not None:
            assert each.retention_priority > DEFAULT_PROMISE.retention_priority
            assert each.duration_s > 0
            assert abs(round(each.duration_s * 1e3) - each.duration_s * 1e3) < 1e-6


def _check_not_lowered(
    before: tuple[str, Promise, float] | None, tenant: str, given: Promise, now: float
) -> None:
    if before is None or before[0] == tenant or before[1].retention_priority <= 35:
        return
    left_s = before[1].duration_s - (now - before[2])
    if left_s > 0.002:  # whole milliseconds
        assert given.covers(Promise(before[1].retention_priority, left_s - 0.002))
