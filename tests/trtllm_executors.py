"""TensorRT-LLM executors for tests: on the double of the package, or on the real one."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from infra.settings import to_settings
from infra.settings_sections import ExecutorSettings
from serve_app.engine.build import EngineLimits
from serve_app.executors.trtllm import open_engine
from serve_app.executors.trtllm_executor import TrtllmExecutor
from serve_app.executors.trtllm_model import ModelFacts, read_model_facts
from tests.trtllm_double import FOLDER

# A Hugging Face folder of a small model, on a machine with a GPU and the real package.
REAL_MODEL = os.environ.get("TRTLLM_TEST_MODEL", "")
DOUBLE_FACTS = ModelFacts("double", vocab_size=259, max_positions=131072, eos_ids=(257,))
OLD, NEW = "1.2.1", "1.3.0rc27"


def has_real_package() -> bool:
    """Installed, and not the double."""
    found = importlib.util.find_spec("tensorrt_llm")
    return found is not None and FOLDER not in Path(found.origin or "/").parents


def why_no_real_model() -> str | None:
    """None if the real package and a model are here."""
    if not has_real_package():
        return "tensorrt_llm is not installed"
    if not REAL_MODEL:
        return "TRTLLM_TEST_MODEL names no model"
    has_config = (Path(REAL_MODEL) / "config.json").is_file()
    return None if has_config else f"TRTLLM_TEST_MODEL: {REAL_MODEL} has no config.json"


def trtllm_settings(limits: EngineLimits, **trtllm: Any) -> ExecutorSettings:
    values = {
        "kind": "trtllm",
        "block_size": limits.block_size,
        "max_batch_size": limits.max_batch_size,
        "max_batched_tokens": limits.max_batched_tokens,
        "max_seq_len": limits.max_seq_len,
        "event_buffer_size": limits.event_buffer_size,
        "host_offload_min_retention_priority": limits.min_offload_priority,
        "trtllm": {"max_tokens": limits.num_gpu_blocks * limits.block_size, **trtllm},
    }
    return to_settings({"executor": values}).executor


def make_trtllm(_: Path, limits: EngineLimits, **trtllm: Any) -> TrtllmExecutor:
    """On the double, which must be in place."""
    return _make(limits, Path("double"), DOUBLE_FACTS, trtllm)


def make_real_trtllm(_: Path, limits: EngineLimits, **trtllm: Any) -> TrtllmExecutor:
    folder = Path(REAL_MODEL)
    return _make(limits, folder, read_model_facts(folder), trtllm)


def _make(
    limits: EngineLimits, folder: Path, facts: ModelFacts, trtllm: dict[str, Any]
) -> TrtllmExecutor:
    settings = trtllm_settings(limits, **trtllm)
    return TrtllmExecutor(
        settings,
        facts,
        lambda: open_engine(settings, folder, facts, facts.eos_ids),
        eos_ids=facts.eos_ids,
    )
