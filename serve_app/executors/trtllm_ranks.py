"""The data-parallel ranks of one TensorRT-LLM engine: each with its history, figures and buffer.

Owns which rank an event or a statistic belongs to, and the buffers between the thread that reads
the engine and those that publish. Knows no engine object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controllers.errors import EventError
from controllers.events import Event
from serve_app.engine.event_buffer import EventBuffer
from serve_app.executors.trtllm_events import Counts, EventTranslator
from serve_app.executors.trtllm_json import dp_rank_of
from serve_app.executors.trtllm_requests import Prompt, Requests
from serve_app.executors.trtllm_stats import RankStats, by_rank

logger = logging.getLogger(__name__)

RawEvents = Iterable[Mapping[str, Any] | None]


class Rank:
    """One KV cache."""

    def __init__(self, block_size: int, requests: Requests, buffer_size: int) -> None:
        self.translator = EventTranslator(block_size, requests)
        self.stats = RankStats()
        self.buffer = EventBuffer(buffer_size)
        self._warned = Counts()

    def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            self.buffer.add(event)
        self.buffer.flush()

    def warn(self, dp_rank: int) -> None:
        """Names what went wrong since the last time."""
        counts = self.translator.counts
        if counts.num_lost_events != self._warned.num_lost_events:
            logger.warning(
                "rank %d: TensorRT-LLM lost %d cache events (enlarge "
                "executor.trtllm.event_buffer_max_size)",
                dp_rank,
                counts.num_lost_events - self._warned.num_lost_events,
            )
        if counts.num_left_out and not self._warned.num_left_out:
            logger.warning(
                "rank %d: some cached blocks cannot be told from another tenant's or adapter's, or "
                "hold more than text; they are not routed to (said once)",
                dp_rank,
            )
        self._warned = counts


class Ranks:
    """All ranks; `take` and `feed` are called by one thread."""

    def __init__(
        self, num_ranks: int, block_size: int, requests: Requests, buffer_size: int
    ) -> None:
        self._ranks = [Rank(block_size, requests, buffer_size) for _ in range(num_ranks)]
        self.num_foreign = 0  # events of ranks that should not be there

    def __getitem__(self, dp_rank: int) -> Rank:
        return self._ranks[dp_rank]

    def __len__(self) -> int:
        return len(self._ranks)

    def take(self, raw_events: RawEvents, now: float) -> bool:
        """Translates and hands on; False if there was nothing."""
        groups = self._by_rank(raw_events)
        for dp_rank, events in groups.items():
            rank = self._ranks[dp_rank]
            rank.tell(rank.translator.translate(events, now))
            rank.warn(dp_rank)
        return bool(groups)

    def take_silently(self, raw_events: RawEvents) -> None:
        """Takes events in without handing anything on."""
        for dp_rank, events in self._by_rank(raw_events).items():
            self._ranks[dp_rank].translator.translate(events)

    def hide_all(self) -> None:
        for rank in self._ranks:
            rank.translator.hide_all()

    def reused(
        self,
        dp_rank: int,
        hashes: Sequence[int],
        num_cached_tokens: int,
        asked_at: float,
        prompt: Prompt,
    ) -> None:
        """See EventTranslator."""
        rank = self._ranks[dp_rank]
        rank.tell(rank.translator.reused(hashes, num_cached_tokens, asked_at, prompt))

    def feed(self, stats: RawEvents) -> bool:
        """False if there was nothing."""
        found = by_rank(stats)
        for dp_rank, item in found:
            if dp_rank < len(self._ranks):
                self._ranks[dp_rank].stats.feed(item)
        return bool(found)

    def close(self) -> None:
        """Wakes who waits for events."""
        for rank in self._ranks:
            rank.buffer.close()

    def _by_rank(self, raw_events: RawEvents) -> dict[int, list[Mapping[str, Any]]]:
        groups: dict[int, list[Mapping[str, Any]]] = {}
        for event in raw_events:
            if not event:
                continue
            dp_rank = self._rank_of(event)
            if dp_rank is not None:
                groups.setdefault(dp_rank, []).append(event)
        return groups

    def _rank_of(self, event: Mapping[str, Any]) -> int | None:
        """What cannot be read is the first rank's, whose translator counts it as a hole."""
        try:
            dp_rank = dp_rank_of(event)
        except EventError:
            return 0
        if dp_rank < len(self._ranks):
            return dp_rank
        if not self.num_foreign:
            logger.error("TensorRT-LLM tells events of rank %d, there are %d", dp_rank, len(self))
        self.num_foreign += 1
        return None
