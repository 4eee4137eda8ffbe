"""Arithmetic on plain numbers as well as on arrays.

NumPy takes a microsecond for what the language does with a plain number in a tenth of that, and a
decision asks a hundred times. Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = float | Floats


def at_least(least: float, values: Numbers) -> Numbers:
    return max(least, values) if isinstance(values, float) else np.maximum(least, values)


def at_most(most: float, values: Numbers) -> Numbers:
    return min(most, values) if isinstance(values, float) else np.minimum(most, values)


def above(limit: float, values: Numbers) -> Numbers:
    """1 where it is, else 0."""
    if isinstance(values, float):
        return 1.0 if values > limit else 0.0
    return (values > limit).astype(np.float64)


def larger(first: Numbers, second: Numbers) -> Numbers:
    """Of each pair."""
    if isinstance(first, float) and isinstance(second, float):
        return max(first, second)
    return np.maximum(first, second)


def rounded_down(values: Numbers) -> Numbers:
    return float(math.floor(values)) if isinstance(values, float) else np.floor(values)


def rounded_up(values: Numbers) -> Numbers:
    return float(math.ceil(values)) if isinstance(values, float) else np.ceil(values)


def where_positive(values: Numbers, then: Numbers, otherwise: Numbers) -> Numbers:
    """`then` where `values` are above 0."""
    if isinstance(values, float):
        return then if values > 0.0 else otherwise
    return np.where(values > 0.0, then, otherwise)


def largest(values: Numbers) -> float:
    """On few values a tenth of what max() takes."""
    return values if isinstance(values, float) else float(values.flat[values.argmax()])
