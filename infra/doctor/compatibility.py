"""Which TensorRT-LLM goes with which torch, transformers, CUDA, driver and Python, as data.

From TensorRT-LLM's release notes, its requirements.txt and its installation guide of each line;
minimum drivers from NVIDIA's table of minor-version compatibility. None of it was tried here. What
is not known is None and is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

# CUDA's major version -> the oldest driver branch that runs it.
CUDA_TO_DRIVER = {11: 450, 12: 525, 13: 580}

# Oldest compute capability that can keep a KV cache of this type.
KV_DTYPE_TO_CAPABILITY = {"fp8": (8, 9), "nvfp4": (10, 0)}
MIN_CAPABILITY = (8, 0)  # Ampere; older ones are not among TensorRT-LLM's supported GPUs


@dataclass(frozen=True, slots=True)
class Line:
    """One line of TensorRT-LLM; `torch` and `transformers` are version specifiers."""

    name: str
    python: tuple[str, ...]
    cuda: int
    torch: str | None
    transformers: str | None

    @property
    def min_driver(self) -> int:
        return CUDA_TO_DRIVER[self.cuda]


LINES = (
    Line("1.0", ("3.10", "3.12"), 12, ">=2.7.1,<=2.8.0", "==4.53.1"),
    Line("1.1", ("3.10", "3.12"), 12, ">=2.7.1,<=2.9.0", "==4.56.0"),
    Line("1.2", ("3.10", "3.12"), 13, ">=2.9.0a0,<=2.9.1", ">=4.57.1,<4.58"),
    Line("1.3", ("3.10", "3.12"), 13, None, None),  # candidates only
    Line("1.4", ("3.10", "3.12"), 13, None, None),  # candidates only
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A known fault of TensorRT-LLM `versions` that hurts with the named setting."""

    id: str
    versions: str
    needs_host_tier: bool
    found: str
    fix: str


FAULTS = (
    Fault(
        "host-tier-events",
        "<1.3.0rc6",
        True,
        "events of blocks moved to the host crash the engine's event thread (TensorRT-LLM #4666)",
        "Set executor.trtllm.host_cache_bytes to 0, or install TensorRT-LLM 1.3.0rc6 or later.",
    ),
    Fault(
        "v2-manager",
        ">=1.3.0rc0",
        False,
        "the V2 cache manager, chosen by default for many models, ignores retention priorities",
        "Keep use_kv_cache_manager_v2 off, as the executor's settings do.",
    ),
)
