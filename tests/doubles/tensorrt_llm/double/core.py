"""The executor behind an LLM: ids, checks of the worker, ranks, errors, and the destructive reads.

Stands for what the real package calls proxy and worker. Called from any thread.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tensorrt_llm.bindings.executor import KvCacheRetentionConfig
from tensorrt_llm.double.engine_loop import EngineLoop
from tensorrt_llm.double.faults import Faults
from tensorrt_llm.double.live import LiveRequest
from tensorrt_llm.double.rank import Rank
from tensorrt_llm.double.requests import (
    EngineRequest,
    engine_retention,
    engine_sampling,
    packed,
)
from tensorrt_llm.double.responses import ErrorResponse
from tensorrt_llm.double.settings import Settings
from tensorrt_llm.double.shape import Shape
from tensorrt_llm.executor.errors import RequestError
from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.executor.result import RequestOutput
from tensorrt_llm.inputs.utils import get_cache_salt_id
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.sampling_params import SamplingParams
from tensorrt_llm.scheduling_params import SchedulingParams

logger = logging.getLogger(__name__)

Namespace = tuple[int | None, str | None, int | None]  # LoRA task, cache salt, lone request


@dataclass(frozen=True, kw_only=True)
class Call:
    """A generate_async, checked by LLM."""

    prompt: str | None
    token_ids: list[int]
    sampling: SamplingParams
    is_streaming: bool
    retention: KvCacheRetentionConfig | None
    lora: LoRARequest | None
    scheduling: SchedulingParams | None
    cache_salt: str | None
    priority: float


class Core:
    """Ready when the constructor returns. Raises RuntimeError when told to fail at start."""

    def __init__(self, args: TorchLlmArgs, settings: Settings, decode: Any) -> None:
        if settings.fail_start is not None:
            raise RuntimeError(settings.fail_start)
        os.environ.update(args.env_overrides or {})
        self.shape = Shape.of(args, settings)
        self._args = args
        self._settings = settings
        self._decode = decode
        self._ids = itertools.count(1)
        self._namespaces: dict[Namespace, int] = {(None, None, None): 0}
        self._is_shut_down = False
        cache = args.kv_cache_config
        ranks = [
            Rank(
                self.shape,
                settings,
                number,
                copies=cache.copy_on_partial_reuse,
                partial=cache.enable_partial_reuse,
            )
            for number in range(self.shape.num_ranks)
        ]
        self._ranks = ranks
        self._placed: Counter[int] = Counter()
        has_stats = args.enable_iter_perf_stats
        self._loop = EngineLoop(ranks, self.shape, settings, has_stats=has_stats)

    @property
    def faults(self) -> Faults:
        return self._loop.faults

    def is_shutdown(self) -> bool:
        return self._is_shut_down

    def is_healthy(self) -> bool:
        """A hanging engine looks healthy."""
        return self._loop.is_alive and not self._is_shut_down

    def submit(self, call: Call) -> RequestOutput:
        output = RequestOutput(
            next(self._ids), call.prompt, call.token_ids, call.sampling, self, self._decode
        )
        problem = self._problem(call)
        if problem is not None and not self._settings.has_worker_process:
            raise RequestError(problem)
        problem = problem or self._late_problem(call)
        if problem is None:
            self._loop.submit(self._live_request(call, output))
        else:
            output.queue.push(ErrorResponse(problem))
            self._loop.waker.wake([output.queue])
        self.handle_background_error()
        return output

    def abort_request(self, request_id: int) -> None:
        """Unknown ids: no effect."""
        self._loop.submit(str(request_id))

    def handle_background_error(self, message: str | None = None) -> None:
        """Raises RequestError(message), or what the engine died of."""
        if message is not None:
            raise RequestError(message)
        if self._loop.fatal_error is not None:
            raise type(self._loop.fatal_error)(*self._loop.fatal_error.args)

    def get_events(self, timeout_s: float | None) -> list[Any]:
        """Versions before 1.3.0rc6 fail on any update, and what was read with it is lost."""
        events = self._loop.events.poll(timeout_s, self._is_over)
        if self._settings.parsed.host_events_crash and any(map(_is_half_update, events)):
            logger.error("'NoneType' object has no attribute 'new_value'")
            return []
        return events

    def get_stats(self, timeout_s: float | None) -> list[Any]:
        return self._loop.stats.poll(timeout_s, self._is_over)

    def shutdown(self) -> None:
        self._is_shut_down = True
        self._loop.stop()

    def _is_over(self) -> bool:
        return not self.is_healthy()

    def _problem(self, call: Call) -> str | None:
        """What the worker checks before it takes a request."""
        num_tokens = len(call.token_ids)
        max_seq_len = self.shape.max_seq_len
        room = max_seq_len - num_tokens
        if room <= 0:
            return (
                f"`default_max_tokens` ({room}) must be greater than 0, `default_max_tokens` "
                f"({room}) = max_seq_len ({max_seq_len}) - `splited_prompt_len` ({num_tokens})"
            )
        if call.sampling.max_tokens <= 0:
            return f"`max_tokens` ({call.sampling.max_tokens}) must be greater than 0"
        return None

    def _late_problem(self, call: Call) -> str | None:
        """What the engine's own loop checks."""
        vocab_size = self._settings.vocab_size
        if not call.token_ids:
            return "The input token ids must not be empty"
        if not 0 <= min(call.token_ids) <= max(call.token_ids) < vocab_size:
            return "Token ID out of range"
        return None

    def _live_request(self, call: Call, output: RequestOutput) -> LiveRequest:
        request = self._engine_request(call, str(output.request_id))
        return LiveRequest(request, output.queue, self._rank_for(call.scheduling))

    def _engine_request(self, call: Call, request_id: str) -> EngineRequest:
        sampling = call.sampling
        room = self.shape.max_seq_len - len(call.token_ids)
        max_tokens = min(sampling.max_tokens, room)
        has_lora = self._args.enable_lora or self._args.lora_config is not None
        lora_id = call.lora.adapter_id if call.lora is not None and has_lora else None
        salt = call.cache_salt
        is_new = self._settings.parsed.is_new
        return EngineRequest(
            request_id=request_id,
            token_ids=packed(call.token_ids),
            sampling=engine_sampling(sampling, max_tokens, is_new=is_new),
            retention=engine_retention(None if self.shape.is_v2 else call.retention),
            salt=self._salt_of(lora_id, salt, request_id),
            lora_id=lora_id,
            cache_salt=salt,
            salt_id=None if salt is None else get_cache_salt_id(salt),
            end_id=sampling.end_id,
            stream_interval=self._args.stream_interval,
            is_streaming=call.is_streaming,
            priority=call.priority,
        )

    def _salt_of(self, lora_id: int | None, cache_salt: str | None, request_id: str) -> int:
        """Our engine's namespace; without reuse every request has one of its own."""
        lone = None if self.shape.has_reuse else int(request_id)
        return self._namespaces.setdefault((lora_id, cache_salt, lone), len(self._namespaces))

    def _rank_for(self, scheduling: SchedulingParams | None) -> int:
        """Pinned, or the one with the fewest requests; ties go round."""
        wanted = None if scheduling is None else scheduling.attention_dp_rank
        if wanted is None or not self.shape.has_attention_dp:
            loads = [(rank.num_requests, self._placed[rank.number]) for rank in self._ranks]
            wanted = loads.index(min(loads))
        if not 0 <= wanted < len(self._ranks):
            raise ValueError(f"attention_dp_rank {wanted} is not below {len(self._ranks)}")
        self._placed[wanted] += 1
        return wanted


def _is_half_update(event: Any) -> bool:
    data = event.get("data", {}) if event else {}
    return data.get("type") == "updated" and None in (data["cache_level"], data["priority"])
