"""What the executors that run our own engine say of themselves."""

from __future__ import annotations

from importlib import metadata

from controllers.events import Load
from serve_app.engine.build import EngineLimits
from serve_app.executors.base import ExecutorInfo


def info_of(limits: EngineLimits, name: str, model_name: str, max_seq_len: int) -> ExecutorInfo:
    """`model_name` as clients say it."""
    return ExecutorInfo(
        name=name,
        version=metadata.version("cachelane"),
        model=model_name,
        block_size=limits.block_size,
        num_blocks={"gpu": limits.num_gpu_blocks, "host": limits.num_host_blocks},
        max_seq_len=max_seq_len,
        max_batch_size=limits.max_batch_size,
        max_batched_tokens=limits.max_batched_tokens,
    )


def idle_load(info: ExecutorInfo) -> Load:
    """Of an executor that will not run anything any more."""
    return Load(
        num_active=0,
        num_queued=0,
        queued_prefill_tokens=0,
        decode_tokens=0,
        used_blocks=dict.fromkeys(info.num_blocks, 0),
        total_blocks=dict(info.num_blocks),
        cached_blocks=dict.fromkeys(info.num_blocks, 0),
    )
