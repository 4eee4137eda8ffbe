"""What is said about a model file before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from controllers.errors import SetupError
from infra.settings import to_settings
from serve_app.executors.trtllm import is_installed
from serve_app.model_files import check_model
from tests.hf_folder import write_hf_folder
from tests.tiny_llama import random_tensors, write_tiny_llama


def check(path: Path | None, kind: str = "local") -> None:
    model = {"path": None if path is None else str(path)}
    check_model(to_settings({"model": model, "executor": {"kind": kind}}))


@pytest.mark.parametrize("kind", ["local", "scripted"])
def test_none_passes(kind: str) -> None:
    check(None, kind)


@pytest.mark.parametrize("kind", ["local", "scripted"])
def test_a_text_file(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    with pytest.raises(SetupError) as caught:
        check(file, kind)
    assert str(caught.value) == (
        f"{file}: not a GGUF file (starts with b'hell'): "
        "MODEL= wants a GGUF file of the Llama family"
    )


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=f"{tmp_path}: cannot be read: Is a directory"):
        check(tmp_path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not exist: MODEL= wants a GGUF file"):
        check(tmp_path / "no.gguf")


def test_a_model_of_the_family_passes_and_another_does_not(tmp_path: Path) -> None:
    check(write_tiny_llama(tmp_path / "tiny.gguf", random_tensors()))
    changes = {"general.architecture": "gemma3"}
    other = write_tiny_llama(tmp_path / "other.gguf", random_tensors(), **changes)
    with pytest.raises(SetupError, match="architecture 'gemma3' is not supported"):
        check(other)


@pytest.fixture
def with_package(trtllm_double: object) -> None:
    """TensorRT-LLM can be found."""


def test_trtllm_without_the_package(tmp_path: Path) -> None:
    """Before anything else is looked at, and before anything is started."""
    if is_installed():
        pytest.skip("TensorRT-LLM is installed here")
    with pytest.raises(SetupError) as caught:
        check(tmp_path, "trtllm")
    assert "`pip3 install tensorrt_llm`" in str(caught.value)
    assert str(caught.value).startswith("executor.kind 'trtllm' needs TensorRT-LLM, which is not")


@pytest.mark.usefixtures("with_package")
def test_trtllm_takes_a_folder(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "model")
    check(folder, "trtllm")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SetupError, match="tokenizer.json: no such file"):
        check(folder, "trtllm")
    with pytest.raises(SetupError, match="config.json: no such file"):
        check(tmp_path, "trtllm")
    with pytest.raises(SetupError, match="model.path is not set: the TensorRT-LLM executor needs"):
        check(None, "trtllm")


@pytest.mark.usefixtures("with_package")
def test_trtllm_and_a_sequence_that_the_model_does_not_allow(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "model", max_position_embeddings=100)
    executor = {"kind": "trtllm", "max_seq_len": 101}
    with pytest.raises(SetupError, match="executor.max_seq_len: 101, the model allows 100"):
        check_model(to_settings({"model": {"path": str(folder)}, "executor": executor}))
