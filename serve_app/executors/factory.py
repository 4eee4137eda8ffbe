"""Settings -> executor. The only place that knows which executors exist."""

from __future__ import annotations

from pathlib import Path

from controllers.blocks import as_token_array
from controllers.errors import SettingsError
from infra.settings import Settings
from infra.settings_sections import ExecutorSettings, ScriptedSettings
from serve_app.engine.build import EngineLimits
from serve_app.engine.scripted_model import Timing
from serve_app.executors.base import Executor
from serve_app.executors.local import LocalExecutor
from serve_app.executors.scripted import Faults, ScriptedExecutor
from serve_app.executors.trtllm import check_installed, open_engine
from serve_app.executors.trtllm_executor import TrtllmExecutor
from serve_app.executors.trtllm_model import read_model_facts
from serve_app.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer


def create_executor(settings: Settings, model_path: str | None) -> Executor:
    """`model_path` is a GGUF file, for TensorRT-LLM a Hugging Face folder; the scripted executor
    takes at most its vocabulary from it.

    Raises SettingsError or ModelFileError.
    """
    executor = settings.executor
    limits = limits_of(executor)
    if executor.kind == "scripted":
        scripted = executor.scripted
        timing = Timing(
            prefill_ms=scripted.prefill_ms,
            prefill_ms_per_token=scripted.prefill_ms_per_token,
            decode_ms=scripted.decode_ms,
        )
        name = settings.model.name or "scripted"
        tokenizer = load_tokenizer(Path(model_path)) if model_path else ByteTokenizer()
        return ScriptedExecutor(
            limits,
            timing=timing,
            faults=_faults_of(scripted, tokenizer),
            model_name=name,
            vocab_size=tokenizer.vocab_size,
        )
    if executor.kind == "trtllm":
        return _create_trtllm(settings, model_path)
    if model_path is None:
        raise SettingsError("model.path: the local executor needs a GGUF file")
    return LocalExecutor.from_gguf(
        Path(model_path),
        limits,
        model_name=settings.model.name,
        num_threads=executor.num_threads,
    )


def _faults_of(scripted: ScriptedSettings, tokenizer: Tokenizer) -> Faults:
    def marker(text: str | None) -> bytes | None:
        return None if text is None else as_token_array(tokenizer.encode(text)).tobytes()

    return Faults(
        die_on=marker(scripted.die_on),
        hang_on=marker(scripted.hang_on),
        slow_on=marker(scripted.slow_on),
        slow_factor=scripted.slow_factor,
    )


def _create_trtllm(settings: Settings, model_path: str | None) -> Executor:
    check_installed()
    if model_path is None:
        raise SettingsError("model.path: the TensorRT-LLM executor needs a Hugging Face folder")
    executor, path = settings.executor, Path(model_path)
    facts = read_model_facts(path)
    eos_ids = tuple(dict.fromkeys((*facts.eos_ids, *load_tokenizer(path).eos_ids)))
    return TrtllmExecutor(
        executor,
        facts,
        lambda: open_engine(executor, path, facts, eos_ids),
        eos_ids=eos_ids,
        model_name=settings.model.name,
    )


def limits_of(executor: ExecutorSettings) -> EngineLimits:
    return EngineLimits(
        block_size=executor.block_size,
        num_gpu_blocks=executor.num_gpu_blocks,
        num_host_blocks=executor.num_host_blocks,
        max_batch_size=executor.max_batch_size,
        max_batched_tokens=executor.max_batched_tokens,
        max_seq_len=executor.max_seq_len,
        event_buffer_size=executor.event_buffer_size,
        min_offload_priority=executor.host_offload_min_retention_priority,
    )
