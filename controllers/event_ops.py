"""Events to operations: every check that one batch allows without knowing the state.

Owns what a well-formed batch is beyond its types. Knows no worker's state. `operations` raises or
returns everything, so a table that calls it first changes all or nothing.

1. Partial blocks are left out: they never count for routing and their removal finds nothing.
2. Equal block classes are one object, however many blocks have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from controllers.errors import EventError
from controllers.events import (
    MEDIUMS,
    Cleared,
    Event,
    EventBatch,
    Load,
    Lost,
    Removed,
    Snapshot,
    SnapshotBlocks,
    Stored,
    Updated,
    WorkerDown,
    WorkerUp,
    ints_of,
)
from controllers.runs import BlockClass

_MAX_CLASSES = 65_536


class Store(NamedTuple):
    """Full blocks in a row after `before` (None: the start)."""

    before: int | None
    hashes: list[int]
    classes: list[BlockClass]


class Remove(NamedTuple):
    """Blocks that left."""

    hashes: list[int]


class Update(NamedTuple):
    """Blocks with a new medium or retention priority; None: unchanged."""

    hashes: list[int]
    medium: str | None
    retention_priority: int | None


class Part(NamedTuple):
    """One part of a snapshot."""

    header: Snapshot
    stores: list[Store]


Operation: TypeAlias = (
    Store | Remove | Update | Part | WorkerUp | Cleared | Load | Lost | WorkerDown
)


class ClassTable(dict[tuple[str, int, str], BlockClass]):
    """(medium, retention_priority, tier) -> the one BlockClass of these, checked when first met."""

    def __missing__(self, key: tuple[str, int, str]) -> BlockClass:
        medium, retention_priority, tier = key
        check_medium(medium)
        check_retention_priority(retention_priority)
        if len(self) >= _MAX_CLASSES:
            self.clear()
        return self.setdefault(key, BlockClass(medium, retention_priority, tier))


def operations(batch: EventBatch, classes: ClassTable) -> list[Operation]:
    """The batch's events, checked and ready to apply. Raises EventError naming worker and event."""
    done: list[Operation] = []
    for index, event in enumerate(batch.events):
        try:
            done.append(_operation(event, batch.block_size, classes))
        except EventError as error:
            place = f"worker {batch.worker} epoch {batch.epoch} seq {batch.seq} event {index}"
            raise EventError(f"{place}: {error}") from error
    return done


def check_medium(medium: str) -> None:
    """Raises EventError for a medium that nobody knows."""
    if medium not in MEDIUMS:
        raise EventError(f"medium is {medium!r}, must be one of {', '.join(MEDIUMS)}")


def check_retention_priority(retention_priority: int) -> None:
    """Raises EventError outside 0-100."""
    if not 0 <= retention_priority <= 100:
        raise EventError(f"retention_priority is {retention_priority}, must be 0 ... 100")


def _operation(event: Event, block_size: int, classes: ClassTable) -> Operation:
    if isinstance(event, Stored):
        return _store(event, block_size, classes)
    if isinstance(event, Removed):
        return Remove(ints_of(event.hashes))
    if isinstance(event, Updated):
        return _update(event)
    if isinstance(event, Snapshot):
        return _part(event, block_size, classes)
    return event


def _store(event: Stored, block_size: int, classes: ClassTable) -> Store:
    chain = ints_of(event.hashes if event.parent is None else [event.parent, *event.hashes])
    if len(set(chain)) < len(chain):
        raise EventError(f"a block comes twice in the prefix after {event.parent}")
    before = None if event.parent is None else chain.pop(0)
    priorities, num_tokens = event.retention_priority, event.num_tokens
    if not len(chain) == len(num_tokens) == len(priorities):
        _check_lengths(chain, num_tokens=num_tokens, retention_priority=priorities)
    if num_tokens.count(block_size) < len(chain):
        _check_num_tokens(num_tokens[:-1], block_size, block_size)
        _check_num_tokens(num_tokens[-1:], 1, block_size - 1)
        del chain[-1]
    if chain and priorities.count(priorities[0]) == len(priorities):
        same = classes[event.medium, priorities[0], event.tier]
        return Store(before, chain, [same] * len(chain))
    kinds = [classes[event.medium, priority, event.tier] for priority in priorities]
    return Store(before, chain, kinds[: len(chain)])


def _update(event: Updated) -> Update:
    if event.medium is not None:
        check_medium(event.medium)
    if event.retention_priority is not None:
        check_retention_priority(event.retention_priority)
    return Update(ints_of(event.hashes), event.medium, event.retention_priority)


def _part(event: Snapshot, block_size: int, classes: ClassTable) -> Part:
    if not 0 <= event.part < event.num_parts:
        raise EventError(f"snapshot part {event.part} of {event.num_parts} parts")
    blocks = event.blocks
    hashes = ints_of(blocks.hashes)
    _check_lengths(
        hashes,
        parents=blocks.parents,
        mediums=blocks.mediums,
        retention_priority=blocks.retention_priority,
        tiers=blocks.tiers,
        num_tokens=blocks.num_tokens,
    )
    _check_num_tokens(blocks.num_tokens, 1, block_size)
    if len(set(hashes)) < len(hashes):
        raise EventError("a block comes twice in a snapshot part")
    keys = zip(blocks.mediums, blocks.retention_priority, blocks.tiers, strict=True)
    kinds = [classes[key] for key in keys]
    return Part(event, _chains(blocks, hashes, kinds, block_size))


def _chains(
    blocks: SnapshotBlocks, hashes: list[int], kinds: list[BlockClass], block_size: int
) -> list[Store]:
    """Full blocks that directly follow their parent become one Store."""
    stores: list[Store] = []
    previous = None
    for index, parent in enumerate(blocks.parents):
        if blocks.num_tokens[index] < block_size:
            continue
        if parent == blocks.hashes[index]:
            raise EventError(f"block {parent} is its own parent")
        if previous is None or parent != previous:
            stores.append(Store(ints_of([parent])[0] if parent else None, [], []))
        stores[-1].hashes.append(hashes[index])
        stores[-1].classes.append(kinds[index])
        previous = blocks.hashes[index]
    return stores


def _check_lengths(hashes: list[int], **arrays: Sequence[object]) -> None:
    for name, array in arrays.items():
        if len(array) != len(hashes):
            raise EventError(f"{name} has {len(array)} values for {len(hashes)} hashes")


def _check_num_tokens(num_tokens: list[int], least: int, most: int) -> None:
    for num in num_tokens:
        if not least <= num <= most:
            raise EventError(f"num_tokens is {num}, must be {least} ... {most} here")
