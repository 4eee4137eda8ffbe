from __future__ import annotations

import pytest

from controllers import hubs
from controllers.hubs import Hubs


def test_a_copy_is_due_when_it_is_paid_for() -> None:
    h = Hubs(1.0)
    assert not h.is_copy_due(7, 100)
    h.leave(7, 90)
    h.leave(7, 90)
    assert not h.is_copy_due(7, 100)  # too few branches
    h.leave(7, 1)
    assert h.is_copy_due(7, 181)
    assert not h.is_copy_due(7, 182)
    h.copied(7)
    assert not h.is_copy_due(7, 100)
    h.leave(7, 100)
    assert h.is_copy_due(7, 100)
    h.copied(8)


@pytest.mark.parametrize(("ratio", "is_due"), [(0.0, False), (0.5, True), (2.0, False)])
def test_the_ratio(ratio: float, is_due: bool) -> None:
    h = Hubs(ratio)
    for _ in range(3):
        h.leave(7, 50)
    assert h.is_copy_due(7, 100) is is_due


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "MAX_HUBS", 3)
    h = Hubs(1.0)
    for block_hash in (1, 2, 3, 1, 1, 4):
        h.leave(block_hash, 100)
    assert list(h._hubs) == [3, 1, 4]
    assert h.is_copy_due(1, 300)
