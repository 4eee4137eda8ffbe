"""What is read of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controllers.errors import ModelFileError
from serve_app.executors.trtllm_model import ModelFacts, read_model_facts


def write(folder: Path, config: Any, generation: Any = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    return folder


def test_facts(tmp_path: Path) -> None:
    config = {"vocab_size": 128256, "max_position_embeddings": 131072, "eos_token_id": 128001}
    generation = {"eos_token_id": [128008, 128001, 128009]}
    assert read_model_facts(write(tmp_path, config, generation)) == ModelFacts(
        tmp_path.name, 128256, 131072, (128008, 128001, 128009)
    )


def test_a_model_that_also_sees(tmp_path: Path) -> None:
    config = {"text_config": {"vocab_size": 100, "eos_token_id": None}}
    assert read_model_facts(write(tmp_path, config)) == ModelFacts(tmp_path.name, 100, None, ())


@pytest.mark.parametrize("config", [{}, {"vocab_size": "many"}, {"vocab_size": 0}])
def test_without_a_vocabulary(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="config.json: vocab_size is"):
        read_model_facts(write(tmp_path, config))


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="config.json: no such file"):
        read_model_facts(tmp_path)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match="m.gguf: the TensorRT-LLM executor needs a Hugging"):
        read_model_facts(file)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_broken_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, "utf-8")
    with pytest.raises(ModelFileError, match="config.json: "):
        read_model_facts(tmp_path)
