"""`cachelane plan`: what it prints, as table and as JSON, and one line for every bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from controllers.errors import SettingsError
from serve_app.byte_sizes import format_size, parse_size
from serve_app.cli import main

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "tests" / "data" / "configs"
LLAMA = ("--model", str(CONFIGS / "llama-3.1-8b"))


@pytest.fixture
def cachelane(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, columns: int = 100) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)"""
        monkeypatch.setattr(sys, "argv", ["cachelane", "plan", *arguments])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def test_json_has_every_figure(cachelane: Any) -> None:
    code, out, err = cachelane(*LLAMA, "--host-memory", "64GiB", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    picked = {
        name: found[name]
        for name in (
            "model",
            "kv_dtype",
            "weight_dtype",
            "weight_bytes",
            "kv_bytes_per_token",
            "kv_bytes_per_block",
            "gpu_blocks",
            "host_blocks",
            "max_seq_len",
            "max_concurrent_sequences",
            "max_concurrent_sequences_at_max_seq_len",
            "recommended_free_gpu_memory_fraction",
            "recommended_max_seq_len",
            "warnings",
            "error",
        )
    }
    assert picked == {
        "model": "llama-3.1-8b",
        "kv_dtype": "bf16",
        "weight_dtype": "as-is (bf16)",
        "weight_bytes": 2 * 8_030_261_248,
        "kv_bytes_per_token": 131_072,
        "kv_bytes_per_block": 4_194_304,
        "gpu_blocks": 14_967,
        "host_blocks": 16_384,  # 64 GiB / 4 MiB
        "max_seq_len": 131_072,
        "max_concurrent_sequences": 233,  # 14,967 / 64
        "max_concurrent_sequences_at_max_seq_len": 3,
        "recommended_free_gpu_memory_fraction": 0.95,
        "recommended_max_seq_len": 131_072,
        "warnings": [],
        "error": None,
    }
    formats = ["bf16", "fp8", "int8", "nvfp4"]
    assert [row["kv_dtype"] for row in found["comparison"]] == formats


def test_the_table_says_the_same(cachelane: Any) -> None:
    code, out, _ = cachelane(*LLAMA, "--tensor-parallel", "2", "--host-memory", "64GiB")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "llama-3.1-8b · 8.03 B parameters · bf16 cache · 32 tokens a block · tensor parallel 2",
        "weights 7.48 GiB (as-is (bf16), counted from the shape)",
        "a token 128 KiB, 64 KiB of it on a GPU",
        "a block 4 MiB, 2 MiB of it on a GPU",
        "host 16,384 blocks, 524,288 tokens",
        "host_cache_size 34359738368 bytes a rank",
        "nvfp4 36 KiB 3,810,272 1,860 3.56 Blackwell, calibration",
        "assumed: weights divide evenly over the GPUs",
    ):
        assert line in lines


def test_windows_in_the_table(cachelane: Any) -> None:
    _, out, _ = cachelane("--model", str(CONFIGS / "gemma-3-4b"))
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "1,024 29 116 KiB 9,133 0" in lines
    assert "max_attention_window [1024, 1024, 1024, 1024, 1024, 131072]" in lines
    assert "window shares 0.75,0.25" in lines


def test_options_reach_the_plan(cachelane: Any) -> None:
    _, out, _ = cachelane(
        *("--model", str(CONFIGS / "gemma-3-4b" / "config.json")),
        *("--kv-dtype", "fp8", "--weight-dtype", "fp8", "--block-size", "64"),
        *("--max-seq-len", "8192", "--sequence-length", "1000", "--gpu-memory", "24GB"),
        *("--free-gpu-memory-fraction", "0.8", "--activation-reserve", "2GiB"),
        *("--window-shares", "0.3,0.7", "--json"),
    )
    found = json.loads(out)
    assert (found["kv_dtype"], found["weight_dtype"]) == ("fp8", "fp8")
    assert (found["max_seq_len"], found["sequence_length"]) == (8192, 1000)
    assert found["gpu_memory_bytes"] == 24_000_000_000
    assert found["activation_reserve_bytes"] == 2 * 1024**3
    assert found["kv_cache_bytes"] == int(0.8 * found["free_bytes"])
    assert [pool["gpu_blocks"] for pool in found["pools"]] == [
        int(0.7 * found["kv_cache_bytes"]) // (5 * 2048 * 64),
        int(0.3 * found["kv_cache_bytes"]) // (29 * 2048 * 64),
    ]


