"""What a smaller cache costs: the share of sent blocks that were sent before and lost since."""

from __future__ import annotations

from controllers.evictions import EVERY, MAX_REMEMBERED, WINDOW_S, Evictions

PROMPT = list(range(1, 3201))


def test_new_prompts_are_lost_nowhere() -> None:
    evictions = Evictions()
    evictions.add(PROMPT, 0, 0.0)
    assert evictions.share_again() == 0.0


def test_what_no_worker_has_any_more_was_lost() -> None:
    evictions = Evictions()
    evictions.add(PROMPT, 0, 0.0)
    evictions.add(PROMPT, 0, 0.0)
    assert evictions.share_again() == 0.5


def test_what_a_worker_still_has_is_neither_new_nor_lost() -> None:
    evictions = Evictions()
    evictions.add(PROMPT, 0, 0.0)
    evictions.add(PROMPT, 1600, 0.0)
    assert evictions.share_again() == 1600 / 4800


def test_a_piece_that_ends_before_what_is_cached_counts_for_nothing() -> None:
    evictions = Evictions()
    evictions.add(PROMPT, 0, 0.0)
    evictions.add(PROMPT[:320], 3200, 0.0)
    assert evictions.share_again() == 0.0


def test_a_handful_of_blocks_says_nothing() -> None:
    evictions = Evictions()
    for _ in range(2):
        evictions.add(PROMPT[:800], 0, 0.0)
    assert evictions.share_again() == 0.0


def test_the_past_fades() -> None:
    evictions = Evictions()
    evictions.add(PROMPT, 0, 0.0)
    evictions.add(PROMPT, 0, 0.0)
    evictions.add([-block for block in PROMPT], 0, 3 * WINDOW_S)
    assert 0.0 < evictions.share_again() < 0.05


def test_the_least_recently_asked_for_is_forgotten() -> None:
    evictions = Evictions()
    evictions.add(PROMPT, 0, 0.0)
    first = PROMPT[: 2 * EVERY]
    evictions.add(first, 0, 0.0)
    others = range(10_000, 10_000 + EVERY * (MAX_REMEMBERED - 2))
    evictions.add(list(others), 0, 0.0)
    before = evictions.share_again()
    evictions.add(PROMPT[2 * EVERY :], 0, 0.0)  # all forgotten: new
    assert evictions.share_again() < before
    assert len(evictions._remembered) == MAX_REMEMBERED
