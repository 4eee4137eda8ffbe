from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.survival import (
    EDGES_S,
    MAX_CLASSES,
    MAX_IDLE_S,
    NUM_BINS,
    Survival,
    bin_of,
    last_age_s,
)


def learned(gaps_s: list[float | None], rounds: int = 40) -> tuple[Survival, int]:
    """One class whose touches come every 10 s and are reused after these gaps, in turn."""
    survival = Survival()
    class_id = survival.class_of("agent")
    reuses: list[tuple[float, int]] = []
    touches = []
    for i in range(rounds * len(gaps_s)):
        gap_s = gaps_s[i % len(gaps_s)]
        touches.append(survival.touch(10.0 * i, class_id))
        if gap_s is not None:
            reuses.append((10.0 * i + gap_s, i))
    for at, i in sorted(reuses):
        survival.reuse(touches[i], at)
    survival.fit(10.0 * len(touches) + MAX_IDLE_S)
    return survival, class_id


def test_bins_begin_at_their_edges() -> None:
    assert [bin_of(edge) for edge in EDGES_S] == list(range(NUM_BINS + 1))
    assert bin_of(0.999) == 0
    assert bin_of(1e9) == NUM_BINS


def test_what_is_always_used_again_at_once_is_worth_more_than_what_never_is() -> None:
    often, a = learned([0.5])
    never, b = learned([None])
    assert often.worth(a, 0.0) > 0.5  # hits per block-second: the hit comes within a second
    assert never.worth(b, 0.0) < 0.001


def test_worth_rises_until_the_reuse_is_due_and_falls_behind_it() -> None:
    survival, a = learned([14.0])
    assert survival.worth(a, 0.0) < survival.worth(a, 8.5) < survival.worth(a, 13.5)
    assert survival.worth(a, 17.0) < survival.worth(a, 0.0) / 5
    assert last_age_s(survival.reach[a], 1.5 * survival.worth(a, 0.0)) == 16.0


def test_the_chance_of_a_later_use_falls_where_uses_come() -> None:
    """Every other one after 14 s, the rest never."""
    survival, a = learned([14.0, None])
    chances = [survival.chance_after(a, idle_s) for idle_s in (0.0, 12.9, 16.0, 500.0, MAX_IDLE_S)]
    assert chances == pytest.approx([0.5, 0.5, 0.0, 0.0, 0.0], abs=0.03)
    assert survival.chance_after(survival.class_of("agent", "new"), 0.0) == chances[0]


def test_touches_that_nobody_knows_the_end_of_count_as_far_as_they_were_seen() -> None:
    """Censoring: half of the touches are dropped before their reuse; the hazard is the same."""
    survival = Survival()
    class_id = survival.class_of("a")
    for i in range(100):
        touch = survival.touch(float(i), class_id)
        if i % 2:
            survival.drop(touch)
        else:
            survival.reuse(touch, i + 0.5)
    survival.fit(2000.0)
    whole, same = learned([0.5])
    assert math.isclose(survival.worth(class_id, 0.0), whole.worth(same, 0.0), rel_tol=0.2)


def test_a_new_class_is_worth_what_its_parent_is() -> None:
    survival, parent = learned([0.5])
    child = survival.class_of("agent", "tenant")
    assert survival.index[child] == survival.index[parent]
    assert survival.reach[child] == survival.reach[parent]
    survival.fit(5000.0)
    assert math.isclose(survival.worth(child, 0.0), survival.worth(parent, 0.0), rel_tol=1e-6)


def test_a_class_parts_from_its_parent_by_its_own_touches() -> None:
    survival, _ = learned([0.5])
    new = survival.class_of("agent", "other")
    for i in range(50):
        survival.touch(5000.0 + i, new)
    survival.fit(5000.0 + MAX_IDLE_S + 100)
    assert survival.worth(new, 0.0) < survival.worth(survival.class_of("agent"), 0.0) / 2


def test_old_behaviour_is_forgotten() -> None:
    survival, a = learned([0.5])
    before = survival.worth(a, 0.0)
    for i in range(400):
        survival.touch(20_000.0 + i, a)
    survival.fit(22_000.0)
    assert survival.worth(a, 0.0) < before / 10


def test_classes_are_bounded_and_the_last_known_stands_for_more() -> None:
    survival = Survival()
    parent = survival.class_of("a")
    ids = {survival.class_of("a", str(i)) for i in range(2 * MAX_CLASSES)}
    assert len(ids) == MAX_CLASSES - 1
    assert parent in ids
    survival.fit(10.0)
    assert len(survival.index) == MAX_CLASSES


@given(st.lists(st.floats(1e-6, 1.0), min_size=NUM_BINS, max_size=NUM_BINS), st.floats(1e-7, 2.0))
def test_last_age_is_the_end_of_the_last_bin_that_is_worth_it(
    index: list[float], least: float
) -> None:
    reach = [-max(index[at:]) for at in range(NUM_BINS)]
    at = bin_of(last_age_s(reach, least))
    assert all(worth < least for worth in index[at:])
    assert at == 0 or index[at - 1] >= least
