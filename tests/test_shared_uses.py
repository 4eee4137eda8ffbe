"""What ingresses tell each other: several that share are as good as one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache

import msgspec
import pytest

from controllers.errors import EventError
from controllers.events import PrefixUse, encode
from controllers.learned_retention import LearnedRetention, Use
from controllers.prompt_use import PromptUse
from controllers.retention import Retention
from controllers.retention_replay import Hits, Prompt, replay
from controllers.shared_uses import (
    MAX_RUNNING_S,
    SharedUses,
    UseRecords,
    digits_of,
    hashes_of,
    prompt_of,
)
from tests.test_retention_replay import agents_and_scans

B = 4
W = "w"
NUM_BLOCKS = 12


def prompt_use(prompt: Prompt) -> PromptUse:
    hashes, num_tokens = prompt.full_hashes(B), prompt.spans.num_tokens
    return PromptUse(hashes, num_tokens, B, prompt.request_type, prompt.tenant)


class Ingress:
    def __init__(self, name: str, num_blocks: int = NUM_BLOCKS) -> None:
        self.learned = LearnedRetention()
        self.learned.set_workers({W: num_blocks})
        self.records = UseRecords(name)
        self.shared = SharedUses(self.learned, name, B)

    def send(self, prompt: PromptUse, now: float, worker: str = W) -> tuple[Use, Retention]:
        use = self.learned.use(prompt, now)
        return use, self.learned.promise(use, worker, now)


class Ingresses:
    """A replay's policy. Everybody hears of everything after `delay_s`; None: of nothing."""

    def __init__(self, num: int, delay_s: float | None) -> None:
        self._all = [Ingress(f"i{number}") for number in range(num)]
        self._delay_s = delay_s
        self._random = random.Random(3)
        self._told: deque[tuple[float, PrefixUse]] = deque()
        self._num_requests = 0
        self._now: tuple[Ingress, Use] | None = None
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
        ingress = self._random.choice(self._all)
        ingress.learned.fit_if_due(now)
        use, planned = ingress.send(prompt_use(prompt), now, self._worker)
        self._now = (ingress, use)
        name = str(self._num_requests)
        self._tell(ingress.records.sent(name, self._worker, use.prompt, 0), now)
        return planned

    def done(self, prompt: Prompt, num_hits: int | None, removed: Sequence[int]) -> None:
        assert self._now is not None
        ingress, use = self._now
        ingress.learned.finished(use, num_hits, prompt.at_s)
        name = str(self._num_requests)
        self._tell(ingress.records.done(name, self._worker, num_hits, 0), prompt.at_s)
        for each in self._all:
            each.learned.removed(W, removed, prompt.at_s)

    def _tell(self, record: PrefixUse, now: float) -> None:
        if self._delay_s is not None:
            self._told.append((now, record))
            self._hear(now)

    def _hear(self, now: float) -> None:
        while self._told and self._told[0][0] + (self._delay_s or 0.0) <= now:
            at, record = self._told.popleft()
            for ingress in self._all:
                ingress.shared.apply(record, at)


@cache
def hits(num_ingresses: int, delay_s: float | None) -> Hits:
    prompts = agents_and_scans(60)
    half = len(prompts) // 2
    policy = Ingresses(num_ingresses, delay_s)
    policy.watch(prompts[:half])
    return replay(prompts[half:], policy, NUM_BLOCKS, B)


@pytest.mark.parametrize("num_ingresses", [2, 4])
def test_ingresses_that_share_hit_exactly_what_one_hits(num_ingresses: int) -> None:
    assert hits(num_ingresses, 0.0) == hits(1, None)


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


def test_two_ingresses_do_not_promise_the_same_room() -> None:
    """While all requests still run: nobody has heard of an end, and no block was stored."""

    def promised(is_shared: bool) -> list[int]:
        here, there = Ingress("a", 200), Ingress("b", 200)
        for number in range(4):
            use, planned = here.send(big(1000 * number), float(number))
            assert num_promised(planned) == 40
            if is_shared:
                there.shared.apply(here.records.sent(f"a{number}", W, use.prompt, 0), 0.0)
        return [num_promised(there.send(big(5000 + 1000 * k), 5.0)[1]) for k in range(4)]

    assert promised(is_shared=True) == [10, 0, 0, 0]  # 170 of 200 blocks in all
    assert promised(is_shared=False) == [40, 40, 40, 40]


