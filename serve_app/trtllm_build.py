"""Settings -> a shell script that builds a TensorRT engine, for those who still run that backend.

Owns what the arguments of TensorRT-LLM's quantize.py and trtllm-build follow from. Runs neither:
both need TensorRT-LLM up to 1.3.0rc20, the last version with the TensorRT backend, and a GPU of the
kind that will serve.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from controllers.errors import SettingsError
from infra.settings_sections import ExecutorSettings
from infra.settings_trtllm import TrtllmSettings, check_trtllm

LAST_VERSION = "1.3.0rc20"
EXAMPLES = "/app/tensorrt_llm/examples"  # where NVIDIA's images keep them
CALIBRATED = {"fp8", "int8"}
CALIBRATION_SAMPLES = 512
# Borders of the profiles that --multiple_profiles makes; the last goes from 1024 to the maximum.
PROFILE_TOKENS = (64, 128, 256, 512, 1024)
# Weight formats for which TensorRT's own GEMM kernels are the better choice.
OWN_GEMM = {"fp8", "nvfp4"}


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """`opt_num_tokens` None: several optimisation profiles instead of one around that number."""

    model_path: str
    max_seq_len: int
    output_dir: str
    qformat: str = "full_prec"
    opt_num_tokens: int | None = None


def build_script(executor: ExecutorSettings, options: BuildOptions) -> str:
    """A POSIX shell script. Raises SettingsError for what the TensorRT backend cannot do."""
    _check(executor, options)
    parts = [
        _head(options),
        _comment(_checkpoint_note(executor.trtllm)),
        _command(['python3 "$EXAMPLES/quantization/quantize.py"', *_checkpoint(executor, options)]),
        _comment(*_profile_notes(executor, options)),
        _command(["trtllm-build", *_engine(executor, options)]),
    ]
    return "\n".join(parts)


def _check(executor: ExecutorSettings, options: BuildOptions) -> None:
    settings = executor.trtllm
    check_trtllm(settings, executor.block_size, num_gpus=None)
    dtype = settings.kv_cache_dtype
    if dtype == "nvfp4":
        raise SettingsError(
            "executor.trtllm.kv_cache_dtype: the TensorRT backend has no nvfp4 cache, only "
            "fp8 and int8; the PyTorch backend has it and needs no build"
        )
    if dtype not in {"auto", settings.dtype, *CALIBRATED}:
        raise SettingsError(
            f"executor.trtllm.kv_cache_dtype: an unquantised cache has the model's format; set "
            f"executor.trtllm.dtype to {dtype}"
        )
    opt = options.opt_num_tokens
    if opt is not None and opt > executor.max_batched_tokens:
        raise SettingsError(
            f"--opt-num-tokens: {opt} is more than executor.max_batched_tokens, "
            f"{executor.max_batched_tokens}"
        )


def _head(options: BuildOptions) -> str:
    out = shlex.quote(options.output_dir)
    return f"""#!/bin/sh
# Builds a TensorRT engine. For the TensorRT backend only: TensorRT-LLM up to {LAST_VERSION} has it,
# newer ones and the default PyTorch backend load the model without a build.
# Run it where TensorRT-LLM is installed, on a GPU of the kind that will serve.
set -eu
: "${{EXAMPLES:={EXAMPLES}}}"  # examples/ of the installed version's sources
MODEL={shlex.quote(options.model_path)}
OUT={out}
command -v trtllm-build > /dev/null || {{ echo "trtllm-build is not on PATH" >&2; exit 1; }}
"""


def _checkpoint_note(settings: TrtllmSettings) -> str:
    dtype = settings.kv_cache_dtype
    if dtype in CALIBRATED:
        return f"Checkpoint. The scales of the {dtype} cache are calibrated on sample texts."
    return "Checkpoint, in TensorRT-LLM's own layout."


def _checkpoint(executor: ExecutorSettings, options: BuildOptions) -> list[str]:
    """Parallelism is a property of the checkpoint; trtllm-build finds it there."""
    settings = executor.trtllm
    is_calibrated = settings.kv_cache_dtype in CALIBRATED
    return [
        '--model_dir "$MODEL"',
        f"--dtype {shlex.quote(settings.dtype)}",
        f"--qformat {options.qformat}",
        *([f"--kv_cache_dtype {settings.kv_cache_dtype}"] if is_calibrated else []),
        *([f"--calib_size {CALIBRATION_SAMPLES}"] if is_calibrated else []),
        f"--tp_size {settings.tensor_parallel_size}",
        f"--pp_size {settings.pipeline_parallel_size}",
        '--output_dir "$OUT/checkpoint"',
    ]


def _profile_notes(executor: ExecutorSettings, options: BuildOptions) -> list[str]:
    """The shapes TensorRT optimises for. Larger ones than the maximum are refused when it runs."""
    most, sequences = executor.max_batched_tokens, executor.max_batch_size
    profiles = "; ".join(f"{low} {opt} {high}" for low, opt, high in token_profiles(most, options))
    return [
        "Engine. Shapes, as min opt max:",
        f"  tokens of an iteration: {profiles}",
        f"  sequences: 1 {(sequences + 1) // 2} {sequences}",
        "Fusing layers needs no option. Block reuse and chunked prefill need paged context FMHA.",
    ]


def token_profiles(max_num_tokens: int, options: BuildOptions) -> list[tuple[int, int, int]]:
    """(min, opt, max) of each optimisation profile, as trtllm-build derives them."""
    if options.opt_num_tokens is not None:
        return [(1, options.opt_num_tokens, max_num_tokens)]
    borders = [border for border in PROFILE_TOKENS if border < max_num_tokens] + [max_num_tokens]
    return [(low, high, high) for low, high in zip([1, *borders], borders, strict=False)]


def _engine(executor: ExecutorSettings, options: BuildOptions) -> list[str]:
    settings = executor.trtllm
    opt = options.opt_num_tokens
    return [
        '--checkpoint_dir "$OUT/checkpoint"',
        '--output_dir "$OUT/engine"',
        f"--max_batch_size {executor.max_batch_size}",
        f"--max_num_tokens {executor.max_batched_tokens}",
        "--multiple_profiles enable" if opt is None else f"--opt_num_tokens {opt}",
        f"--max_input_len {options.max_seq_len - 1}",
        f"--max_seq_len {options.max_seq_len}",
        "--max_beam_width 1",
        "--kv_cache_type paged",
        f"--tokens_per_block {executor.block_size}",
        "--use_paged_context_fmha enable",
        f"--gemm_plugin {'disable' if options.qformat in OWN_GEMM else 'auto'}",
        *_lora(settings),
        f"--workers {settings.num_gpus}",
    ]


def _lora(settings: TrtllmSettings) -> list[str]:
    if not settings.loras:
        return []
    folders = " ".join(shlex.quote(folder) for folder in settings.loras.values())
    return [
        "--lora_plugin auto",
        f"--lora_dir {folders}",
        f"--max_lora_rank {settings.max_lora_rank}",
    ]


def _comment(*lines: str) -> str:
    return "\n".join(f"# {line}" for line in lines)


def _command(parts: list[str]) -> str:
    return " \\\n  ".join(parts) + "\n"
