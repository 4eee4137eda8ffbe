"""Scheduling as an argument of LLM."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tensorrt_llm.double.settings import current


class CapacitySchedulerPolicy(str, Enum):
    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    STATIC_BATCH = "STATIC_BATCH"


class ContextChunkingPolicy(str, Enum):
    FIRST_COME_FIRST_SERVED = "FIRST_COME_FIRST_SERVED"
    EQUAL_PROGRESS = "EQUAL_PROGRESS"


class WaitingQueuePolicy(str, Enum):
    """`priority` is known to newer versions only."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class DynamicBatchConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    enable_batch_size_tuning: bool = False
    enable_max_num_tokens_tuning: bool = False
    dynamic_batch_moving_average_window: int = 128


class SchedulerConfig(BaseModel):
    """1.2."""

    model_config = ConfigDict(extra="forbid")
    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: ContextChunkingPolicy | None = None
    dynamic_batch_config: DynamicBatchConfig | None = None
    waiting_queue_policy: Literal[WaitingQueuePolicy.FCFS] = WaitingQueuePolicy.FCFS


class NewSchedulerConfig(SchedulerConfig):
    """1.3 and later."""

    waiting_queue_policy: WaitingQueuePolicy = WaitingQueuePolicy.FCFS  # type: ignore[assignment]
    enable_prefix_aware_scheduling: bool = True


def scheduler_config_class() -> type[SchedulerConfig]:
    return NewSchedulerConfig if current().parsed.is_new else SchedulerConfig


def orders_by_priority(config: Any) -> bool:
    return bool(config.waiting_queue_policy is WaitingQueuePolicy.PRIORITY)
