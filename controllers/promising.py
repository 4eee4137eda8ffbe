"""What the runs of one prompt are promised on one worker.

Two passes. Leaf to root: what each run is worth, never less than what lies behind it. Root to leaf:
promises while there is room at their level; from the first refusal on, nothing (`num_promised`).
Knows what `survival` learned, not how.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from controllers.grants import Grant, Room
from controllers.promises import (
    DEFAULT_PROMISE,
    DEFAULT_RETENTION_PRIORITY,
    MAX_RETENTION_PRIORITY,
    Promise,
)
from controllers.prompt_use import PromptUse, Stretch
from controllers.retention_worker import RetentionWorker
from controllers.survival import Survival, last_age_s
from controllers.touch_tree import TouchedRun

LOWEST_PROMISED = 37
# Coarse on purpose: within a level the engine evicts the oldest, which is better than our guess.
LEVELS_PER_DECADE = 2.0
DECADES = 4.5  # of hits per block-second below 1 that are told apart
AS_LRU = 60  # above every level that comes of a worth
# While a run is worth so many times what it was at first, it is about to be used.
GUARD_FACTOR = 1.1
WORTHLESS = 0.1  # of the price
# A retention priority, and the end of the leading blocks that are wanted at it, but for those that
# levels before it have.
Level: TypeAlias = tuple[int, int]
NOTHING = Promise(0, math.inf)
SEVERAL_TENANTS = ""  # another one for each of them, so none can lower it


class Want(NamedTuple):
    """What a run should be promised. `floor`: what other tenants were, of it or behind it."""

    retention_priority: int
    duration_s: float
    guard_s: float
    floor: Promise | None


class Promised(NamedTuple):
    """`num_refused`: blocks that were worth a promise, but there was no room."""

    stretches: list[Stretch]
    num_refused: int


def promise(
    worker: RetentionWorker,
    survival: Survival,
    use: PromptUse,
    path: Sequence[TouchedRun],
    boost: float,
    now: float,
) -> Promised:
    """Promises for the prompt's runs, root first; what they held before is taken back. `boost`:
    what floors make a block's worth be taken times."""
    worker.room.expire(now)
    wants = _wants(worker, survival, use, path, boost, now)
    owns = [_promise_of(want) for want in wants]
    num_left = num_promised(worker.room, _levels(path, wants, owns)) if use.is_kept else 0
    stretches: list[Stretch] = []
    refused = None if use.is_kept else NOTHING
    num_refused = 0
    for run, want, own in zip(path, wants, owns, strict=True):
        num = len(run.hashes)
        num_given = min(num, num_left)
        num_left -= num_given
        if num_given < num:
            num_refused += num - num_given
            refused = _refusal(survival.index[run.class_id][0], worker.price, refused)
        rest = own if refused is None else _join(refused, want.floor)
        _book(worker, use, run, want, own if num_given else rest, num_given, boost)
        if num_given:
            stretches.append(Stretch(num_given, own))
        if num_given < num:
            stretches.append(Stretch(num - num_given, rest))
    return Promised(stretches, num_refused)


def num_promised(room: Room, levels: Sequence[Level], num_own: int = 0) -> int:
    """Leading blocks that there is room to promise: the first refusal ends a plan. `levels` fall,
    root first. `num_own`: blocks whose room is the prompt's already."""
    num = 0
    for retention_priority, end in levels:
        if retention_priority <= DEFAULT_RETENTION_PRIORITY:
            break
        num = max(num, min(end, room.left(retention_priority) + num_own))
        if num < end:
            break
    return num


def _levels(
    path: Sequence[TouchedRun], wants: Sequence[Want], owns: Sequence[Promise]
) -> list[Level]:
    """What other tenants were promised raises a level, and is no reason for one."""
    levels: list[Level] = []
    end = 0
    for run, want, own in zip(path, wants, owns, strict=True):
        if want.retention_priority <= DEFAULT_RETENTION_PRIORITY:
            break
        end += len(run.hashes)
        if levels and levels[-1][0] == own.retention_priority:
            levels.pop()
        levels.append((own.retention_priority, end))
    return levels


def _wants(
    worker: RetentionWorker,
    survival: Survival,
    use: PromptUse,
    path: Sequence[TouchedRun],
    boost: float,
    now: float,
) -> list[Want]:
    level, duration_s, guard_s = 0, 0.0, 0.0
    floor: Promise | None = None
    wants: list[Want] = []
    num_behind = 0  # kids that are the prompt's own
    for run in reversed(path):
        own_level, own_s, own_guard_s = _own(worker, survival, run.class_id, boost)
        level = max(level, min(use.ceiling, own_level))
        duration_s, guard_s = max(duration_s, own_s), max(guard_s, own_guard_s)
        grant = run.grants.get(worker.name)
        if grant is not None:
            worker.room.free(grant, len(run.hashes))
            left = grant.left(now)
            if left is not None and grant.tenant != use.tenant:
                floor = _join(left, floor)
            elif left is not None and len(run.kids) > num_behind:
                level = max(level, min(use.ceiling, left.retention_priority))
                duration_s = max(duration_s, left.duration_s)
        wants.append(Want(level, duration_s, guard_s, floor))
        num_behind = 1
    wants.reverse()
    return wants


def _own(
    worker: RetentionWorker, survival: Survival, class_id: int, boost: float
) -> tuple[int, float, float]:
    """Retention priority, duration and guard of a run for itself.

    While the cache hits less than LRU would, it is made one: all at one level, above whatever was
    promised before and would otherwise outlive what comes now.
    """
    residence_s = worker.shadow.residence_s
    if worker.floors.is_behind:
        return AS_LRU, max(1.0, residence_s), 0.0
    reach, worth = survival.reach[class_id], survival.index[class_id][0]
    duration_s = last_age_s(reach, min(worker.price, worth))
    if boost > 1.0:  # to hit as often as LRU, as long as LRU is enough
        lifted_s = last_age_s(reach, min(worker.price / boost, worth))
        duration_s = max(duration_s, min(lifted_s, residence_s))
    return level_of(worth * boost), duration_s, last_age_s(reach, worth * GUARD_FACTOR)


def _book(
    worker: RetentionWorker,
    use: PromptUse,
    run: TouchedRun,
    want: Want,
    given: Promise,
    num_given: int,
    boost: float,
) -> None:
    """Note what the run is promised now, if anything."""
    if given.retention_priority <= DEFAULT_RETENTION_PRIORITY:
        run.grants.pop(worker.name, None)
        return
    tenant = use.tenant if want.floor is None else SEVERAL_TENANTS
    grant = Grant(given, want.guard_s, tenant, boost)
    grant.num_spare = len(run.hashes) - num_given
    run.grants[worker.name] = grant
    worker.room.hold(grant, num_given)


def _refusal(worth: float, price: float, before: Promise | None) -> Promise:
    is_worthless = worth <= WORTHLESS * price
    return NOTHING if is_worthless or before == NOTHING else DEFAULT_PROMISE


def level_of(worth: float) -> int:
    """Retention priority of so many hits per block-second."""
    steps = int(LEVELS_PER_DECADE * (math.log10(worth) + DECADES))
    return max(LOWEST_PROMISED, min(MAX_RETENTION_PRIORITY, LOWEST_PROMISED + steps))


def _promise_of(want: Want) -> Promise:
    own = Promise(want.retention_priority, want.duration_s)
    if own.retention_priority <= DEFAULT_RETENTION_PRIORITY:
        own = Promise.of(*own)
    return own if want.floor is None else own.join(want.floor)


def _join(given: Promise, floor: Promise | None) -> Promise:
    return given if floor is None else given.join(floor)
