"""How much of a plan there is room for."""

from __future__ import annotations

import pytest

from controllers.grants import Grant, Room
from controllers.promises import Promise
from controllers.promising import Level, num_promised


def room() -> Room:
    """85 blocks may be promised; 30 are at 60, 20 at 40."""
    made = Room(100)
    for retention_priority, num in ((60, 30), (40, 20)):
        made.hold(Grant(Promise(retention_priority, 60.0), 1.0, "a"), num)
    return made


@pytest.mark.parametrize(
    ("levels", "num"),
    [
        ([], 0),
        ([(50, 55)], 55),
        ([(50, 56)], 55),
        ([(50, 60), (45, 61)], 55),  # there is room for one more at 45, but not behind a refusal
        ([(50, 40), (37, 41)], 40),  # those at 40 are in the way
        ([(50, 10), (40, 35)], 35),
        ([(50, 10), (40, 36)], 35),
        ([(36, 10)], 10),
        ([(50, 10), (35, 20)], 10),  # nothing to promise
        ([(35, 20)], 0),
    ],
)
def test_the_first_refusal_ends_a_plan(levels: list[Level], num: int) -> None:
    assert num_promised(room(), levels) == num


def test_what_the_prompt_holds_is_its_own_again() -> None:
    assert num_promised(room(), [(40, 60)], num_own=20) == 55
