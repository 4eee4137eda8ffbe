"""Keeps several routers from the same choice in the same moment.

Routers that see the same state would all send to the worker that looks best, and learn of each
other a moment later. So each looks at the workers in turn from a place of its own: those further
on cost a little more. Knows neither loads nor requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controllers.numbers import Floats

# Of a full iteration, for each step around the workers (20 of 169 ms, by simulation).
STEP_SHARE = 0.12


def stagger_ms(
    workers: Sequence[str], place: int, num_routers: int, full_iteration_ms: float
) -> Floats:
    """By row of the books: what each worker costs more, for the router at `place` of `num_routers`,
    going around the workers by name."""
    num = len(workers)
    order = np.argsort(np.array(workers))
    around = np.empty(num, np.intp)
    around[order] = np.arange(num)
    steps = (around - place * num // num_routers) % num
    return np.asarray(steps * (STEP_SHARE * full_iteration_ms), np.float64)
