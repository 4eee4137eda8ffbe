"""`cachelane plan`: what a model's KV cache takes and how much of it fits, before anything runs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from controllers.errors import SettingsError, SetupError
from controllers.memory_plan import plan as make_plan
from controllers.memory_plan import with_window
from controllers.memory_plan_types import PlanChoices
from controllers.model_shape import ModelShape
from serve_app.byte_sizes import parse_size
from serve_app.cli_common import JsonOption, console, print_json
from serve_app.model_shapes import read_shape
from serve_app.plan_table import render


class KvDtype(str, Enum):
    AUTO = "auto"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    NVFP4 = "nvfp4"


class WeightDtype(str, Enum):
    AS_IS = "as-is"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    NVFP4 = "nvfp4"


def plan(
    model: Annotated[Path, typer.Option(help="GGUF file, or Hugging Face folder or config.json.")],
    kv_dtype: Annotated[
        KvDtype, typer.Option(help="Of the cache; auto: as the checkpoint says.")
    ] = KvDtype.AUTO,
    weight_dtype: Annotated[
        WeightDtype, typer.Option(help="as-is: as the files have it.")
    ] = WeightDtype.AS_IS,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a block.")] = 32,
    max_seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens; default: the model's positions.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a usual sequence; default: 2048.")
    ] = None,
    gpu_memory: Annotated[str, typer.Option(help="Of one GPU: 80GiB, 80GB or bytes.")] = "80GiB",
    host_memory: Annotated[str, typer.Option(help="For blocks of this replica.")] = "0",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs of each layer.")] = 1,
    pipeline_parallel: Annotated[int, typer.Option(min=1, help="Stages of layers.")] = 1,
    sliding_window: Annotated[
        int | None, typer.Option(min=0, help="Of every layer, in place of the model's; 0: none.")
    ] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="For activations.")] = 2048,
    max_num_tokens: Annotated[int, typer.Option(min=1, help="For activations.")] = 8192,
    free_gpu_memory_fraction: Annotated[
        float | None, typer.Option(help="Of what is free; default: the recommended one.")
    ] = None,
    window_shares: Annotated[
        str | None, typer.Option(help="As 0.4,0.6: of each window, smallest first; default: equal.")
    ] = None,
    activation_reserve: Annotated[
        str | None, typer.Option(help="Measured size in place of the estimate.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan the memory of a model's KV cache: bytes, blocks, sequences, what to set."""
    shape = read_shape(model)
    if sliding_window is not None:
        shape = with_window(shape, sliding_window)
    reserve = activation_reserve
    choices = PlanChoices(
        kv_dtype=_kv_dtype(kv_dtype, shape),
        weight_dtype=weight_dtype.value,
        gpu_memory=parse_size(gpu_memory, "--gpu-memory"),
        host_memory=parse_size(host_memory, "--host-memory"),
        block_size=block_size,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        max_seq_len=max_seq_len,
        sequence_length=sequence_length,
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        free_gpu_memory_fraction=free_gpu_memory_fraction,
        window_shares=_shares(window_shares),
        activation_reserve=None if reserve is None else parse_size(reserve, "--activation-reserve"),
    )
    _show(shape, choices, as_json)


def _show(shape: ModelShape, choices: PlanChoices, as_json: bool) -> None:
    """A plan that does not fit is printed as JSON all the same. Raises SetupError for it."""
    made = make_plan(shape, choices)
    if as_json:
        values: dict[str, Any] = msgspec.to_builtins(made)
        print_json(values)
    elif made.error is None:
        console().print(render(made))
    if made.error is not None:
        raise SetupError(made.error)


def _kv_dtype(dtype: KvDtype, shape: ModelShape) -> str:
    """auto: what the checkpoint was calibrated for, else 16 bits as its weights."""
    if dtype is not KvDtype.AUTO:
        return str(dtype.value)
    if shape.stored_kv_dtype is not None:
        return shape.stored_kv_dtype
    return "bf16" if shape.stored_weight_dtype == "bf16" else "fp16"


def _shares(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"--window-shares: {text!r} is not numbers with commas") from None
