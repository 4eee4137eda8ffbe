"""What one operation does to one worker: blocks, snapshots, staleness.

Owns the laws inside one epoch of one worker. Knows no names, other workers, epochs or seq: those
are the routing table's.
"""

from __future__ import annotations

from controllers.block_index import BlockIndex
from controllers.event_ops import Operation, Part, Remove, Store, Update
from controllers.events import Cleared, Load, Lost, Snapshot, WorkerUp
from controllers.worker_state import (
    MIN_BLOCKS_BOUND,
    Applied,
    Change,
    PendingSnapshot,
    WorkerState,
    blocks_bound,
    clamped,
)


class WorkerUpdates:
    """Changes of one index for one block size and hash scheme."""

    def __init__(self, index: BlockIndex, block_size: int, hash_scheme: str) -> None:
        self._index = index
        self._block_size = block_size
        self._hash_scheme = hash_scheme

    def operate(self, state: WorkerState, operation: Operation, applied: Applied) -> None:
        """Apply one operation other than WorkerDown."""
        if isinstance(operation, (Store, Remove, Update, Cleared)):
            self._note_later(state, operation)
            if not state.is_stale:
                self._change(state, operation, applied)
        elif isinstance(operation, Load):
            state.load = clamped(operation)
            state.num_clamped_loads += state.load != operation
        elif isinstance(operation, Part):
            self._take_part(state, operation, applied)
        elif isinstance(operation, WorkerUp):
            self._start(state, operation)
        elif isinstance(operation, Lost):
            self.go_stale(state, f"the source lost events: {operation.reason}")

    def go_stale(self, state: WorkerState, reason: str) -> None:
        """Nothing is known of its blocks until a complete snapshot arrives."""
        state.num_stale += not state.is_stale
        state.stale_reason = reason
        state.pending = None
        self._index.drop_all(state.holder)

    def check_bound(self, state: WorkerState) -> None:
        """A worker cannot hold many more blocks than it has."""
        num_blocks = state.holder.num_blocks
        if num_blocks > MIN_BLOCKS_BOUND and num_blocks > blocks_bound(state.capacity):
            held = f"{num_blocks} blocks held, {sum(state.capacity.values())} exist"
            self.go_stale(state, f"removals must be missing: {held}")

    def check_block_size(self, state: WorkerState) -> None:
        """A worker of another block size is refused."""
        if state.block_size != self._block_size:
            theirs, ours = state.block_size, self._block_size
            self.go_stale(state, f"block size {theirs} of the worker is not {ours} of the table")

    def _change(self, state: WorkerState, operation: Change, applied: Applied) -> None:
        holder = state.holder
        if isinstance(operation, Store):
            if not self._index.store(holder, *operation):
                self.go_stale(state, f"a block after {operation.before} has another parent too")
            applied.num_stored += len(operation.hashes)
        elif isinstance(operation, Remove):
            applied.num_removed += self._index.remove(holder, operation.hashes)
        elif isinstance(operation, Update):
            self._index.update(holder, *operation)
        else:
            self._index.drop_all(holder)

    def _start(self, state: WorkerState, up: WorkerUp) -> None:
        """The cache is empty. Only the first record of an epoch proves that this is all."""
        self._index.drop_all(state.holder)
        state.pending = None
        state.capacity = dict(up.num_blocks)
        state.max_seq_len = up.max_seq_len
        state.executor, state.version = up.executor, up.version
        if self._accepts(state, up.salt_id) and state.seq == 0:
            state.stale_reason = None

    def _accepts(self, state: WorkerState, salt_id: str) -> bool:
        if salt_id != self._hash_scheme:
            ours = self._hash_scheme
            self.go_stale(
                state, f"hash scheme {salt_id!r} of the worker is not {ours!r} of the table"
            )
        return salt_id == self._hash_scheme and state.block_size == self._block_size

    def _take_part(self, state: WorkerState, part: Part, applied: Applied) -> None:
        header = part.header
        if header.part == 0:
            if state.pending is not None:
                self.go_stale(state, f"snapshot {state.pending.snapshot_id} was not finished")
            bound = blocks_bound(header.num_blocks)
            state.pending = PendingSnapshot(header.snapshot_id, header.num_parts, bound)
        pending = state.pending
        if pending is None or not pending.is_next(header):
            self.go_stale(state, f"snapshot {header.snapshot_id} is torn before part {header.part}")
            return
        pending.add(part.stores)
        if not pending.is_bounded():
            self.go_stale(state, f"snapshot {header.snapshot_id} is larger than the cache")
        elif pending.next_part == header.num_parts:
            self._install(state, header, pending, applied)

    def _install(
        self, state: WorkerState, header: Snapshot, pending: PendingSnapshot, applied: Applied
    ) -> None:
        state.pending = None
        if not self._accepts(state, header.salt_id):
            return
        was_stale = state.is_stale
        state.stale_reason = None
        state.num_snapshots += 1
        state.capacity = dict(header.num_blocks)
        state.max_seq_len = header.max_seq_len
        state.executor, state.version = header.executor, header.version
        self._index.keep_only(state.holder, pending.hashes())
        for operation in [*pending.stores, *pending.later]:
            if not state.is_stale:
                self._change(state, operation, Applied())
        applied.has_healed = was_stale and not state.is_stale

    def _note_later(self, state: WorkerState, operation: Change) -> None:
        if state.pending is not None:
            state.pending.later.append(operation)
            if not state.pending.is_bounded():
                self.go_stale(state, f"snapshot {state.pending.snapshot_id} does not end")
