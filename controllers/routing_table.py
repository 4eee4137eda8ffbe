"""Events in, overlap out: which worker holds how much of a prompt.

Owns every worker's epoch, seq, staleness and snapshot in progress, and maps names to the bits of
`block_index`. Knows no Kafka, clock or policy: `now` is an argument, cost is placement's.

1. The table never guesses. A hole in seq, a `lost`, an epoch not seen from its start, a torn
   snapshot, a block with two parents or more blocks than the worker can hold make it stale.
2. A stale worker holds no blocks here and scores none until its next complete snapshot; its loads
   are still read. Another block size or hash scheme never heals: the reason names both values.
3. Older epoch or seen seq: ignored. Newer epoch: the old state is forgotten first.
4. A snapshot replaces the worker's blocks when its last part arrives. Parts come in order; changes
   that arrive between them are applied at once and once more on top of the snapshot.
5. A batch changes all or nothing: what is malformed raises EventError before anything changes.
6. One thread applies. `overlap` may run in others without a lock: a worker's depth is then from
   before, during or after a batch of that worker, and only its split by medium can be off by what
   a batch of another worker moves at that moment. Everything else needs the caller's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controllers.block_index import BlockIndex
from controllers.blocks import HASH_SCHEME
from controllers.event_ops import ClassTable, operations
from controllers.events import EventBatch, WorkerDown
from controllers.runs import BlockClass
from controllers.worker_state import Applied, Outcome, Overlap, WorkerState
from controllers.worker_updates import WorkerUpdates

MAX_DEPARTED = 4096
MAX_NAMES = 4096


class HeldBlock(NamedTuple):
    """One block on one worker, for people to look at."""

    parent: int | None
    is_attached: bool
    block_class: BlockClass


class RoutingTable:
    """Every worker's blocks. `hash_scheme` is what workers must name in `salt_id`."""

    def __init__(self, block_size: int, hash_scheme: str = HASH_SCHEME) -> None:
        self.block_size = block_size
        self.hash_scheme = hash_scheme
        self.workers: dict[str, WorkerState] = {}
        self._index = BlockIndex()
        self._updates = WorkerUpdates(self._index, block_size, hash_scheme)
        self._classes = ClassTable()
        self._bit_to_worker: dict[int, str] = {}
        self._mask_to_workers: dict[int, tuple[str, ...]] = {}
        self._silent = 0  # bits
        self._departed: dict[str, int] = {}  # worker -> epoch of its worker_down

    def overlap(self, hashes: Sequence[int]) -> dict[str, Overlap]:
        """Leading blocks of the prompt on each worker; workers that score none are left out.

        `hashes` as from block_hashes, or a uint64 array. A few microseconds; see bench/table.py.
        """
        found: dict[str, Overlap] = {}
        depths = self._index.depths(hashes)
        for mask, depth in depths:
            overlap = Overlap(depth, depth, 0, 0)
            found.update(dict.fromkeys(self._workers_in(mask & ~self._silent), overlap))
        if depths and self._index.off_gpu:
            self._split_media(found, hashes, depths[-1][1])
        return found

    def apply(self, batch: EventBatch, now: float | None = None) -> Applied:
        """Take one record in. Raises EventError, and changes nothing, if it is malformed.

        `now` in seconds is when it was heard; None: the batch's own time.
        """
        todo = operations(batch, self._classes)
        state = self.workers.get(batch.worker)
        ignored = self._why_ignored(batch, state)
        if ignored is not None:
            return Applied(outcome=ignored, is_stale=self.is_stale(batch.worker))
        if state is not None and batch.epoch > state.epoch:
            self._remove(state)
            state = None
        old_reason = state.stale_reason if state else None
        if state is None:
            state = self._new_state(batch)
        num_missing = batch.seq - state.seq - 1
        self._hear(state, batch, now)
        if num_missing:
            state.num_gaps += num_missing
            self._updates.go_stale(state, f"{num_missing} batches missing before seq {batch.seq}")
        self._updates.check_block_size(state)
        applied = Applied(num_missing=num_missing)
        for operation in todo:
            if isinstance(operation, WorkerDown):
                self._depart(state)
                break
            self._updates.operate(state, operation, applied)
        self._updates.check_bound(state)
        if state.stale_reason != old_reason:
            applied.went_stale = state.stale_reason
        applied.is_stale = self.is_stale(batch.worker)
        return applied

    def forget(self, worker: str) -> None:
        """The worker is gone. If it speaks again it starts as unknown."""
        state = self.workers.get(worker)
        if state is not None:
            self._remove(state)

    def mark_silent(self, now: float, timeout_s: float) -> list[str]:
        """Workers not heard for `timeout_s` score no overlap until they are heard again.

        Returns those that just fell silent. Their blocks stay: no batch of theirs is missing.
        """
        fell_silent = []
        for state in self.workers.values():
            if not state.is_silent and now - state.heard_at > timeout_s:
                state.is_silent = True
                self._silent |= state.holder.bit
                fell_silent.append(state.worker)
        return fell_silent

    def is_stale(self, worker: str) -> bool:
        """Whether it can score no overlap: unknown, stale or silent."""
        state = self.workers.get(worker)
        return state is None or state.is_stale or state.is_silent

    def num_blocks(self) -> int:
        """Different blocks held by anybody."""
        return len(self._index)

    def blocks_of(self, worker: str) -> dict[int, HeldBlock]:
        """Every block of one worker. O(its blocks): for debugging and reports."""
        state = self.workers.get(worker)
        contents = self._index.contents(state.holder) if state else iter(())
        return {h: HeldBlock(before, attached, kind) for h, before, attached, kind in contents}

    def fingerprint(self, worker: str) -> int:
        """Equal for equal sets of attached blocks, in any process. 0 for none. O(its blocks)."""
        state = self.workers.get(worker)
        return self._index.fingerprint(state.holder) if state else 0

    def _why_ignored(self, batch: EventBatch, state: WorkerState | None) -> Outcome | None:
        if batch.epoch <= self._departed.get(batch.worker, -1):
            return Outcome.DEPARTED
        if state is None or batch.epoch > state.epoch:
            return None
        if batch.epoch < state.epoch:
            return Outcome.OLD_EPOCH
        return Outcome.DUPLICATE if batch.seq <= state.seq else None

    def _new_state(self, batch: EventBatch) -> WorkerState:
        holder = self._index.new_holder()
        state = WorkerState(
            worker=batch.worker,
            replica=batch.replica,
            dp_rank=batch.dp_rank,
            model=batch.model,
            epoch=batch.epoch,
            block_size=batch.block_size,
            seq=batch.seq - 1,
            stale_reason=f"no snapshot yet, first heard at seq {batch.seq}",
            holder=holder,
        )
        self._departed.pop(batch.worker, None)
        self.workers[batch.worker] = state
        self._bit_to_worker[holder.bit] = batch.worker
        self._mask_to_workers = {}  # a reader may have met the bit before it had a name
        return state

    def _hear(self, state: WorkerState, batch: EventBatch, now: float | None) -> None:
        state.seq = batch.seq
        state.block_size = batch.block_size
        state.last_ts_ms = batch.ts_ms
        state.heard_at = batch.ts_ms / 1e3 if now is None else now
        state.is_silent = False
        self._silent &= ~state.holder.bit

    def _depart(self, state: WorkerState) -> None:
        self._remove(state)
        self._departed[state.worker] = state.epoch
        if len(self._departed) > MAX_DEPARTED:
            del self._departed[next(iter(self._departed))]

    def _remove(self, state: WorkerState) -> None:
        del self.workers[state.worker]
        del self._bit_to_worker[state.holder.bit]
        self._index.free_holder(state.holder)
        self._silent &= ~state.holder.bit
        self._mask_to_workers = {}  # a new dict: a reader may still fill the old one

    def _workers_in(self, mask: int) -> tuple[str, ...]:
        known = self._mask_to_workers
        names = known.get(mask)
        if names is None:
            names = tuple(name for bit, name in self._bit_to_worker.copy().items() if bit & mask)
            if len(known) < MAX_NAMES:
                known[mask] = names
        return names

    def _split_media(self, found: dict[str, Overlap], hashes: Sequence[int], depth: int) -> None:
        """Tell blocks on other media from those on the gpu."""
        for bit, classes in self._index.media(hashes, depth):
            worker = self._bit_to_worker.get(bit, "")
            old = found.get(worker)
            if old is not None:
                media = [block_class.medium for block_class in classes]
                num_host = min(media.count("host"), old.num_gpu)
                num_disk = min(media.count("disk"), old.num_gpu - num_host)
                found[worker] = Overlap(
                    old.num_blocks,
                    old.num_gpu - num_host - num_disk,
                    old.num_host + num_host,
                    old.num_disk + num_disk,
                )
