from __future__ import annotations

import random
from collections import Counter

from controllers.retention import RetentionPolicy, Spans
from controllers.retention_policy import SpanRule, TypeRule
from controllers.retention_replay import Learned, Lru, Prompt, StaticTiers, replay

B = 4
POLICY = RetentionPolicy(
    request_types={
        "keep": TypeRule(current=SpanRule(80, 100.0)),
        "mid": TypeRule(current=SpanRule(60)),
        "drop": TypeRule(current=SpanRule(0), decode=SpanRule(0)),
    }
)


def prompt(at_s: float, first: int, num: int, kind: str = "keep") -> Prompt:
    """Blocks first, first + 1 ... as one prefix."""
    return Prompt(at_s, kind, "t", range(first, first + num), Spans(0, 0, num * B))


def test_lru_hits_what_was_used_last() -> None:
    prompts = [prompt(0, 0, 4), prompt(1, 100, 4), prompt(2, 0, 4), prompt(3, 100, 4)]
    hits = replay(prompts, Lru(), num_blocks=8, block_size=B)
    assert hits.asked == Counter(keep=16)
    assert hits.hit == Counter(keep=8)
    assert hits.rate == hits.rate_of("keep") == 0.5
    assert replay(prompts, Lru(), num_blocks=6, block_size=B).hit == Counter(keep=4)


def test_tiers_keep_what_they_say_and_for_as_long() -> None:
    def hits(later_s: float) -> Counter[str]:
        scan = [prompt(1 + i / 10, 100 * (i + 1), 4, "drop") for i in range(5)]
        late = [prompt(later_s - 1, 900 + 100 * i, 4, "mid") for i in range(3)]
        prompts = [prompt(0, 0, 4), *scan, *late, prompt(later_s, 0, 4)]
        return replay(prompts, StaticTiers(POLICY, B), 12, B).hit

    assert hits(50.0)["keep"] == 4
    assert hits(150.0)["keep"] == 0


def test_a_prompt_longer_than_the_cache_is_cut() -> None:
    hits = replay([prompt(0, 0, 9), prompt(1, 0, 9)], Lru(), num_blocks=5, block_size=B)
    assert (hits.asked, hits.hit) == (Counter(keep=18), Counter(keep=5))


def test_a_cache_full_of_the_highest_priority_still_serves() -> None:
    pinned = RetentionPolicy(request_types={"keep": TypeRule(current=SpanRule(100))})
    prompts = [prompt(i, 100 * i, 4) for i in range(5)]
    prompts += [prompt(5, 400, 4), prompt(6, 0, 4)]
    assert replay(prompts, StaticTiers(pinned, B), 8, B).hit == Counter(keep=4)


def agents_and_scans(num: int, first: int = 0) -> list[Prompt]:
    """Every 10 s: a session's turns after 3 s each, and documents that nobody asks for again."""
    prompts = []
    for i in range(num):
        at_s, base = 10.0 * i, 1000 * (first + i)
        prompts += [prompt(at_s + 3 * turn, base, 3 + turn) for turn in range(3)]
        prompts += [prompt(at_s + 1.5 * k, base + 100 * k, 5, "scan") for k in range(1, 6)]
    return sorted(prompts, key=lambda each: each.at_s)


def test_learned_finds_out_what_comes_again_and_holds_it_against_a_scan() -> None:
    policy = RetentionPolicy(request_types={"keep": TypeRule(), "scan": TypeRule()})
    prompts = agents_and_scans(60)
    half = len(prompts) // 2
    learned = Learned(policy, B, num_blocks=10)
    learned.watch(prompts[:half])
    lru = replay(prompts[half:], Lru(), 10, B)
    ours = replay(prompts[half:], learned, 10, B)
    assert lru.rate_of("keep") == 0.25
    assert ours.rate_of("keep") > 0.4


def test_replays_are_the_same_every_time() -> None:
    policy = RetentionPolicy(request_types={"keep": TypeRule(), "scan": TypeRule()})
    prompts = agents_and_scans(20)
    runs = [replay(prompts, Learned(policy, B, 12), 12, B) for _ in range(2)]
    assert runs[0] == runs[1]


def test_wrong_request_types_cost_little() -> None:
    policy = RetentionPolicy(request_types={"keep": TypeRule(), "scan": TypeRule()})
    prompts = agents_and_scans(60)
    half = len(prompts) // 2
    rng = random.Random(1)
    wrong = [
        p._replace(request_type=rng.choice(["keep", "scan"])) if rng.random() < 0.2 else p
        for p in prompts[half:]
    ]

    def rate(second: list[Prompt]) -> float:
        learned = Learned(policy, B, num_blocks=10)
        learned.watch(prompts[:half])
        return replay(second, learned, 10, B).rate

    assert rate(wrong) > rate(prompts[half:]) - 0.03


def test_a_new_tenant_whose_traffic_is_not_what_its_label_says_does_not_fall_below_lru() -> None:
    policy = RetentionPolicy(request_types={"keep": TypeRule(), "scan": TypeRule()})
    prompts = agents_and_scans(60)
    half = len(prompts) // 2
    shown = [
        p._replace(request_type="keep", tenant="new") if p.request_type == "scan" else p
        for p in prompts[half:]
    ]
    learned = Learned(policy, B, num_blocks=10)
    learned.watch(prompts[:half])
    assert replay(shown, learned, 10, B).rate >= replay(shown, Lru(), 10, B).rate
