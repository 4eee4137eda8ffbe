from __future__ import annotations

from controllers.stagger import STEP_SHARE, alone, stagger_of

WORKERS = ["b", "d", "a", "c"]  # rows of the books are in no order


def test_a_single_router_prefers_nobody() -> None:
    stagger = alone(3)
    assert stagger.cost_ms.tolist() == [0.0] * 3


def test_each_router_goes_around_by_name_from_a_place_of_its_own() -> None:
    first, second = (stagger_of(WORKERS, place, 2, 100.0) for place in (0, 1))
    step = STEP_SHARE * 100.0
    assert first.cost_ms.tolist() == [step * n for n in (1, 3, 0, 2)]
    assert second.cost_ms.tolist() == [step * n for n in (3, 1, 2, 0)]


def test_more_routers_than_workers_share_places() -> None:
    firsts = [int(stagger_of(["a", "b"], place, 4, 1.0).cost_ms.argmin()) for place in range(4)]
    assert firsts == [0, 0, 1, 1]
