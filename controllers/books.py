"""What is on each worker: own reservations exactly, what other routers tell, the rest as a mean.

One row per worker in parallel arrays, so that a decision is a handful of vector operations. Knows
neither cached blocks nor costs. Times are in ms since an arbitrary start. The arrays are for
reading: whatever is written is written here, so that `changed` tells where.

1. Own reservations count at once and exactly: unstarted prefill tokens, requests, blocks.
2. What other routers say they have there (`shared_`) is as good, a little late.
3. Of what load records show beyond that (`others_`) only a running mean counts: acting on the last
   record would send all routers to whichever worker looked idle a moment ago.
4. An impossible figure (negative, above the total, total 0, missing) is replaced by the fleet's
   mean and counted, so that its worker is neither favoured nor shunned.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from controllers.entries import START, Entries
from controllers.events import Load
from controllers.load_figures import is_count, sum_of_counts
from controllers.numbers import Floats, constant

BUSY_WINDOW_MS = 20_000.0  # memory of booked work, for the congestion price
MAX_BUSY = 0.95
_MAX_BUSY = constant(MAX_BUSY)
# Windows after which booked work is counted from another time, long before the factor underflows.
MAX_BOOKED_AGE = 30.0
OTHERS_GAIN = 0.1  # of a record that comes one second after the one before it


class Books:
    """Rows by worker; `row(worker)` is stable until a worker is forgotten. What the arrays mean
    says `Entries`. `changed`: rows with news since `steady_loads` looked at them, but for those of
    `prefill_end_ms`, `own_prefill_end_ms` and `booked_ms`. `smaller`: by what share of it each
    cache is smaller than the largest one; None: by nothing, or not known."""

    prefill_end_ms: Floats
    own_prefill_end_ms: Floats
    booked_ms: Floats
    prefill_tokens: Floats
    num_unstarted: Floats
    num_requests: Floats
    own_blocks: Floats
    shared_tokens: Floats
    shared_requests: Floats
    shared_blocks: Floats
    capacity_blocks: Floats
    speed: Floats
    others_prefill_tokens: Floats
    others_requests: Floats
    reported_blocks: Floats
    blocks_at_report: Floats
    reported_at_ms: Floats

    def __init__(self) -> None:
        self.workers: list[str] = []
        self.num_bad_figures = 0
        self.changed: set[int] = set()
        self._rows: dict[str, int] = {}
        self._booked_from_ms = 0.0
        self.smaller: Floats | None = None
        self._lay_out(np.zeros((len(START), 0)))

    def __len__(self) -> int:
        return len(self.workers)

    def __contains__(self, worker: object) -> bool:
        return worker in self._rows

    def row(self, worker: str) -> int | None:
        return self._rows.get(worker)

    def add(self, worker: str) -> int:
        """The worker's row, new or not."""
        known = self._rows.get(worker)
        if known is not None:
            return known
        row = self._rows[worker] = len(self.workers)
        self.workers.append(worker)
        self.changed.add(row)
        self._lay_out(np.column_stack((self._values, np.array(START))))
        return row

    def forget(self, worker: str) -> None:
        row = self._rows.pop(worker, None)
        if row is None:
            return
        del self.workers[row]
        self._lay_out(np.delete(self._values, row, axis=1))
        self._rows = {name: i for i, name in enumerate(self.workers)}
        self.changed = set(self._rows.values())

    def at(self, row: int) -> Entries:
        """Of one worker, as numbers."""
        return Entries(*self._values[:, row].tolist())

    def set_capacity(self, row: int, num_blocks: float) -> None:
        self._put_capacity(row, num_blocks)
        self.changed.add(row)

    def set_speed(self, row: int, speed: float) -> None:
        self.speed[row] = speed
        self.changed.add(row)

    def book(self, row: int, tokens: float, blocks: int, service_ms: float, now_ms: float) -> None:
        """A request was sent."""
        self.prefill_tokens[row] += tokens
        self.num_unstarted[row] += 1
        self.num_requests[row] += 1
        self.own_blocks[row] += blocks
        self.changed.add(row)
        for ends_ms in (self.prefill_end_ms, self.own_prefill_end_ms):
            ends_ms[row] = max(ends_ms[row], now_ms) + service_ms
        self.charge(row, service_ms, now_ms)

    def share(
        self, row: int, tokens: float, requests: float, blocks: float, service_ms: float,
        now_ms: float,
    ) -> None:  # fmt: skip
        """Other routers have so much there now, and have booked so much service since."""
        self.shared_tokens[row] = tokens
        self.shared_requests[row] = requests
        self.shared_blocks[row] = blocks
        self.changed.add(row)
        self.charge(row, service_ms, now_ms)

    def charge(self, row: int, service_ms: float, now_ms: float) -> None:
        """So much service was booked; below 0: so much of it was not needed."""
        if now_ms - self._booked_from_ms > MAX_BOOKED_AGE * BUSY_WINDOW_MS:
            self.booked_ms[:] = self.booked(now_ms)
            self._booked_from_ms = now_ms
        booked_ms = float(self.booked_ms[row]) + service_ms / self._decay(now_ms)
        self.booked_ms[row] = max(0.0, booked_ms)

    def start(self, row: int, tokens: float) -> None:
        """Its first token came, or it never will."""
        self.prefill_tokens[row] -= tokens
        self.num_unstarted[row] -= 1
        self.changed.add(row)

    def end(self, row: int, blocks: int) -> None:
        """It left the worker."""
        self.num_requests[row] -= 1
        self.own_blocks[row] -= blocks
        self.changed.add(row)

    def is_free(self) -> npt.NDArray[np.bool_]:
        """Where nobody has a request, as far as is known. The mean of what is not told stays above
        0 for seconds."""
        is_known_free = (self.num_requests == 0) & (self.shared_requests == 0)
        return np.asarray(is_known_free & (self.others_requests < 0.5))

    def is_free_at(self, row: int) -> bool:
        """The same of one worker, which takes a tenth of the time."""
        return bool(
            self.num_requests[row] == 0
            and self.shared_requests[row] == 0
            and self.others_requests[row] < 0.5
        )

    def busy(self, now_ms: float) -> Floats:
        """Share of the last 20 s that booked work takes, at most 0.95."""
        return np.minimum(_MAX_BUSY, self.booked_ms * (self._decay(now_ms) / BUSY_WINDOW_MS))

    def booked(self, now_ms: float) -> Floats:
        """Service ms booked lately, decaying with a time constant of 20 s."""
        return self.booked_ms * self._decay(now_ms)

    def active_blocks(self) -> Floats:
        return np.asarray(self.entries.active_blocks())

    def report(self, row: int, load: Load, now_ms: float) -> None:
        """Take in a load record."""
        self.changed.add(row)
        self._take_capacity(row, load.total_blocks.get("gpu"))
        self._take_blocks(row, load.used_blocks.get("gpu"))
        gain = self._gain(row, now_ms)
        self.reported_at_ms[row] = now_ms
        known_tokens = self.prefill_tokens[row] + self.shared_tokens[row]
        known_requests = self.num_requests[row] + self.shared_requests[row]
        self._blend(self.others_prefill_tokens, row, gain, load.queued_prefill_tokens, known_tokens)
        num_requests = sum_of_counts(load.num_active, load.num_queued)
        self._blend(self.others_requests, row, gain, num_requests, known_requests)

    def _lay_out(self, values: Floats) -> None:
        """`values`: rows as Entries, columns by worker. The arrays are views of it."""
        self._values = values
        self.entries = Entries(*values)
        for name, of_all in self.entries._asdict().items():
            setattr(self, name, of_all)
        self.all_rows = np.arange(len(self.workers))
        self._compare_capacities()

    def _decay(self, now_ms: float) -> float:
        """One factor for all rows: what is booked later counts for more instead."""
        return math.exp(-max(0.0, now_ms - self._booked_from_ms) / BUSY_WINDOW_MS)

    def _take_capacity(self, row: int, total: object) -> None:
        if is_count(total) and float(total) > 0:
            self._put_capacity(row, float(total))
            return
        self.num_bad_figures += 1
        known = self.capacity_blocks[np.isfinite(self.capacity_blocks)]
        if math.isinf(self.capacity_blocks[row]) and len(known):
            self._put_capacity(row, float(known.mean()))

    def _put_capacity(self, row: int, num_blocks: float) -> None:
        if self.capacity_blocks[row] != num_blocks:
            self.capacity_blocks[row] = num_blocks
            self._compare_capacities()

    def _compare_capacities(self) -> None:
        largest = self.capacity_blocks.max(initial=0.0)
        is_alike = math.isinf(largest) or bool((self.capacity_blocks == largest).all())
        self.smaller = None if is_alike else 1.0 - self.capacity_blocks / largest

    def _take_blocks(self, row: int, used: object) -> None:
        if is_count(used) and float(used) <= self.capacity_blocks[row]:
            self.reported_blocks[row] = float(used)
        else:
            self.num_bad_figures += 1
            self.reported_blocks[row] = self._mean_of_rest(self.active_blocks(), row)
        self.blocks_at_report[row] = self.own_blocks[row] + self.shared_blocks[row]

    def _gain(self, row: int, now_ms: float) -> float:
        elapsed_s = (now_ms - self.reported_at_ms[row]) / 1000.0
        return 1.0 - float((1.0 - OTHERS_GAIN) ** max(0.0, elapsed_s))

    def _blend(self, means: Floats, row: int, gain: float, total: object, known: float) -> None:
        """Move the running mean of what is on the worker beyond what is known."""
        if is_count(total):
            sample = float(total) - known
        else:
            self.num_bad_figures += 1
            sample = self._mean_of_rest(means, row)
        means[row] += gain * (sample - means[row])

    def _mean_of_rest(self, values: Floats, row: int) -> float:
        """Over the other workers that have reported; the own value if there are none."""
        is_rest = np.isfinite(self.reported_at_ms)
        is_rest[row] = False
        return float(values[is_rest].mean()) if is_rest.any() else float(values[row])
