"""One dict for each iteration of a rank, with the documented names."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from serve_app.engine.block_manager import BlockManager


@dataclass(frozen=True)
class Iteration:
    """What one iteration of one rank did."""

    number: int
    ms: float
    num_active: int
    num_queued: int
    num_completed: int
    num_new: int
    num_context: int
    num_generation: int
    num_context_tokens: int
    num_paused: int


@dataclass(frozen=True)
class Limits:
    max_batch_size: int
    max_num_tokens: int
    window: int
    is_new: bool
    dp_rank: int


class StatsWriter:
    """Keeps what must be told as a difference."""

    def __init__(self, manager: BlockManager, limits: Limits) -> None:
        self._manager = manager
        self._limits = limits
        self._last = (0, 0)

    def stats_of(self, iteration: Iteration, *, is_impossible: bool) -> dict[str, Any]:
        limits = self._limits
        stats = {
            "timestamp": datetime.datetime.now().strftime("%m-%d-%Y %H:%M:%S.%f"),
            "iter": iteration.number,
            "iterLatencyMS": iteration.ms,
            "newActiveRequestsQueueLatencyMS": 0.0,
            "numNewActiveRequests": iteration.num_new,
            "numActiveRequests": iteration.num_active,
            "numQueuedRequests": iteration.num_queued,
            "numCompletedRequests": iteration.num_completed,
            "maxNumActiveRequests": limits.max_batch_size,
            "maxBatchSizeStatic": limits.max_batch_size,
            "maxBatchSizeTunerRecommended": 0,
            "maxBatchSizeRuntime": limits.max_batch_size,
            "maxNumTokensStatic": limits.max_num_tokens,
            "maxNumTokensTunerRecommended": 0,
            "maxNumTokensRuntime": limits.max_num_tokens,
            "gpuMemUsage": 0,
            "cpuMemUsage": 0,
            "pinnedMemUsage": 0,
            "kvCacheStats": self._cache_stats(is_impossible),
            "inflightBatchingStats": _batching_stats(iteration),
        }
        if limits.is_new:
            stats["attentionDpRank"] = limits.dp_rank
            stats["hostStepTimeMS"] = stats["prevDeviceStepTimeMS"] = iteration.ms
            stats["gpuForwardTimeMS"] = iteration.ms
            stats["schedulerMode"] = "overlap"
            stats["kvCacheIterationStats"] = {str(limits.window): self._iteration_stats()}
        return stats

    def _cache_stats(self, is_impossible: bool) -> dict[str, Any]:
        manager = self._manager
        total = manager.num_blocks["gpu"]
        used = manager.used_blocks["gpu"]
        if is_impossible:
            used = -3
        reused, new = manager.num_reused_blocks, manager.num_new_blocks
        return {
            "maxNumBlocks": total,
            "freeNumBlocks": total - used,
            "usedNumBlocks": used,
            "tokensPerBlock": manager.block_size,
            "allocTotalBlocks": new,
            "allocNewBlocks": new,
            "reusedBlocks": reused,
            "missedBlocks": new,
            "cacheHitRate": reused / (reused + new) if reused + new else 0.0,
        }

    def _iteration_stats(self) -> dict[str, Any]:
        manager = self._manager
        total, used = manager.num_blocks, manager.used_blocks
        reused, new = manager.num_reused_blocks, manager.num_new_blocks
        iter_reused, iter_new = reused - self._last[0], new - self._last[1]
        self._last = (reused, new)
        num_asked = iter_reused + iter_new
        return {
            "primaryMaxNumBlocks": total["gpu"],
            "primaryFreeNumBlocks": total["gpu"] - used["gpu"],
            "primaryUsedNumBlocks": used["gpu"],
            "secondaryMaxNumBlocks": total["host"],
            "secondaryFreeNumBlocks": total["host"] - used["host"],
            "secondaryUsedNumBlocks": used["host"],
            "iterAllocTotalBlocks": iter_new,
            "iterAllocNewBlocks": iter_new,
            "iterReusedBlocks": iter_reused,
            "iterFullReusedBlocks": iter_reused,
            "iterPartialReusedBlocks": 0,
            "iterMissedBlocks": iter_new,
            "iterCacheHitRate": iter_reused / num_asked if num_asked else 0.0,
            "iterGenAllocBlocks": 0,
            "iterOnboardBlocks": 0,
            "iterOnboardBytes": 0,
            "iterOffloadBlocks": 0,
            "iterOffloadBytes": 0,
            "iterIntraDeviceCopyBlocks": 0,
            "iterIntraDeviceCopyBytes": 0,
        }


def _batching_stats(iteration: Iteration) -> dict[str, Any]:
    return {
        "numScheduledRequests": iteration.num_context + iteration.num_generation,
        "numContextRequests": iteration.num_context,
        "numGenRequests": iteration.num_generation,
        "numPausedRequests": iteration.num_paused,
        "numCtxTokens": iteration.num_context_tokens,
        "microBatchId": 0,
        "avgNumDecodedTokensPerIter": 1.0 if iteration.num_generation else 0.0,
    }
