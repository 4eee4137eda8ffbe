"""Puts an engine together from plain numbers. Owns the wiring and what must hold between them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

from controllers.errors import SettingsError
from serve_app.engine.block_manager import BlockManager
from serve_app.engine.cache_manager import CacheManager
from serve_app.engine.engine import Engine, Runner
from serve_app.engine.event_buffer import EventBuffer
from serve_app.engine.event_sink import EventSink, NoEvents
from serve_app.engine.scheduler import Scheduler
from serve_app.engine.tiers import NoStorage, Storage
from serve_app.engine.windows import WindowManagers


@dataclass(frozen=True, kw_only=True)
class WindowPool:
    """Blocks for the layers that attend to the last `window` tokens only."""

    window: int
    num_gpu_blocks: int
    num_host_blocks: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """`max_seq_len` None: what the model and the gpu blocks allow.

    `small_windows`: beside the blocks of the model's largest attention window, those of layers with
    smaller ones. Only for a runner that keeps no KV, such as the scripted model.
    """

    block_size: int
    num_gpu_blocks: int
    num_host_blocks: int = 0
    small_windows: tuple[WindowPool, ...] = ()
    max_batch_size: int = 16
    max_batched_tokens: int = 512
    max_seq_len: int | None = None
    event_buffer_size: int = 65536
    min_offload_priority: int = 30

    def seq_len(self, model_max_seq_len: int) -> int:
        """Tokens of the longest sequence. Raises SettingsError for a wish that cannot be met."""
        num_blocks = min([self.num_gpu_blocks, *(w.num_gpu_blocks for w in self.small_windows)])
        possible = min(model_max_seq_len, self.block_size * num_blocks)
        if self.max_seq_len is not None and self.max_seq_len > possible:
            raise SettingsError(
                f"executor.max_seq_len is {self.max_seq_len}, model ({model_max_seq_len} tokens) "
                f"and cache ({num_blocks} blocks of {self.block_size}) allow {possible}"
            )
        return self.max_seq_len or possible


def build_engine(
    limits: EngineLimits,
    runner: Runner,
    storage: Storage,
    *,
    model_max_seq_len: int,
    eos_ids: Seq[int],
    attention_window: int | None = None,
) -> tuple[Engine, EventBuffer]:
    """The engine, and where another thread drains its events. Raises SettingsError.

    `attention_window`: of the model's layers, the largest if they differ; None: all tokens.
    """
    max_seq_len = limits.seq_len(model_max_seq_len)
    events = EventBuffer(limits.event_buffer_size)
    manager = _manager(limits, storage, events, attention_window)
    scheduler = Scheduler(
        manager,
        max_batch_size=limits.max_batch_size,
        max_batched_tokens=limits.max_batched_tokens,
    )
    engine = Engine(
        manager=manager,
        scheduler=scheduler,
        runner=runner,
        events=events,
        max_seq_len=max_seq_len,
        eos_ids=eos_ids,
    )
    return engine, events


def _manager(
    limits: EngineLimits, storage: Storage, events: EventSink, attention_window: int | None
) -> CacheManager:
    """One for the only window, or one that keeps those of several windows together."""
    make = partial(
        BlockManager,
        block_size=limits.block_size,
        min_offload_priority=limits.min_offload_priority,
    )
    largest = make(
        num_gpu_blocks=limits.num_gpu_blocks,
        num_host_blocks=limits.num_host_blocks,
        storage=storage,
        events=events,
        window=attention_window,
    )
    smaller = [
        make(
            num_gpu_blocks=pool.num_gpu_blocks,
            num_host_blocks=pool.num_host_blocks,
            storage=NoStorage(),
            events=NoEvents(),
            window=pool.window,
        )
        for pool in limits.small_windows
    ]
    return WindowManagers([*smaller, largest]) if smaller else largest
