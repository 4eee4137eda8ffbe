"""Arithmetic on plain numbers as well as on arrays.

NumPy takes half a microsecond for what the language does with a plain number in a tenth of that,
and a decision asks a hundred times; as much again if an array meets a plain number, which has to
be made an array first. So constants that meet arrays are arrays already (`constant`). Knows
nothing of what the numbers mean.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = float | Floats


def constant(value: float) -> Floats:
    """To be used with arrays; with plain numbers it is slower than the number itself."""
    return np.array(value, np.float64)


_ZERO = constant(0.0)


def at_least(least: float, values: Numbers) -> Numbers:
    if isinstance(values, float):
        return values if values > least else least  # max() takes twice as long
    return np.maximum(least, values)


def not_negative(values: Numbers) -> Numbers:
    if isinstance(values, float):
        return values if values > 0.0 else 0.0
    return np.maximum(_ZERO, values)


def is_positive(values: Numbers) -> Numbers:
    """1 where it is, else 0."""
    if isinstance(values, float):
        return 1.0 if values > 0.0 else 0.0
    return (values > _ZERO).astype(np.float64)


def above(limit: float, values: Numbers) -> Numbers:
    """1 where it is, else 0."""
    if isinstance(values, float):
        return 1.0 if values > limit else 0.0
    return (values > limit).astype(np.float64)


def larger(first: Numbers, second: Numbers) -> Numbers:
    """Of each pair."""
    if isinstance(first, float) and isinstance(second, float):
        return second if second > first else first
    return np.maximum(first, second)


def smaller(first: Numbers, second: Numbers) -> Numbers:
    if isinstance(first, float) and isinstance(second, float):
        return second if second < first else first
    return np.minimum(first, second)


def rounded_down(values: Numbers) -> Numbers:
    return float(math.floor(values)) if isinstance(values, float) else np.floor(values)


def rounded_up(values: Numbers) -> Numbers:
    return float(math.ceil(values)) if isinstance(values, float) else np.ceil(values)


def where_positive(values: Numbers, then: Numbers, otherwise: Numbers) -> Numbers:
    """`then` where `values` are above 0."""
    if isinstance(values, float):
        return then if values > 0.0 else otherwise
    return np.where(values > _ZERO, then, otherwise)


def largest(values: Numbers) -> float:
    """On few values a tenth of what max() takes."""
    return values if isinstance(values, float) else values.item(values.argmax())


def smallest(values: Numbers) -> float:
    return values if isinstance(values, float) else values.item(values.argmin())
