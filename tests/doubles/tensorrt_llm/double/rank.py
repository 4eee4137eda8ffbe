"""One KV cache and the engine on it: the whole LLM, or one of its attention-DP ranks."""

from __future__ import annotations

from collections import deque
from typing import Any

from serve_app.engine.cache_manager import CacheManager
from serve_app.engine.engine import Engine, Output
from serve_app.engine.scheduler import Scheduled, Scheduler
from serve_app.engine.scripted_model import ScriptedModel
from serve_app.engine.tiers import NoStorage
from serve_app.engine.windows import WindowManagers
from tensorrt_llm.double.cache import Cache
from tensorrt_llm.double.events import EventWriter, JsonObject, Schema
from tensorrt_llm.double.namer import Namer
from tensorrt_llm.double.requests import EngineRequest
from tensorrt_llm.double.settings import Settings
from tensorrt_llm.double.shape import Shape
from tensorrt_llm.double.stats import Iteration, Limits, StatsWriter
from tensorrt_llm.double.tap import Change, Tap


class Rank:
    """Used by the engine's thread only, once it is made."""

    def __init__(
        self, shape: Shape, settings: Settings, number: int, *, copies: bool, partial: bool
    ) -> None:
        self.number = number
        self._shape = shape
        self._changes: list[Change] = []
        self._model = ScriptedModel(eos_id=settings.eos_id, eos_after=settings.eos_after)
        version = settings.parsed
        schema = Schema(
            hash_algorithm=shape.hash_algorithm if version.is_new else None,
            dp_rank=number if shape.has_attention_dp else None,
            is_v2=shape.is_v2,
            batches_removals=version.batches_removals,
        )
        self._writer = EventWriter(schema)
        self._caches = [
            self._cache(settings, window, copies=copies, partial=partial)
            for window in shape.windows
        ]
        self._largest = self._caches[-1]
        manager: CacheManager = self._largest
        if len(self._caches) > 1:
            manager = WindowManagers(self._caches)
        self._scheduler = Scheduler(
            manager,
            max_batch_size=shape.max_batch_size,
            max_batched_tokens=max(shape.max_num_tokens, shape.max_batch_size + 1),
        )
        self.engine = Engine(
            manager=manager,
            scheduler=self._scheduler,
            runner=self._model,
            events=NoFlush(),  # type: ignore[arg-type]
            max_seq_len=shape.max_seq_len,
            eos_ids=(),
        )
        limits = Limits(
            max_batch_size=shape.max_batch_size,
            max_num_tokens=shape.max_num_tokens,
            window=shape.windows[-1],
            is_new=version.is_new,
            dp_rank=number,
        )
        self._stats = StatsWriter(self._largest, limits)
        self._num_iterations = 0
        self._num_added = 0

    @property
    def num_requests(self) -> int:
        return len(self._scheduler.running) + len(self._scheduler.waiting)

    def created(self) -> list[JsonObject]:
        """The first events, one for each window."""
        return [
            self._writer.created(window, list(cache.num_blocks.values()))
            for window, cache in zip(self._shape.windows, self._caches, strict=True)
        ]

    def take_events(self) -> list[JsonObject]:
        """The iteration's; empty when events are off."""
        changes = self._changes[:]
        self._changes.clear()
        return self._writer.events_of(changes) if self._shape.num_events else []

    def add(self, request: EngineRequest) -> None:
        self._num_added += 1
        self.engine.add_request(request)
        if self._shape.orders_by_priority:
            line = sorted(self._scheduler.waiting, key=_line_order)
            self._scheduler.waiting = deque(line)

    def schedule(self) -> list[Scheduled]:
        return self.engine.schedule()

    def finish_step(self, step: list[Scheduled]) -> list[Output]:
        return self.engine.postprocess(step, self._model.run(step))

    def stats_of(
        self, step: list[Scheduled], outputs: list[Output], ms: float, *, is_impossible: bool
    ) -> dict[str, Any]:
        """Of a step that is finished; every sequence counts as a request."""
        context = [part for part in step if part.num_tokens > 1 or not part.has_logits]
        self._num_iterations += 1
        num_new, self._num_added = self._num_added, 0
        iteration = Iteration(
            number=self._num_iterations - 1,
            ms=ms,
            num_active=len(self._scheduler.running),
            num_queued=len(self._scheduler.waiting),
            num_completed=sum(output.finish_reason is not None for output in outputs),
            num_new=num_new,
            num_context=len(context),
            num_generation=len(step) - len(context),
            num_context_tokens=sum(part.num_tokens for part in context),
            num_paused=0,
        )
        return self._stats.stats_of(iteration, is_impossible=is_impossible)

    def _cache(self, settings: Settings, window: int, *, copies: bool, partial: bool) -> Cache:
        shape, version = self._shape, settings.parsed
        is_largest = window == shape.windows[-1]
        tap = Tap(
            self._changes,
            Namer(shape.hash_algorithm),
            block_size=shape.block_size,
            window=window,
            loses_descendants=version.loses_descendants and not shape.is_v2,
            tells_priorities=not shape.is_v2,
        )
        return Cache(
            tap=tap,
            stores_early=version.stores_context_early,
            stores_context=is_largest or version.stores_context_early,
            has_partial_reuse=partial,
            copies_on_partial_reuse=copies,
            block_size=shape.block_size,
            num_gpu_blocks=shape.num_gpu_blocks,
            num_host_blocks=shape.num_host_blocks,
            storage=NoStorage(),
            min_offload_priority=shape.offload_threshold,
            window=window if window < shape.max_seq_len else None,
        )


class NoFlush:
    """The rank flushes by itself, once for each iteration."""

    def flush(self) -> None:
        pass


def _line_order(seq: Any) -> float:
    return -float(seq.request.priority)
