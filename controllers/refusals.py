"""What of a prompt would be lost on each worker for want of room to promise to keep it.

Owns the forecast: the blocks that a plan there would refuse, times how likely it is that they are
asked for again, but not before an unpromised block is gone there. Reads what `learned_retention`
knows and changes none of it. Knows no costs: what a lost token is worth, placement says.

1. Refusals are of the future: what is cached now the request still finds.
2. What a plan promises is not lost, and what nobody asks for again neither.
3. What is refused by all workers is lost on all and decides nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from controllers.learned_retention import LearnedRetention
from controllers.promising import AS_LRU, Level, level_of, num_promised
from controllers.prompt_use import PromptUse
from controllers.retention_worker import RetentionWorker
from controllers.survival import Survival, bin_of
from controllers.touch_tree import TouchedRun

# How long unpromised blocks stay is a mean over about so many evictions that were looked at.
NUM_MEAN = 50.0
LOOK_AT_EVERY = 16  # evicted blocks


class Refusals:
    """For all workers. The caller serialises, and tells what each cache lost."""

    def __init__(self, learned: LearnedRetention) -> None:
        self._learned = learned
        self._stay_s: dict[str, float] = {}  # worker -> how long unpromised blocks do

    def removed(self, worker: str, hashes: Sequence[int], now: float) -> None:
        """The worker's cache lost these blocks."""
        for block_hash in hashes[::LOOK_AT_EVERY]:
            run = self._learned.run_of(block_hash)
            if run is None:
                continue
            grant = run.grants.get(worker)
            if grant is None:
                self._note_stay(worker, now - run.last_used_s)
            elif grant.until_s <= now:
                self._note_stay(worker, now - grant.until_s)

    def lost_tokens(self, prompt: PromptUse, now: float) -> dict[str, float]:
        """By worker, expected; those that would lose nothing are absent."""
        if not prompt.is_kept:
            return {}
        num_blocks = len(prompt.hashes)
        crowded = [w for w in self._learned.workers if not _fits(w, num_blocks, now)]
        if not crowded:
            return {}
        wish = self._wish(prompt)
        plain = wish.levels()
        lost = {worker.name: self._lost_blocks(worker, wish, plain) for worker in crowded}
        return {name: num * prompt.block_size for name, num in lost.items() if num > 0.0}

    def _note_stay(self, worker: str, stay_s: float) -> None:
        if worker not in self._stay_s:
            here = {known.name for known in self._learned.workers}
            self._stay_s = {name: s for name, s in self._stay_s.items() if name in here}
            if worker not in here:
                return
        mean_s = self._stay_s.get(worker, stay_s)
        self._stay_s[worker] = mean_s + (stay_s - mean_s) / NUM_MEAN

    def _wish(self, prompt: PromptUse) -> _Wish:
        survival, found = self._learned.survival, self._learned.known_runs(prompt.hashes)
        wish = _Wish(prompt, survival)
        for run, num in found:
            wish.add(num, run.class_id, run)
        label = found[-1][0].label if found else prompt.request_type
        if wish.num_blocks < len(prompt.hashes):
            if found and found[-1][0].is_hub:
                label = prompt.request_type
            class_id = survival.class_of(label, prompt.tenant, 1)
            wish.add(len(prompt.hashes) - wish.num_blocks, class_id, None)
        wish.group = (label, prompt.tenant)
        return wish

    def _lost_blocks(self, worker: RetentionWorker, wish: _Wish, plain: Sequence[Level]) -> float:
        """`plain`: levels of a group that is not below its floor."""
        boost, levels = worker.floors.boost(wish.group), plain
        if worker.floors.is_behind:
            levels = wish.as_lru()
        elif boost > 1.0:
            levels = wish.levels(boost)
        num_kept = num_promised(worker.room, levels, wish.held.get(worker.name, 0))
        if num_kept >= wish.num_blocks:
            return 0.0
        return wish.lost_behind(num_kept, self._stay_s.get(worker.name, 0.0))


class _Wish:
    """A prompt as it would be planned: stretches of blocks of one class, root first. `held`: room
    that it has already, by worker. `group`: whose floor counts."""

    def __init__(self, prompt: PromptUse, survival: Survival) -> None:
        self.prompt = prompt
        self.group = (prompt.request_type, prompt.tenant)
        self.num_blocks = 0
        self.held: dict[str, int] = {}
        self._survival = survival
        self._ends: list[int] = []
        self._class_ids: list[int] = []
        self._losses: dict[int, list[tuple[float, float]]] = {}  # by bin of the stay

    def add(self, num_blocks: int, class_id: int, run: TouchedRun | None) -> None:
        """Blocks behind the others; `run` None: not seen before."""
        self.num_blocks += num_blocks
        if self._class_ids and self._class_ids[-1] == class_id:
            self._ends[-1] = self.num_blocks
        else:
            self._class_ids.append(class_id)
            self._ends.append(self.num_blocks)
        for worker, grant in () if run is None else run.grants.items():
            if grant.num_held:
                self.held[worker] = self.held.get(worker, 0) + grant.num_held

    def levels(self, boost: float = 1.0) -> list[Level]:
        """Falling, root first."""
        index, ceiling = self._survival.index, self.prompt.ceiling
        levels: list[Level] = []
        highest = -1
        for class_id, end in zip(reversed(self._class_ids), reversed(self._ends), strict=True):
            level = min(ceiling, level_of(index[class_id][0] * boost))
            if level > highest:
                highest = level
                levels.append((level, end))
        levels.reverse()
        return levels

    def as_lru(self) -> list[Level]:
        return [(min(self.prompt.ceiling, AS_LRU), self.num_blocks)]

    def lost_behind(self, num_kept: int, stay_s: float) -> float:
        """Blocks expected to be used again when all from there on are gone, after `stay_s`."""
        stay_bin = bin_of(stay_s)
        losses = self._losses.get(stay_bin)
        if losses is None:
            losses = self._losses[stay_bin] = self._losses_of(stay_s)
        at = bisect_right(self._ends, num_kept)
        chance, behind = losses[at]
        return behind + (self._ends[at] - num_kept) * chance

    def _losses_of(self, stay_s: float) -> list[tuple[float, float]]:
        """By stretch: of a block of it, and of all blocks behind it."""
        losses: list[tuple[float, float]] = []
        behind = 0.0
        for at in range(len(self._ends) - 1, -1, -1):
            chance = self._survival.chance_after(self._class_ids[at], stay_s)
            losses.append((chance, behind))
            behind += chance * (self._ends[at] - (self._ends[at - 1] if at else 0))
        losses.reverse()
        return losses


def _fits(worker: RetentionWorker, num_blocks: int, now: float) -> bool:
    if not worker.room.fits(num_blocks):
        worker.room.expire(now)
    return worker.room.fits(num_blocks)
