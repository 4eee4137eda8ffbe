"""The default model's file for tests marked `model`, and what other programs computed with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serve_app.engine.model_store import DEFAULT_MODEL

MODEL_PATH = Path(__file__).parent.parent / ".cachelane" / "models" / DEFAULT_MODEL.file_name
REFERENCE_PATH = Path(__file__).parent / "data" / "smollm2_reference.json"


def model_path() -> Path:
    """Skips the test if the file is not here: tests fetch nothing."""
    if not MODEL_PATH.is_file():
        pytest.skip(f"{MODEL_PATH} is missing; starting once fetches it")
    return MODEL_PATH


def reference() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(REFERENCE_PATH.read_text("utf-8"))
    return value
