"""The script that builds a TensorRT engine: its arguments, and that a shell runs it as meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controllers.errors import SettingsError
from infra.settings import to_settings
from infra.settings_sections import ExecutorSettings
from serve_app.cli import main
from serve_app.trtllm_build import BuildOptions, build_script, token_profiles

OPTIONS = BuildOptions("/models/llama", max_seq_len=8192, output_dir="out")
ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "tests" / "data" / "configs"

RECORDER = """#!/bin/sh
for argument in "$@"; do printf '%s\\n' "$argument"; done > "{record}"
"""


def executor(**trtllm: Any) -> ExecutorSettings:
    values = {"max_batch_size": 64, "max_batched_tokens": 4096, "trtllm": trtllm}
    return to_settings({"executor": values}).executor


def run(script: str, folder: Path) -> tuple[list[str], list[str]]:
    """Arguments of quantize.py and of trtllm-build, when a shell runs the script."""
    for name in ("python3", "trtllm-build"):
        tool = folder / name
        tool.write_text(RECORDER.format(record=folder / f"{name}.args"), "utf-8")
        tool.chmod(0o755)
    env = {"PATH": f"{folder}:{os.defpath}", "EXAMPLES": "/the examples"}
    subprocess.run(["sh"], input=script.encode(), env=env, cwd=folder, check=True, timeout=60)
    first, second = (
        (folder / f"{name}.args").read_text("utf-8").splitlines()
        for name in ("python3", "trtllm-build")
    )
    return first, second


def test_the_arguments_of_a_plain_engine(tmp_path: Path) -> None:
    quantize, build = run(build_script(executor(), OPTIONS), tmp_path)
    assert quantize == [
        "/the examples/quantization/quantize.py",
        *("--model_dir", "/models/llama"),
        *("--dtype", "auto"),
        *("--qformat", "full_prec"),
        *("--tp_size", "1"),
        *("--pp_size", "1"),
        *("--output_dir", "out/checkpoint"),
    ]
    assert build == [
        *("--checkpoint_dir", "out/checkpoint"),
        *("--output_dir", "out/engine"),
        *("--max_batch_size", "64"),
        *("--max_num_tokens", "4096"),
        *("--multiple_profiles", "enable"),
        *("--max_input_len", "8191"),
        *("--max_seq_len", "8192"),
        *("--max_beam_width", "1"),
        *("--kv_cache_type", "paged"),
        *("--tokens_per_block", "32"),
        *("--use_paged_context_fmha", "enable"),
        *("--gemm_plugin", "auto"),
        *("--workers", "1"),
    ]


def test_a_quantised_cache_is_calibrated_first(tmp_path: Path) -> None:
    settings = executor(kv_cache_dtype="fp8", tensor_parallel_size=2, pipeline_parallel_size=2)
    options = BuildOptions("/models/llama", 8192, "out", qformat="fp8", opt_num_tokens=256)
    script = build_script(settings, options)
    quantize, build = run(script, tmp_path)
    assert quantize[5:] == [
        *("--qformat", "fp8"),
        *("--kv_cache_dtype", "fp8"),
        *("--calib_size", "512"),
        *("--tp_size", "2"),
        *("--pp_size", "2"),
        *("--output_dir", "out/checkpoint"),
    ]
    # The two contradict each other in trtllm-build.
    assert "--multiple_profiles" not in build
    assert build[build.index("--opt_num_tokens") + 1] == "256"
    assert build[build.index("--gemm_plugin") + 1] == "disable"
    assert build[build.index("--workers") + 1] == "4"
    assert "scales of the fp8 cache are calibrated" in script
    assert "#   tokens of an iteration: 1 256 4096" in script.splitlines()


def test_adapters_and_paths_a_shell_would_split(tmp_path: Path) -> None:
    settings = executor(loras={"a": "/lora/a b", "b": "/lora/$HOME"}, max_lora_rank=16)
    options = BuildOptions("/models/it's a llama", 8192, "out dir; rm -rf x")
    quantize, build = run(build_script(settings, options), tmp_path)
    assert quantize[2] == "/models/it's a llama"
    assert build[3] == "out dir; rm -rf x/engine"
    start = build.index("--lora_plugin")
    assert build[start:] == [
        *("--lora_plugin", "auto"),
        *("--lora_dir", "/lora/a b", "/lora/$HOME"),
        *("--max_lora_rank", "16"),
        *("--workers", "1"),
    ]


def test_the_script_stops_where_trtllm_build_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh"],
        input=build_script(executor(), OPTIONS).encode(),
        env={"PATH": "/nowhere"},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, b"trtllm-build is not on PATH\n")


def test_profiles() -> None:
    assert token_profiles(4096, OPTIONS) == [
        (1, 64, 64),
        (64, 128, 128),
        (128, 256, 256),
        (256, 512, 512),
        (512, 1024, 1024),
        (1024, 4096, 4096),
    ]
    assert token_profiles(200, OPTIONS) == [(1, 64, 64), (64, 128, 128), (128, 200, 200)]
    assert token_profiles(64, OPTIONS) == [(1, 64, 64)]
    assert token_profiles(40, OPTIONS) == [(1, 40, 40)]


@pytest.mark.parametrize(
    ("trtllm", "message"),
    [
        (
            {"kv_cache_dtype": "nvfp4"},
            "executor.trtllm.kv_cache_dtype: the TensorRT backend has",
        ),
        ({"kv_cache_dtype": "float16"}, "executor.trtllm.kv_cache_dtype: an unquantised cache has"),
    ],
)
def test_what_the_backend_cannot_do(trtllm: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build_script(executor(**trtllm), OPTIONS)
    assert str(caught.value).startswith(message)
    same = executor(kv_cache_dtype="float16", dtype="float16")
    assert "--dtype float16" in build_script(same, OPTIONS)


def test_a_block_size_that_trtllm_build_refuses() -> None:
    settings = to_settings({"executor": {"block_size": 24}}).executor
    with pytest.raises(SettingsError, match=r"^executor\.block_size: 24 is not a power of two"):
        build_script(settings, OPTIONS)


def test_an_optimum_beyond_the_maximum() -> None:
    options = BuildOptions("/models/llama", 8192, "out", opt_num_tokens=5000)
    with pytest.raises(SettingsError, match=r"^--opt-num-tokens: 5000 is more than executor"):
        build_script(executor(), options)


@pytest.fixture
def cachelane(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cachelane", "engine", "build", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def test_the_command_prints_the_script(cachelane: Any, tmp_path: Path) -> None:
    folder = CONFIGS / "llama-3.1-8b"
    config = tmp_path / "cachelane.yaml"
    config.write_text(f"model: {{path: {folder}}}\n", "utf-8")
    code, out, err = cachelane("--print", "--config", str(config), "--output-dir", "/engines/x")
    assert (code, err) == (0, "")
    settings = to_settings({"model": {"path": str(folder)}}).executor
    # max_seq_len is left open: the model's positions.
    assert out == build_script(settings, BuildOptions(str(folder), 131_072, "/engines/x"))


def test_the_example_in_the_documentation_is_real(cachelane: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "engines.md").read_text("utf-8")
    config = tmp_path / "cachelane.yaml"
    config.write_text(page.split("```yaml\n")[1].split("```")[0], "utf-8")
    shown = page.split("$ cachelane engine build --print --config cachelane.yaml\n")[1]
    assert cachelane("--print", "--config", str(config)) == (0, shown.split("```")[0], "")


def test_without_print_nothing_is_built(cachelane: Any) -> None:
    code, out, err = cachelane()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "run `cachelane engine build --print > build.sh`" in err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("null", "cachelane: model.path: must be given, as a Hugging Face folder\n"),
        ("/m/x.gguf", "cachelane: model.path: '/m/x.gguf' is not a Hugging Face folder\n"),
        (
            "/m",
            "cachelane: /m does not exist: a GGUF file or a folder with config.json is needed\n",
        ),
    ],
)
def test_a_model_without_an_engine(
    cachelane: Any, tmp_path: Path, model: str, message: str
) -> None:
    config = tmp_path / "cachelane.yaml"
    config.write_text(f"model: {{path: {model}}}\n", "utf-8")
    assert cachelane("--print", "--config", str(config)) == (1, "", message)
