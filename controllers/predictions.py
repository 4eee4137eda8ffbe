"""Blocks that a worker is expected to hold soon, because a request with them was just sent there.

They bridge the time until the worker's own events arrive. Knows neither the table nor costs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class _Sent:
    """Blocks sent to a worker within one generation."""

    __slots__ = ("_runs", "_until_s")

    def __init__(self) -> None:
        self._runs: list[tuple[Sequence[int], float]] = []  # not yet in the map
        self._until_s: dict[int, float] = {}

    def add(self, run: Sequence[int], until_s: float) -> None:
        self._runs.append((run, until_s))

    @property
    def until_s(self) -> dict[int, float]:
        """Block hash -> time until which it is expected. Filled when somebody asks: most blocks
        expire before."""
        if self._runs:
            for run, until_s in self._runs:
                self._until_s.update(dict.fromkeys(run, until_s))
            self._runs = []
        return self._until_s

    def __bool__(self) -> bool:
        return bool(self._runs or self._until_s)


class _Expected:
    """Of one worker in one epoch: what was sent lately and what was sent before that."""

    __slots__ = ("epoch", "new", "old")

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.new = _Sent()
        self.old = _Sent()


class Predictions:
    """Memory is bounded by the blocks sent within twice `ttl_s`: they are dropped a generation at
    a time, when all of it has expired, which costs nothing by block."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self._turns_at_s = 0.0  # the next generation begins
        self._workers: dict[str, _Expected] = {}
        self._new_firsts: dict[int, dict[str, None]] = {}  # first block -> workers
        self._old_firsts: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        """Blocks kept, over all workers."""
        return sum(len(e.new.until_s) + len(e.old.until_s) for e in self._workers.values())

    def add(
        self, worker: str, epoch: int | None, hashes: Sequence[int], depth: int, now: float
    ) -> None:
        """Expect the prompt's blocks from `depth` on until now + ttl_s; those before are there.

        An epoch other than the known one (None: unknown) means that the engine was restarted: what
        was expected before is gone.
        """
        if depth >= len(hashes):
            return
        self.sweep(now)
        expected = self._workers.get(worker)
        if expected is None or expected.epoch != epoch:
            expected = self._workers[worker] = _Expected(epoch)
        run = hashes[depth:]
        expected.new.add(run, now + self.ttl_s)
        if depth == 0:
            self._new_firsts.setdefault(run[0], {})[worker] = None

    def may_start_with(self, first: int) -> Collection[str]:
        """Workers that may be expected to hold a prompt's first block."""
        old, new = self._old_firsts.get(first), self._new_firsts.get(first)
        return {**old, **new} if old and new else old or new or ()

    def extend(
        self, worker: str, epoch: int | None, hashes: Sequence[int], depth: int, now: float
    ) -> int:
        """Leading blocks of `hashes` on the worker, if the first `depth` are there already."""
        expected = self._workers.get(worker)
        if expected is None or expected.epoch != epoch:
            return depth
        until_new, until_old = expected.new.until_s.get, expected.old.until_s.get
        while depth < len(hashes):
            block_hash = hashes[depth]
            if until_new(block_hash, now) <= now and until_old(block_hash, now) <= now:
                break
            depth += 1
        return depth

    def forget(self, worker: str) -> None:
        """The worker is gone."""
        self._workers.pop(worker, None)

    def sweep(self, now: float) -> None:
        """Drop a generation that has expired; every `ttl_s` a new one begins."""
        if now < self._turns_at_s:
            return
        is_all_over = now >= self._turns_at_s + self.ttl_s
        self._turns_at_s = now + self.ttl_s
        self._old_firsts, self._new_firsts = ({} if is_all_over else self._new_firsts), {}
        for worker, expected in list(self._workers.items()):
            expected.old, expected.new = (_Sent() if is_all_over else expected.new), _Sent()
            if not expected.old:
                del self._workers[worker]
