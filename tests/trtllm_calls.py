"""Short ways to use the double in tests of it. Import nothing of it before it is in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

END_ID = 257
Range = tuple[Any, ...]  # token_start, token_end, priority, duration_ms


def make_llm(num_blocks: int = 8, block_size: int = 4, **options: Any) -> Any:
    """One engine in this process. `options` go to KvCacheConfig if it knows them, else to LLM."""
    import tensorrt_llm
    from tensorrt_llm.llmapi import KvCacheConfig

    cache = {
        "max_tokens": num_blocks * block_size,
        "tokens_per_block": block_size,
        "event_buffer_max_size": 1024,
        "use_kv_cache_manager_v2": False,
    }
    for name in list(options):
        if name in KvCacheConfig.model_fields:
            cache[name] = options.pop(name)
    defaults = {"skip_tokenizer_init": True, "enable_chunked_prefill": True, "max_batch_size": 4}
    return tensorrt_llm.LLM("model", kv_cache_config=KvCacheConfig(**cache), **defaults | options)


def sampling(**options: Any) -> Any:
    from tensorrt_llm import SamplingParams

    return SamplingParams(**{"max_tokens": 1, "end_id": END_ID, "ignore_eos": True} | options)


def retention(*ranges: Range, decode: tuple[Any, ...] = (35,)) -> Any:
    from tensorrt_llm.llmapi import KvCacheRetentionConfig

    kind = KvCacheRetentionConfig.TokenRangeRetentionConfig
    return KvCacheRetentionConfig([kind(*given) for given in ranges], *decode)


def run(llm: Any, tokens: Sequence[int], *, num_tokens: int = 1, **options: Any) -> Any:
    """Generates, waits for the end; the output."""
    params = options.pop("sampling_params", None) or sampling(max_tokens=num_tokens)
    return llm.generate_async(list(tokens), params, **options).result()


def events_of(llm: Any) -> list[dict[str, Any]]:
    """All that are there; a request's are before its last token is."""
    return list(llm.get_kv_cache_events(0))


def brief(events: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """One tuple an event, with tokens instead of hashes where there are any."""
    return [_brief(event["data"]) for event in events]


def _brief(data: dict[str, Any]) -> tuple[Any, ...]:
    if data["type"] == "stored":
        tokens = [[token["token_id"] for token in block["tokens"]] for block in data["blocks"]]
        return ("stored", data["parent_hash"] is None, tokens)
    if data["type"] == "removed":
        return ("removed", len(data["block_hashes"]))
    if data["type"] == "created":
        return ("created", data["num_blocks_per_cache_level"])
    changes = [name for name in ("cache_level", "priority") if data[name] is not None]
    [name] = changes
    return (name, data[name]["old_value"], data[name]["new_value"])
