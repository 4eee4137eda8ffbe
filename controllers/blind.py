"""Placement when nothing is known of any cache: rendezvous hashing, bounded by load.

Routers that have never talked to each other mostly agree on it, and a worker that comes or goes
moves only its own share. Conversations that went through this router stay where they went.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from controllers.numbers import Floats

NUM_LEADING_BLOCKS = 4  # what is hashed: long enough to differ, short enough to be shared
MAX_LOAD = 1.25  # of the mean; a worker above it is passed over
SLACK = 2.0  # requests above that, so that a few requests do not count as imbalance
MEMORY = 0.98  # of a placement, for each placement after it: about the last 50 count
MAX_SESSIONS = 65_536
MAX_LOOK_BACK = 512  # blocks

Rows = npt.NDArray[np.intp]


class BlindPlacement:
    """Remembers where prompts ended, so that their continuations follow, and where the last few
    requests went that nothing was known of."""

    def __init__(self) -> None:
        self._end_to_worker: OrderedDict[int, str] = OrderedDict()
        self._worker_to_recent: dict[str, float] = {}

    def remember(self, hashes: Sequence[int], worker: str, is_blind: bool) -> None:
        """A prompt with these blocks was sent there; `is_blind`: because `choose` said so."""
        if hashes:
            self._end_to_worker[hashes[-1]] = worker
            self._end_to_worker.move_to_end(hashes[-1])
        if len(self._end_to_worker) > MAX_SESSIONS:
            self._end_to_worker.popitem(last=False)
        if is_blind:
            faded = {w: MEMORY * recent for w, recent in self._worker_to_recent.items()}
            faded[worker] = faded.get(worker, 0.0) + 1.0
            self._worker_to_recent = {w: recent for w, recent in faded.items() if recent > 0.01}

    def choose(
        self,
        hashes: Sequence[int],
        rows: Rows,
        workers: Sequence[str],
        num_requests: Floats,
    ) -> int:
        """One of `rows`. `workers` and `num_requests` (in flight) are by row."""
        is_free = _is_bounded(num_requests[rows])
        free = rows[is_free] if is_free.any() else rows
        row = self._session_row(hashes, free, workers)
        if row is not None:
            return row
        recent = np.array([self._worker_to_recent.get(workers[i], 0.0) for i in free.tolist()])
        free = free[_is_bounded(recent)]
        leading = np.array(hashes[:NUM_LEADING_BLOCKS], np.uint64).tobytes()
        names = [workers[i].encode() for i in free.tolist()]
        weights = [xxhash.xxh3_64_intdigest(leading + name) for name in names]
        return int(free[weights.index(max(weights))])

    def _session_row(self, hashes: Sequence[int], rows: Rows, workers: Sequence[str]) -> int | None:
        for block_hash in reversed(hashes[-MAX_LOOK_BACK:]):
            worker = self._end_to_worker.get(block_hash)
            if worker is not None:
                return next((i for i in rows.tolist() if workers[i] == worker), None)
        return None


def _is_bounded(loads: Floats) -> npt.NDArray[np.bool_]:
    """The least loaded one always is."""
    bounded: npt.NDArray[np.bool_] = loads <= MAX_LOAD * loads.mean() + SLACK
    return bounded
