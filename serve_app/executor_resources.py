"""What one executor replica takes of a Ray cluster, as deployment options.

Owns the bookkeeping of GPUs for every way an engine may be orchestrated. Does not import Ray.
"""

from __future__ import annotations

import sys
from typing import Any

from infra.settings_sections import ExecutorSettings
from serve_app.profile_tools import launch_environment

# The engine then runs in the replica's process instead of one that MPI starts.
IN_PROCESS = {"TLLM_WORKER_USE_SINGLE_PROCESS": "1"}
MIN_BUNDLE_CPUS = 0.01  # a bundle of nothing is not allowed


def executor_resources(executor: ExecutorSettings) -> dict[str, Any]:
    """`ray_actor_options`, and for an engine whose workers are Ray actors of its own the placement
    group in which they and the replica are scheduled together: the replica itself then holds no
    GPU, or each would be reserved twice."""
    if executor.kind != "trtllm":
        return {"ray_actor_options": _actor(executor, num_gpus_of(executor))}
    trtllm, num_gpus = executor.trtllm, num_gpus_of(executor)
    if trtllm.chosen_orchestrator == "process":
        return {"ray_actor_options": _actor(executor, num_gpus, IN_PROCESS)}
    if trtllm.chosen_orchestrator == "mpi":
        return {"ray_actor_options": _actor(executor, num_gpus)}
    if not num_gpus:  # the engine makes a group of its own
        return {"ray_actor_options": _actor(executor, 0.0)}
    # The group's first bundle is the replica's.
    indices = ",".join(str(at) for at in range(1, trtllm.num_gpus + 1))
    bundles = [{"CPU": max(executor.num_cpus, MIN_BUNDLE_CPUS)}]
    bundles += [{"GPU": 1.0} for _ in range(trtllm.num_gpus)]
    return {
        "ray_actor_options": _actor(executor, 0.0, {"TRTLLM_RAY_BUNDLE_INDICES": indices}),
        "placement_group_bundles": bundles,
        "placement_group_strategy": "PACK",
    }


def num_gpus_of(executor: ExecutorSettings) -> float:
    """GPUs of one replica with all its workers."""
    if executor.num_gpus is not None:
        return executor.num_gpus
    return float(executor.trtllm.num_gpus) if executor.kind == "trtllm" else 0.0


def _actor(
    executor: ExecutorSettings, num_gpus: float, env: dict[str, str] | None = None
) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": executor.num_cpus, "num_gpus": float(num_gpus)}
    runtime_env: dict[str, Any] = {} if env is None else {"env_vars": env}
    runtime_env.update(launch_environment(executor.profiling, sys.executable))
    return {**options, "runtime_env": runtime_env} if runtime_env else options
