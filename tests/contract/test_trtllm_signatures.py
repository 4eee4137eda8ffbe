"""What the adapter and the double take for granted of TensorRT-LLM, against the real package.

Without it, the adapter's half is checked against the double alone.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trtllm_double import installed
from tests.trtllm_executors import NEW, OLD, has_real_package
from tests.trtllm_surface import (
    COMPLETION_ATTRIBUTES,
    MAY_LACK,
    OPTIONAL,
    RESULT_ATTRIBUTES,
    Surface,
    check_retention_classes,
    describe,
    is_new,
    names_of,
    resolve,
    used_by_adapter,
)

real_package = pytest.mark.skipif(
    not has_real_package(), reason="the real tensorrt_llm is not installed"
)

# Parts of the double that stand for others of the real package, or for none.
OWN_PARTS = ("tensorrt_llm.double", "tensorrt_llm.llmapi.llm", "tensorrt_llm.llmapi.tokenizer")
OTHER_HOMES = {
    "tensorrt_llm.executor.errors.RequestError": "tensorrt_llm.executor.RequestError",
    "tensorrt_llm.executor.result.RequestOutput": "tensorrt_llm.llmapi.RequestOutput",
}


@pytest.fixture(params=[OLD, NEW])
def double(request: pytest.FixtureRequest) -> Iterator[str]:
    with installed(version=request.param):
        yield request.param


def assert_taken(version: str) -> None:
    missing = []
    for dotted, names in used_by_adapter(is_new(version)).items():
        lacking = names - names_of(dotted) - MAY_LACK
        missing += [f"{dotted}({name})" for name in sorted(lacking)]
    assert missing == []


def assert_results() -> None:
    """Attributes and properties; the engine makes results itself, so none can be looked at."""
    assert names_of("tensorrt_llm.executor.CompletionOutput") >= COMPLETION_ATTRIBUTES
    result = resolve("tensorrt_llm.llmapi.RequestOutput")
    assert {*dir(result), *result.__init__.__code__.co_names} >= RESULT_ATTRIBUTES


def test_the_double_takes_what_the_adapter_passes(double: str) -> None:
    assert_taken(double)
    assert_results()
    check_retention_classes()
    optional = {name: _exists(name) for name in OPTIONAL}
    assert optional == {
        "tensorrt_llm.LLM.get_kv_cache_capacity": is_new(double),
        "tensorrt_llm.LLM._check_health": True,
        "tensorrt_llm.inputs.get_cache_salt_id": True,
    }


@real_package
def test_the_package_takes_what_the_adapter_passes() -> None:
    version = importlib.import_module("tensorrt_llm").__version__
    assert_taken(version)
    assert_results()
    check_retention_classes()


@real_package
def test_the_package_has_what_the_double_has() -> None:
    version = importlib.import_module("tensorrt_llm").__version__
    with installed(version=NEW if is_new(version) else OLD) as package:
        pretended = describe(package, OWN_PARTS)
    wrong = []
    for dotted, names in sorted(pretended.items()):
        try:
            real = names_of(OTHER_HOMES.get(dotted, dotted))
        except (ImportError, AttributeError):
            wrong.append(f"{dotted} does not exist")
            continue
        wrong += [f"{dotted}({name}) does not exist" for name in sorted(names - real)]
    assert wrong == []


def test_the_double_is_described(double: str) -> None:
    """So that the comparison with the package compares something."""
    surface: Surface = describe(importlib.import_module("tensorrt_llm"), OWN_PARTS)
    assert "tokens_per_block" in names_of("tensorrt_llm.llmapi.KvCacheConfig")
    assert surface["tensorrt_llm.executor.request.LoRARequest"] >= {"lora_name", "lora_int_id"}
    assert "tensorrt_llm.sampling_params.SamplingParams" in surface
    assert not any(name.startswith(OWN_PARTS) for name in surface)


def _exists(dotted: str) -> bool:
    try:
        resolve(dotted)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.skipif(has_real_package(), reason="nothing is missing")
def test_make_says_what_is_missing() -> None:
    """Instead of skipping everything and being green."""
    done = subprocess.run(
        ["make", "-s", "test-trtllm", f"PYTHON={sys.executable}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == (
        "make test-trtllm needs a GPU, a Python with TensorRT-LLM (PYTHON=...) and a small model "
        "(TRTLLM_TEST_MODEL=folder): tensorrt_llm is not installed"
    )
