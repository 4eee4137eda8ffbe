from __future__ import annotations

from controllers.stagger import STEP_SHARE, stagger_ms
from tests.placement_rig import Fleet

WORKERS = ["b", "d", "a", "c"]  # rows of the books are in no order


def test_a_single_router_prefers_nobody() -> None:
    assert stagger_ms(WORKERS, 0, 1, 0.0).tolist() == [0.0] * 4
    assert Fleet(3).placement._placing.stagger_ms(0.0) is None


def test_each_router_goes_around_by_name_from_a_place_of_its_own() -> None:
    first, second = (stagger_ms(WORKERS, place, 2, 100.0) for place in (0, 1))
    step = STEP_SHARE * 100.0
    assert first.tolist() == [step * n for n in (1, 3, 0, 2)]
    assert second.tolist() == [step * n for n in (3, 1, 2, 0)]


def test_more_routers_than_workers_share_places() -> None:
    firsts = [int(stagger_ms(["a", "b"], place, 4, 1.0).argmin()) for place in range(4)]
    assert firsts == [0, 0, 1, 1]
