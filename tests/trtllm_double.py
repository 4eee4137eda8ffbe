"""Puts the double of `tensorrt_llm` in place for a while."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "doubles"


@contextmanager
def installed(**settings: Any) -> Iterator[ModuleType]:
    """`import tensorrt_llm` finds the double, set up as `configure` takes it, while this lasts.

    LLMs that are still running at the end are shut down.
    """
    own = _modules()
    others = _take_out()
    sys.path.insert(0, str(FOLDER))
    sys.modules.update(own)
    try:
        double = importlib.import_module("tensorrt_llm.double")
        double.configure(**settings)
        yield importlib.import_module("tensorrt_llm")
    finally:
        for llm in double.running():
            llm.shutdown()
        double.configure()
        sys.path.remove(str(FOLDER))
        own.update(_take_out())
        sys.modules.update(others)


@pytest.fixture
def trtllm_double() -> Iterator[ModuleType]:
    """The package, as version 1.2.1 unless its `double.configure` says otherwise."""
    with installed() as package:
        yield package


@functools.cache
def _modules() -> dict[str, ModuleType]:
    """Loaded ones, so that every use finds the same classes."""
    return {}


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]
    return {name: sys.modules.pop(name) for name in names}