def test_another_ingress_need_not_be_told_what_was_promised() -> None:
    here, there = Ingress("a"), Ingress("b")
    use, _ = here.send(big(0, 6), 1.0)
    there.shared.apply(here.records.sent("q", W, use.prompt, 0), 1.0)
    here.learned.finished(use, 0, 3.0)
    there.shared.apply(here.records.done("q", W, 0, 0), 3.0)
    probe = big(0, 8)
    assert here.send(probe, 9.0)[1] == there.send(probe, 9.0)[1]
    assert there.shared.counters.num_sent == there.shared.counters.num_done == 1
    assert there.shared.num_running == 0


def test_own_and_repeated_records_change_nothing() -> None:
    here, there = Ingress("a"), Ingress("b")
    record = here.records.sent("q", W, big(0, 6), 0)
    here.shared.apply(record, 1.0)
    assert (here.learned.num_blocks, here.shared.num_running) == (0, 0)
    there.shared.apply(record, 1.0)
    before = dict(vars(there.shared.counters))
    there.shared.apply(record, 2.0)
    assert vars(there.shared.counters) == before
    assert (there.learned.num_blocks, there.shared.num_running) == (6, 1)


def test_holes_and_unknown_ends_are_counted() -> None:
    here, there = Ingress("a"), Ingress("b")
    for seq, record in enumerate(
        [
            here.records.sent("lost", W, big(0, 6), 0),
            here.records.sent("q", W, big(0, 6), 0),
            here.records.sent_again("lost", "other", 0),
            here.records.done("lost", W, 0, 0),
            here.records.done("q", W, 0, 0),
            msgspec.structs.replace(here.records.done("q", W, 0, 0), state="new"),
        ]
    ):
        if seq != 1:
            there.shared.apply(record, float(seq))
    assert vars(there.shared.counters) == {
        "num_sent": 1, "num_done": 1, "num_missing": 1, "num_unknown": 1, "num_given_up": 0,
        "num_refused": 1,
    }  # fmt: skip


def test_the_requests_of_an_ingress_that_died_end() -> None:
    here, there = Ingress("a"), Ingress("b")
    there.shared.apply(here.records.sent("q", W, big(0, 6), 0), 10.0)
    grant = next(iter(there.learned.use(big(0, 6), 10.0).path[0].grants.values()))
    other = UseRecords("c")
    there.shared.apply(other.done("?", W, 0, 0), 10.0 + MAX_RUNNING_S)
    assert there.shared.counters.num_given_up == 1
    assert there.shared.num_running == 0
    assert grant.until_s < float("inf")


def test_another_models_prompts_are_left_out() -> None:
    there = Ingress("b")
    there.shared.apply(UseRecords("a").sent("q", W, PromptUse(range(6), 6 * 8, 8, "agent"), 0), 1.0)
    assert there.shared.counters.num_refused == 1
    assert there.learned.num_blocks == there.shared.num_running == 0


@pytest.mark.parametrize("digits", ["12", "zz" * 8, "0" * 15, " " * 16])
def test_damaged_hashes_change_nothing(digits: str) -> None:
    there = Ingress("b")
    good = UseRecords("a").sent("q", W, big(0, 6), 0)
    with pytest.raises(EventError, match="hashes"):
        there.shared.apply(msgspec.structs.replace(good, hashes=digits), 1.0)
    there.shared.apply(good, 1.0)
    assert there.shared.counters.num_sent == 1


def test_a_record_says_all_that_matters_of_a_prompt() -> None:
    hashes = [0, 1, 2**64 - 1]
    prompt = PromptUse(hashes, 14, B, "batch", "acme", ceiling=60, is_kept=False)
    record = UseRecords("a").sent("q", W, prompt, 7)
    assert msgspec.json.decode(encode(record), type=PrefixUse) == record
    assert prompt_of(record) == prompt
    assert hashes_of(digits_of(hashes)) == hashes
