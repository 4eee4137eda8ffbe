"""What is said about a model file before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from controllers.errors import SetupError
from infra.settings import to_settings
from serve_app.model_files import check_model
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
