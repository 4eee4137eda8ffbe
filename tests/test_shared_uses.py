"""Records that ingresses exchange of their requests, and what those of others teach."""

from __future__ import annotations

import msgspec
import pytest

from controllers.errors import EventError
from controllers.learned_retention import LearnedRetention
from controllers.prompt_use import PromptUse
from controllers.record_codec import encode
from controllers.records import PrefixUse
from controllers.shared_uses import (
    MAX_RUNNING_S,
    SharedUses,
    UseRecords,
    digits_of,
    hashes_of,
    prompt_of,
)

B = 4
W = "w"


class Ingress:
    """What it has learned of the others, and what it tells of itself."""

    def __init__(self, name: str) -> None:
        self.learned = LearnedRetention()
        self.learned.set_workers({W: 12})
        self.records = UseRecords(name)
        self.shared = SharedUses(self.learned, name, B)


def big(first: int, num_blocks: int) -> PromptUse:
    return PromptUse(range(first, first + num_blocks), num_blocks * B, B, "agent")


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
