"""A router's learned retention: its own requests, those of others, and several as good as one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache

import msgspec
import pytest

from controllers.errors import EventError
from controllers.prompt_use import PromptUse
from controllers.records import PrefixUse
from controllers.retention import Retention
from controllers.retention_replay import Hits, Prompt, replay
from controllers.router_retention import Planned, RouterRetention
from controllers.shared_uses import MAX_RUNNING_S
from tests.test_retention_replay import agents_and_scans

B = 4
W = "w"
NUM_BLOCKS = 12


def router(name: str, num_blocks: int = NUM_BLOCKS) -> RouterRetention:
    made = RouterRetention(name, B)
    made.set_workers({W: num_blocks})
    return made


def send(
    at: RouterRetention, name: str, prompt: PromptUse, now: float, worker: str = W
) -> tuple[Retention, PrefixUse]:
    """And what it tells of it."""
    planned, record = at.retention(name, prompt, worker, now, 0)
    assert record is not None
    return planned, record


class Routers:
    """A replay's policy. Everybody hears of everything after `delay_s`; None: of nothing."""

    def __init__(self, num: int, delay_s: float | None) -> None:
        self._all = [router(f"i{number}") for number in range(num)]
        self._delay_s = delay_s
        self._random = random.Random(3)
        self._told: deque[tuple[float, PrefixUse]] = deque()
        self._num_requests = 0
        self._now = self._all[0]
        self._worker = W

    def watch(self, prompts: Iterable[Prompt]) -> None:
        self._worker = "elsewhere"
        for prompt in prompts:
            self.retention(prompt)
            self.done(prompt, None, ())
        self._worker = W

    def retention(self, prompt: Prompt) -> Retention:
        now = prompt.at_s
        self._hear(now)
        self._num_requests += 1
        self._now = self._random.choice(self._all)
        self._now.tick(now)
        hashes, num_tokens = prompt.full_hashes(B), prompt.spans.num_tokens
        use = PromptUse(hashes, num_tokens, B, prompt.request_type, prompt.tenant)
        planned, record = send(self._now, str(self._num_requests), use, now, self._worker)
        self._tell(record, now)
        return planned

    def done(self, prompt: Prompt, num_hits: int | None, removed: Sequence[int]) -> None:
        record = self._now.finished(str(self._num_requests), num_hits, prompt.at_s, 0)
        assert record is not None
        self._tell(record, prompt.at_s)
        for each in self._all:
            each.removed(W, removed, prompt.at_s)

    def _tell(self, record: PrefixUse, now: float) -> None:
        if self._delay_s is not None:
            self._told.append((now, record))
            self._hear(now)

    def _hear(self, now: float) -> None:
        while self._told and self._told[0][0] + (self._delay_s or 0.0) <= now:
            at, record = self._told.popleft()
            for each in self._all:
                each.heard(record, at)


@cache
def hits(num_routers: int, delay_s: float | None) -> Hits:
    prompts = agents_and_scans(60)
    half = len(prompts) // 2
    policy = Routers(num_routers, delay_s)
    policy.watch(prompts[:half])
    return replay(prompts[half:], policy, NUM_BLOCKS, B)


@pytest.mark.parametrize("num_routers", [2, 4])
def test_routers_that_share_hit_exactly_what_one_hits(num_routers: int) -> None:
    assert hits(num_routers, 0.0) == hits(1, None)


def test_news_that_come_late_cost_little_and_none_cost_much() -> None:
    one, late, alone = (sum(hits(*each).hit.values()) for each in ((1, None), (4, 1.0), (4, None)))
    assert late >= 0.97 * one
    assert alone <= 0.85 * one


def big(first: int, num_blocks: int = 40) -> PromptUse:
    return PromptUse(range(first, first + num_blocks), num_blocks * B, B, "agent")


def num_promised(planned: Retention) -> int:
    """Blocks above 35; the last range is open."""
    return sum(
        (160 if each.end is None else each.end) // B - each.start // B
        for each in planned.ranges
        if each.retention_priority > 35
    )


def test_two_routers_do_not_promise_the_same_room() -> None:
    """While all requests still run: nobody has heard of an end, and no block was stored."""

    def promised(is_shared: bool) -> list[int]:
        here, there = router("a", 200), router("b", 200)
        for number in range(4):
            planned, record = send(here, f"a{number}", big(1000 * number), float(number))
            assert num_promised(planned) == 40
            if is_shared:
                there.heard(record, 0.0)
        later = [send(there, f"b{k}", big(5000 + 1000 * k), 5.0) for k in range(4)]
        return [num_promised(planned) for planned, _ in later]

    assert promised(is_shared=True) == [10, 0, 0, 0]  # 170 of 200 blocks in all
    assert promised(is_shared=False) == [40, 40, 40, 40]


def test_another_router_need_not_be_told_what_was_promised() -> None:
    here, there = router("a"), router("b")
    there.heard(send(here, "q", big(0, 6), 1.0)[1], 1.0)
    done = here.finished("q", 0, 3.0, 0)
    assert done is not None
    there.heard(done, 3.0)
    probe = big(0, 8)
    assert send(here, "r", probe, 9.0)[0] == send(there, "r", probe, 9.0)[0]
    assert there.shared.counters.num_sent == there.shared.counters.num_done == 1
    assert there.shared.num_running == 0


def test_pieces_for_one_worker_have_one_plan_and_one_record() -> None:
    here = router("a")
    here.set_workers({W: 12, "other": 12})
    planned, sent = send(here, "q", big(0, 6), 1.0)
    assert here.retention("q", big(0, 6), W, 1.5, 7) == Planned(planned, None)
    _, again = send(here, "q", big(0, 6), 2.0, "other")
    done = here.finished("q", 2, 3.0, 9)
    assert done is not None
    assert here.finished("q", 2, 4.0, 9) is None
    told = [(r.seq, r.state, r.worker, bool(r.hashes)) for r in (sent, again, done)]
    assert told == [(0, "sent", W, True), (1, "sent", "other", False), (2, "done", "other", False)]
    assert (done.num_cached_blocks, done.ts_ms) == (2, 9)


def test_where_nobody_listens_nothing_is_told() -> None:
    here = router("a")
    planned = here.retention("q", big(0, 6), W, 1.0, None)
    assert planned.retention.ranges
    assert (planned.record, here.finished("q", 0, 2.0, None)) == (None, None)
    assert send(here, "r", big(0, 6), 3.0)[1].seq == 0


def test_what_was_removed_makes_room_again() -> None:
    here = router("a", 200)
    send(here, "q", big(0, 170), 1.0)
    lost = here.lost_tokens(big(5000), 2.0)
    assert lost[W] > 0.0
    here.removed(W, range(170), 2.0)
    assert here.lost_tokens(big(5000), 2.0) == {}


def test_a_beat_fits_and_ends_what_is_never_told() -> None:
    here, there = router("a"), router("b")
    there.heard(send(here, "q", big(0, 6), 10.0)[1], 10.0)
    index = there.learned.survival.index
    there.tick(10.0 + MAX_RUNNING_S)
    assert there.learned.survival.index is not index
    assert (there.shared.num_running, there.shared.counters.num_given_up) == (0, 1)


def test_a_damaged_record_changes_nothing() -> None:
    here, there = router("a"), router("b")
    _, record = send(here, "q", big(0, 6), 1.0)
    with pytest.raises(EventError, match="hashes"):
        there.heard(msgspec.structs.replace(record, hashes="zz"), 1.0)
    assert there.learned.num_blocks == 0
    there.heard(record, 1.0)
    assert there.learned.num_blocks == 6