def test_another_window_replaces_the_models(cachelane: Any) -> None:
    gemma = ("--model", str(CONFIGS / "gemma-3-4b"), "--json")
    _, out, _ = cachelane(*gemma, "--sliding-window", "0")
    assert [pool["window"] for pool in json.loads(out)["pools"]] == [None]
    _, out, _ = cachelane(*gemma, "--sliding-window", "512")
    assert [pool["window"] for pool in json.loads(out)["pools"]] == [512]


def test_the_checkpoint_chooses_the_cache_format(cachelane: Any, tmp_path: Path) -> None:
    config = json.loads((CONFIGS / "llama-3.1-8b" / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}', "utf-8"
    )
    _, out, _ = cachelane("--model", str(tmp_path), "--json")
    found = json.loads(out)
    assert (found["kv_dtype"], found["weight_dtype"]) == ("fp8", "as-is (fp8)")


def test_a_model_that_does_not_fit_is_one_line_and_exit_code_1(cachelane: Any) -> None:
    arguments = ("--model", str(CONFIGS / "llama-2-70b"))
    code, out, err = cachelane(*arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("cachelane: llama-2-70b does not fit: weights take 128.5 GiB")
    code, out, err = cachelane(*arguments, "--json")
    found = json.loads(out)
    assert (code, found["gpu_blocks"], err) == (1, 0, f"cachelane: {found['error']}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "/nowhere"), "/nowhere does not exist"),
        ((*LLAMA, "--gpu-memory", "80 parsecs"), "--gpu-memory: '80 parsecs' is not a size"),
        ((*LLAMA, "--gpu-memory", "-1"), "--gpu-memory: '-1' is not a size"),
        ((*LLAMA, "--gpu-memory", "0"), "--gpu-memory: 0 is less than 1"),
        ((*LLAMA, "--host-memory", ""), "--host-memory: '' is not a size"),
        ((*LLAMA, "--activation-reserve", "x"), "--activation-reserve: 'x' is not a size"),
        ((*LLAMA, "--window-shares", "a,b"), "--window-shares: 'a,b' is not numbers with commas"),
        ((*LLAMA, "--window-shares", "0.5,0.5"), "--window-shares: 2 for 1 attention windows"),
        ((*LLAMA, "--free-gpu-memory-fraction", "nan"), "--free-gpu-memory-fraction: nan is not"),
        ((*LLAMA, "--sequence-length", "200000"), "--sequence-length: 200000 is more than"),
    ],
)
def test_bad_input_is_one_line(cachelane: Any, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = cachelane(*arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"cachelane: {message}")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((*LLAMA, "--kv-dtype", "int4"), "--kv-dtype"),
        ((*LLAMA, "--block-size", "0"), "--block-size"),
        ((*LLAMA, "--tensor-parallel", "two"), "--tensor-parallel"),
        ((), "--model"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    cachelane: Any, arguments: tuple[str, ...], option: str
) -> None:
    code, out, err = cachelane(*arguments)
    assert (code, out) == (2, "")
    assert option in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80GiB", 80 * 1024**3),
        ("80 gb", 80 * 1000**3),
        ("1.5TiB", 3 * 2**39),
        ("512MiB", 2**29),
        ("10kB", 10_000),
        ("7B", 7),
        ("0", 0),
        ("85899345920", 85_899_345_920),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text, "--x") == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "80G", "80GiB/s", "1e3", "-1", "0x10", "inf", "²GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(SettingsError, match="--x: .* is not a size; write 80GiB, 80GB or plain"):
        parse_size(text, "--x")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (23_040, "22.5 KiB"), (2**31, "2 GiB"), (2**62, "4194304 TiB")],
)
def test_sizes_for_people(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text


def test_the_example_in_the_documentation_is_real(
    cachelane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (ROOT / "docs" / "engines.md").read_text("utf-8").split("```\n$ cachelane plan ")[1]
    command, output = shown.split("```")[0].replace("\\\n", "").split("\n", 1)
    monkeypatch.chdir(ROOT)
    _, out, _ = cachelane(*command.split(), columns=80)
    assert [line.rstrip() for line in out.splitlines()] == output.splitlines()
