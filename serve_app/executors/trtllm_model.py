"""What the adapter must know of a Hugging Face folder: sizes and end tokens, from its JSON files.

Knows no weights and no tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controllers.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`max_positions` None: the folder does not say it."""

    name: str
    vocab_size: int
    max_positions: int | None
    eos_ids: tuple[int, ...]


def read_model_facts(folder: Path) -> ModelFacts:
    """Raises ModelFileError naming the file and what it lacks."""
    if not folder.is_dir():
        raise ModelFileError(
            f"{folder}: the TensorRT-LLM executor needs a Hugging Face folder with config.json"
        )
    file = folder / "config.json"
    config = _read(file)
    if config is None:
        raise ModelFileError(f"{file}: no such file")
    text = config.get("text_config")  # models that also see or hear
    config = {**config, **text} if isinstance(text, dict) else config
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise ModelFileError(f"{file}: vocab_size is {vocab_size!r}")
    positions = config.get("max_position_embeddings")
    return ModelFacts(
        name=folder.name,
        vocab_size=vocab_size,
        max_positions=positions if isinstance(positions, int) and positions > 1 else None,
        eos_ids=_eos_ids(folder, config),
    )


def _eos_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json may list more end tokens than config.json."""
    generation = _read(folder / "generation_config.json") or {}
    found: list[int] = []
    for value in (generation.get("eos_token_id"), config.get("eos_token_id")):
        found += [item for item in _as_list(value) if isinstance(item, int) and item >= 0]
    return tuple(dict.fromkeys(found))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        value = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{file}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{file}: not a JSON object")
    return value
