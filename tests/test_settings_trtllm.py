"""Laws of the section executor.trtllm, and what a replica takes of the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from controllers.errors import SettingsError
from infra.settings import to_settings
from infra.settings_sections import ExecutorSettings
from serve_app.executor_resources import executor_resources, num_gpus_of


def executor(trtllm: dict[str, Any] | None = None, **values: Any) -> ExecutorSettings:
    given = {"kind": "trtllm", **values, "trtllm": trtllm or {}}
    return to_settings({"executor": given}).executor


@pytest.mark.parametrize(
    ("trtllm", "values", "message"),
    [
        ({}, {"block_size": 33}, "executor.block_size: 33 is not a power of two"),
        ({}, {"block_size": 1}, "executor.block_size: 1 is not a power of two"),
        (
            {"tensor_parallel_size": 2, "orchestrator": "process"},
            {},
            "orchestrator: 'process' is for one GPU.*'auto', 'mpi', 'ray'",
        ),
        ({"enable_attention_dp": True}, {}, "enable_attention_dp: needs a tensor_parallel_size"),
        (
            {"enable_retention": False, "require_retention": True},
            {},
            "require_retention: true contradicts enable_retention false",
        ),
        ({"llm_args": {"max_batch_size": 3}}, {}, "llm_args.max_batch_size: is set by its own key"),
        ({"llm_args": {"dtype": "fp8"}}, {}, "llm_args.dtype: is set by its own key"),
        (
            {"tensor_parallel_size": 2},
            {"num_gpus": 2},
            "num_gpus: 2 would be reserved beside the 2 of the engine's own Ray workers",
        ),
        ({}, {"num_gpus": 2}, "num_gpus: 2 for an engine that uses one GPU"),
        (
            {"tensor_parallel_size": 4, "orchestrator": "mpi"},
            {"num_gpus": 1},
            "num_gpus: 1 for an engine that uses 4 GPUs",
        ),
        ({"event_buffer_max_size": 0}, {}, "event_buffer_max_size"),
        ({"free_gpu_memory_fraction": 1.0}, {}, "free_gpu_memory_fraction"),
        ({"kv_cache_dtype": "fp4"}, {}, "kv_cache_dtype.*'fp8', 'nvfp4', 'int8'"),
        ({"max_attention_window": []}, {}, "max_attention_window"),
        ({"tensor_paralel_size": 2}, {}, "did you mean 'tensor_parallel_size'"),
    ],
)
def test_what_is_refused(trtllm: dict[str, Any], values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        executor(trtllm, **values)


def test_the_laws_hold_for_this_executor_only() -> None:
    to_settings({"executor": {"kind": "scripted", "block_size": 33}})


IN_PROCESS = {"env_vars": {"TLLM_WORKER_USE_SINGLE_PROCESS": "1"}}


@pytest.mark.parametrize(
    ("trtllm", "num_gpus", "expected"),
    [
        ({}, None, {"num_cpus": 0.0, "num_gpus": 1.0, "runtime_env": IN_PROCESS}),
        ({}, 0.5, {"num_cpus": 0.0, "num_gpus": 0.5, "runtime_env": IN_PROCESS}),
        ({}, 0, {"num_cpus": 0.0, "num_gpus": 0.0, "runtime_env": IN_PROCESS}),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "orchestrator": "mpi"},
            None,
            {"num_cpus": 0.0, "num_gpus": 4.0},
        ),
        ({"tensor_parallel_size": 2}, 0, {"num_cpus": 0.0, "num_gpus": 0.0}),
    ],
)
def test_a_replica_that_holds_its_gpus(
    trtllm: dict[str, Any], num_gpus: float | None, expected: dict[str, Any]
) -> None:
    found = executor_resources(executor(trtllm, num_gpus=num_gpus))
    assert found == {"ray_actor_options": expected}


def test_workers_of_ray_are_scheduled_with_the_replica() -> None:
    """The replica's own bundle has no GPU, or each would be reserved twice."""
    two = executor({"tensor_parallel_size": 2}, num_cpus=1.0)
    assert executor_resources(two) == {
        "ray_actor_options": {
            "num_cpus": 1.0,
            "num_gpus": 0.0,
            "runtime_env": {"env_vars": {"TRTLLM_RAY_BUNDLE_INDICES": "1,2"}},
        },
        "placement_group_bundles": [{"CPU": 1.0}, {"GPU": 1.0}, {"GPU": 1.0}],
        "placement_group_strategy": "PACK",
    }
    assert num_gpus_of(two) == 2.0


def test_other_executors() -> None:
    plain = to_settings({"executor": {"kind": "scripted", "num_cpus": 0.5}}).executor
    assert executor_resources(plain) == {"ray_actor_options": {"num_cpus": 0.5, "num_gpus": 0.0}}
    gpu = to_settings({"executor": {"kind": "local", "num_gpus": 1}}).executor
    assert executor_resources(gpu) == {"ray_actor_options": {"num_cpus": 0.0, "num_gpus": 1.0}}
