"""Arguments of LLM -> the numbers an engine is built from."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tensorrt_llm.double.settings import Settings
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.llmapi.scheduler_config import orders_by_priority

logger = logging.getLogger(__name__)

DEFAULT_OFFLOAD_THRESHOLD = 30
DEFAULT_NUM_STATS = 1000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`windows` ascending; the largest is `windows[-1]`."""

    block_size: int
    num_gpu_blocks: int
    num_host_blocks: int
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    windows: tuple[int, ...]
    offload_threshold: int
    num_ranks: int
    has_attention_dp: bool
    is_v2: bool
    has_reuse: bool
    num_events: int
    num_stats: int
    hash_algorithm: str
    orders_by_priority: bool

    @classmethod
    def of(cls, args: TorchLlmArgs, settings: Settings) -> Shape:
        cache = args.kv_cache_config
        block_size = cache.tokens_per_block
        is_v2 = bool(getattr(cache, "use_kv_cache_manager_v2", False))
        num_gpu_blocks = _num_gpu_blocks(args, settings)
        lengths = [settings.model_max_seq_len, num_gpu_blocks * block_size]
        max_seq_len = min([*lengths, *([args.max_seq_len] if args.max_seq_len else [])])
        windows = {min(window, max_seq_len) for window in cache.max_attention_window or ()}
        has_reuse = cache.enable_block_reuse
        num_ranks = args.tensor_parallel_size if args.enable_attention_dp else 1
        bytes_per_block = settings.bytes_per_token * block_size
        return cls(
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            num_host_blocks=(cache.host_cache_size or 0) // bytes_per_block,
            max_seq_len=max_seq_len,
            max_batch_size=args.max_batch_size or 2048,
            max_num_tokens=args.max_num_tokens or 8192,
            windows=tuple(sorted(windows)) or (max_seq_len,),
            offload_threshold=_offload_threshold(args, settings),
            num_ranks=num_ranks,
            has_attention_dp=args.enable_attention_dp,
            is_v2=is_v2,
            has_reuse=has_reuse,
            num_events=cache.event_buffer_max_size * num_ranks if has_reuse else 0,
            num_stats=args.iter_stats_max_iterations or DEFAULT_NUM_STATS,
            hash_algorithm=_hash_algorithm(args, is_v2=is_v2),
            orders_by_priority=orders_by_priority(args.scheduler_config),
        )


def _num_gpu_blocks(args: TorchLlmArgs, settings: Settings) -> int:
    cache = args.kv_cache_config
    num_blocks = int((cache.free_gpu_memory_fraction or 0.9) * settings.memory_blocks)
    if cache.max_tokens is not None:
        num_blocks = min(num_blocks, cache.max_tokens // cache.tokens_per_block)
    if cache.max_gpu_total_bytes:
        bytes_per_block = settings.bytes_per_token * cache.tokens_per_block
        num_blocks = min(num_blocks, cache.max_gpu_total_bytes // bytes_per_block)
    if num_blocks < 1:
        raise RuntimeError(f"The KV cache has no room for a block of {cache.tokens_per_block}")
    return num_blocks


def _offload_threshold(args: TorchLlmArgs, settings: Settings) -> int:
    given = args.kv_cache_config.secondary_offload_min_priority
    if given is None or settings.parsed.drops_offload_threshold:
        return DEFAULT_OFFLOAD_THRESHOLD
    return given


def _hash_algorithm(args: TorchLlmArgs, *, is_v2: bool) -> str:
    wanted = str(getattr(args.kv_cache_config, "kv_cache_event_hash_algo", "auto"))
    if is_v2 and wanted != "auto":
        return wanted
    if wanted not in ("auto", "v1_block_key"):
        logger.warning("kv_cache_event_hash_algo %r is ignored without the V2 manager", wanted)
    return "v1_block_key"
