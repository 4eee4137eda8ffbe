"""start + linear x + square x^2 for x >= 0, as the time of work: more never takes less.

On plain numbers as well as on arrays. Knows nothing of what x is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from controllers.numbers import Numbers, at_least, constant, not_negative, smaller

FLOOR_MS = 0.1


class _Terms(NamedTuple):
    start: Numbers
    linear: Numbers
    square: Numbers
    most: Numbers  # x beyond which it is flat


class Curve:
    """At least FLOOR_MS. Flat from the top of the parabola on, from `most` on, and where the
    parabola is below its start. What clips nothing is left out."""

    def __init__(self, start: float, linear: float, square: float, most: float = math.inf) -> None:
        if square < 0.0:
            most = min(most, max(0.0, linear) / (-2.0 * square))
        self._numbers = _Terms(start, linear, square, most)
        self._arrays = _Terms(*[constant(v) for v in (start, linear, square, most)])
        self._has_end = most < math.inf
        self._may_fall = linear < 0.0
        self._may_be_below = start < FLOOR_MS

    def at(self, x: Numbers) -> Numbers:
        start, linear, square, most = self._numbers if isinstance(x, float) else self._arrays
        if self._has_end:
            x = smaller(most, x)
        slope = x * square + linear
        if self._may_fall:
            slope = not_negative(slope)
        ms = x * slope + start
        return at_least(FLOOR_MS, ms) if self._may_be_below else ms
