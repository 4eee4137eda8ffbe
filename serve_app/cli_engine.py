"""`cachelane engine build`: the commands that build a TensorRT engine, from settings."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from controllers.errors import SettingsError, SetupError
from infra.settings import Settings, load_settings
from serve_app.model_shapes import read_shape
from serve_app.trtllm_build import LAST_VERSION, BuildOptions, build_script

engine = typer.Typer(
    help="TensorRT engines, for the backend that needs them.", no_args_is_help=True
)


class WeightFormat(str, Enum):
    FULL_PREC = "full_prec"
    FP8 = "fp8"
    INT8_SQ = "int8_sq"
    INT4_AWQ = "int4_awq"
    W4A8_AWQ = "w4a8_awq"
    INT8_WO = "int8_wo"
    INT4_WO = "int4_wo"
    NVFP4 = "nvfp4"


@engine.command()
def build(
    config: Annotated[
        Path | None, typer.Option(help="Settings file (YAML); model and executor count.")
    ] = None,
    print_script: Annotated[
        bool, typer.Option("--print", help="Print the script; nothing is built here.")
    ] = False,
    output_dir: Annotated[str, typer.Option(help="For checkpoint and engine.")] = "trt-engine",
    qformat: Annotated[
        WeightFormat, typer.Option(help="Of the weights, as quantize.py names it.")
    ] = WeightFormat.FULL_PREC,
    opt_num_tokens: Annotated[
        int | None, typer.Option(min=1, help="One profile around it, instead of several.")
    ] = None,
) -> None:
    """The shell script that builds the engine. The default PyTorch backend needs none."""
    if not print_script:
        raise SetupError(
            "an engine is built where TensorRT-LLM and the GPU are: run "
            "`cachelane engine build --print > build.sh` and `sh build.sh` there; the default "
            f"PyTorch backend and versions after {LAST_VERSION} need no build"
        )
    settings = load_settings(config)
    options = BuildOptions(
        model_path=_model_path(settings),
        max_seq_len=_max_seq_len(settings),
        output_dir=output_dir,
        qformat=qformat.value,
        opt_num_tokens=opt_num_tokens,
    )
    typer.echo(build_script(settings.executor, options), nl=False)


def _model_path(settings: Settings) -> str:
    path = settings.model.path
    if path is None:
        raise SettingsError("model.path: must be given, as a Hugging Face folder")
    if path.endswith(".gguf"):
        raise SettingsError(f"model.path: {path!r} is not a Hugging Face folder")
    return path


def _max_seq_len(settings: Settings) -> int:
    """The model's own if the settings leave it open; trtllm-build would take short prompts only."""
    if settings.executor.max_seq_len is not None:
        return settings.executor.max_seq_len
    return read_shape(Path(_model_path(settings))).max_positions
