"""Requests of the LLM API as our engine takes them."""

from __future__ import annotations

import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from controllers.retention import Retention, TokenRange
from tensorrt_llm.bindings.executor import KvCacheRetentionConfig
from tensorrt_llm.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class EngineSampling:
    """The engine's Sampling."""

    max_tokens: int
    n: int = 1
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """The engine's Request, and what enters TensorRT-LLM's hashes and events.

    `salt` keeps namespaces apart in our engine: one for each LoRA adapter and cache salt.
    """

    request_id: str
    token_ids: bytes
    sampling: EngineSampling
    retention: Retention
    salt: int
    lora_id: int | None = None
    cache_salt: str | None = None
    salt_id: int | None = None
    end_id: int | None = None
    stream_interval: int = 1
    is_streaming: bool = True
    tier: str = ""
    tenant: str = ""
    num_resumed: int = 0
    priority: float = 0.5

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.token_ids) // 4


def packed(token_ids: list[int]) -> bytes:
    return array.array("I", token_ids).tobytes()


def engine_sampling(params: SamplingParams, max_tokens: int, *, is_new: bool) -> EngineSampling:
    """`ignore_eos` switches stop_token_ids off too: the real one sends no stop words then."""
    stop_ids = () if params.ignore_eos else end_ids_of(params)
    logprobs = params.logprobs
    if not is_new and not logprobs:
        logprobs = None
    return EngineSampling(
        max_tokens=max_tokens,
        n=params.n,
        stop_token_ids=tuple(stop_ids),
        min_tokens=params.min_tokens or 0,
        ignore_eos=params.ignore_eos,
        temperature=0.0 if params._greedy_decoding else _or(params.temperature, 1.0),
        top_p=_or(params.top_p, 1.0),
        top_k=params.top_k or 0,
        min_p=_or(params.min_p, 0.0),
        seed=params.seed,
        logprobs=logprobs,
        presence_penalty=_or(params.presence_penalty, 0.0),
        frequency_penalty=_or(params.frequency_penalty, 0.0),
    )


def end_ids_of(params: SamplingParams) -> list[int]:
    """-1 ends nothing."""
    end_ids = [] if params.end_id is None or params.end_id < 0 else [params.end_id]
    return end_ids + list(params.stop_token_ids or ())


def engine_retention(config: KvCacheRetentionConfig | None) -> Retention:
    if config is None:
        return Retention()
    ranges = tuple(
        TokenRange(given.token_start, given.token_end, given.priority, _seconds(given.duration_ms))
        for given in config.token_range_retention_configs
    )
    decode = (config.decode_retention_priority, _seconds(config.decode_duration_ms))
    return Retention(ranges, *decode)


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
