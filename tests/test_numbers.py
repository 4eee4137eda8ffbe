"""Plain numbers come out as the elements of an array do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from controllers.numbers import (
    Numbers,
    above,
    at_least,
    is_positive,
    larger,
    largest,
    not_negative,
    rounded_down,
    rounded_up,
    smaller,
    smallest,
    where_positive,
)

VALUES = [-1.5, 0.0, 0.4, 1.0, 7.25]
FUNCTIONS: dict[str, Callable[[Numbers], Numbers]] = {
    "at_least": lambda x: at_least(0.5, x),
    "not_negative": not_negative,
    "is_positive": is_positive,
    "above": lambda x: above(0.4, x),
    "larger": lambda x: larger(x, 2.0 - x),
    "smaller": lambda x: smaller(x, 2.0 - x),
    "rounded_down": rounded_down,
    "rounded_up": rounded_up,
    "where_positive": lambda x: where_positive(x, x + 1.0, -3.0),
}
EXPECTED = {
    "at_least": [0.5, 0.5, 0.5, 1.0, 7.25],
    "not_negative": [0.0, 0.0, 0.4, 1.0, 7.25],
    "is_positive": [0.0, 0.0, 1.0, 1.0, 1.0],
    "above": [0.0, 0.0, 0.0, 1.0, 1.0],
    "larger": [3.5, 2.0, 1.6, 1.0, 7.25],
    "smaller": [-1.5, 0.0, 0.4, 1.0, -5.25],
    "rounded_down": [-2.0, 0.0, 0.0, 1.0, 7.0],
    "rounded_up": [-1.0, 0.0, 1.0, 1.0, 8.0],
    "where_positive": [-3.0, -3.0, 1.4, 2.0, 8.25],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_kinds_agree(name: str) -> None:
    function = FUNCTIONS[name]
    assert [function(value) for value in VALUES] == EXPECTED[name]
    assert np.asarray(function(np.array(VALUES))).tolist() == EXPECTED[name]


def test_the_largest_and_the_smallest_of_any_shape() -> None:
    assert largest(3.0) == smallest(3.0) == 3.0
    assert smallest(np.array([[4.0], [1.0]])) == 1.0
    assert largest(np.array([1.0, 4.0, 2.0])) == 4.0
    assert largest(np.array([[1.0], [9.0]])) == 9.0
