"""A rank's load from three sources: the books of this side, the engine's figures, the mirror.

The engine's figures come late, and none come from an idle one: without requests everything is zero
whatever it said last. Everything is clamped to what is possible.
"""

from __future__ import annotations

from controllers.events import Load
from serve_app.executors.base import ExecutorInfo
from serve_app.executors.trtllm_books import Books
from serve_app.executors.trtllm_ranks import Rank


def load_of(rank: Rank, books: Books, info: ExecutorInfo, dp_rank: int) -> Load:
    figures = books.figures(dp_rank)
    cached = _cached_blocks(rank, info)
    used = dict.fromkeys(info.num_blocks, 0)
    if figures.num_active + figures.num_queued:
        told = rank.stats.num_used
        used["gpu"] = min(figures.used_blocks if told is None else told, info.num_blocks["gpu"])
    else:
        rank.stats.forget()
    used["host"] = cached["host"]
    cached["gpu"] = max(cached["gpu"], used["gpu"])
    return Load(
        num_active=figures.num_active,
        num_queued=figures.num_queued,
        queued_prefill_tokens=figures.queued_prefill_tokens,
        decode_tokens=figures.decode_tokens,
        used_blocks=used,
        total_blocks=dict(info.num_blocks),
        cached_blocks=cached,
        hit_tokens=books.hit_tokens(dp_rank),
        prompt_tokens=books.prompt_tokens(dp_rank),
        iterations=rank.stats.take_iterations(),
    )


def _cached_blocks(rank: Rank, info: ExecutorInfo) -> dict[str, int]:
    told = rank.translator.cached_blocks
    return {medium: min(told.get(medium, 0), total) for medium, total in info.num_blocks.items()}
