"""Puts an engine together from plain numbers. Owns the wiring and what must hold between them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from controllers.errors import SettingsError
from serve_app.engine.block_manager import BlockManager
from serve_app.engine.engine import Engine, Runner
from serve_app.engine.event_buffer import EventBuffer
from serve_app.engine.scheduler import Scheduler
from serve_app.engine.tiers import Storage


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """`max_seq_len` None: what the model and the gpu blocks allow."""

    block_size: int
    num_gpu_blocks: int
    num_host_blocks: int = 0
    max_batch_size: int = 16
    max_batched_tokens: int = 512
    max_seq_len: int | None = None
    event_buffer_size: int = 65536
    min_offload_priority: int = 30

    def seq_len(self, model_max_seq_len: int) -> int:
        """Tokens of the longest sequence. Raises SettingsError for a wish that cannot be met."""
        possible = min(model_max_seq_len, self.block_size * self.num_gpu_blocks)
        if self.max_seq_len is not None and self.max_seq_len > possible:
            raise SettingsError(
                f"executor.max_seq_len is {self.max_seq_len}, model ({model_max_seq_len} tokens) "
                f"and cache ({self.num_gpu_blocks} blocks of {self.block_size}) allow {possible}"
            )
        return self.max_seq_len or possible


def build_engine(
    limits: EngineLimits,
    runner: Runner,
    storage: Storage,
    *,
    model_max_seq_len: int,
    eos_ids: Seq[int],
) -> tuple[Engine, EventBuffer]:
    """The engine, and where another thread drains its events. Raises SettingsError."""
    max_seq_len = limits.seq_len(model_max_seq_len)
    events = EventBuffer(limits.event_buffer_size)
    manager = BlockManager(
        block_size=limits.block_size,
        num_gpu_blocks=limits.num_gpu_blocks,
        num_host_blocks=limits.num_host_blocks,
        storage=storage,
        events=events,
        min_offload_priority=limits.min_offload_priority,
    )
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
