"""Recorded events and decisions -> the prompts that were asked for, block by block.

A decision names the last full block of its prompt, and the log says of every block which one comes
before it: together the whole prompt, without a list of hashes in every record. Knows no policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controllers.events import EventBatch, Snapshot, Stored, WorkerUp, ints_of
from controllers.records import Decision
from controllers.retention import Spans
from controllers.retention_replay import Prompt

MAX_DEPTH = 1_000_000  # blocks of a prompt; a record that goes in circles ends here


@dataclass
class Record:
    """What a log says, in any order of its records. Decisions whose blocks were stored before the
    oldest event, or that were made before decisions named a block, are counted only."""

    block_size: int = 0
    num_blocks_of: dict[str, int] = field(default_factory=dict)  # worker -> blocks on the gpu
    num_decisions: int = 0
    num_unknown: int = 0
    num_unserved: int = 0  # refused, cancelled or failed before a first token: says nothing of hits
    num_asked_blocks: int = 0  # of the decisions that are known
    num_cached_blocks: int = 0  # of those, what their workers found
    _before: dict[int, int | None] = field(default_factory=dict)
    _decisions: list[Decision] = field(default_factory=list)

    def add_batch(self, batch: EventBatch) -> None:
        self.block_size = batch.block_size
        for event in batch.events:
            if isinstance(event, Stored):
                before = None if event.parent is None else ints_of([event.parent])[0]
                for block in ints_of(event.hashes):
                    self._before[block], before = before, block
            elif isinstance(event, Snapshot):
                self.num_blocks_of[batch.worker] = event.num_blocks.get("gpu", 0)
                hashes = ints_of(event.blocks.hashes)
                for block, parent in zip(hashes, event.blocks.parents, strict=True):
                    self._before[block] = ints_of([parent])[0] if parent else None
            elif isinstance(event, WorkerUp):
                self.num_blocks_of[batch.worker] = event.num_blocks.get("gpu", 0)

    @property
    def num_known(self) -> int:
        """Of the decisions, those whose prompts `prompts` found last."""
        return self.num_decisions - self.num_unknown - self.num_unserved

    @property
    def measured_hit_rate(self) -> float:
        """Of the prompts that `prompts` found last, 0-1."""
        return self.num_cached_blocks / max(1, self.num_asked_blocks)

    def add_decision(self, decision: Decision) -> None:
        self.num_decisions += 1
        self._decisions.append(decision)

    def prompts(self) -> dict[str, list[Prompt]]:
        """By worker, in the order of their arrival."""
        found: dict[str, list[Prompt]] = {}
        self.num_unknown = self.num_unserved = self.num_asked_blocks = self.num_cached_blocks = 0
        for decision in sorted(self._decisions, key=_came_ms):
            if decision.ttft_ms is None:
                self.num_unserved += 1
                continue
            hashes = self._path(decision)
            if hashes is None or decision.worker not in self.num_blocks_of:
                self.num_unknown += 1
                continue
            self.num_asked_blocks += len(hashes)
            self.num_cached_blocks += decision.cached_tokens // self.block_size
            spans = Spans(decision.system_tokens, decision.history_tokens, decision.prompt_tokens)
            prompt = Prompt(
                _came_ms(decision) / 1e3, decision.request_type, decision.tenant, hashes, spans
            )
            found.setdefault(decision.worker, []).append(prompt)
        return found

    def _path(self, decision: Decision) -> list[int] | None:
        """Blocks from the first to the last; None if one of them is not known."""
        if decision.prompt_hash is None:
            return None
        path: list[int] = []
        block: int | None = ints_of([decision.prompt_hash])[0]
        while block is not None and len(path) < MAX_DEPTH:
            if block not in self._before:
                return None
            path.append(block)
            block = self._before[block]
        return path[::-1] if len(path) == decision.prompt_blocks else None


def _came_ms(decision: Decision) -> float:
    """A decision is recorded when its request has ended."""
    return decision.ts_ms - decision.total_ms
