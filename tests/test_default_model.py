"""The real model equals other programs, however its answers are computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from serve_app.chat import Chat
from serve_app.engine.batch import Batch, FloatArray, SequenceSlice
from serve_app.engine.blas import limit_blas_threads
from serve_app.engine.gguf import GgufFile
from serve_app.engine.model_numpy import NumpyModel
from serve_app.tokenizer import Tokenizer, load_tokenizer
from tests.default_model import model_path, reference
from tests.tiny_llama import plain_logits

pytestmark = pytest.mark.model
BLOCK = 32
NUM_NEW = 32


@pytest.fixture(scope="module")
def path() -> Path:
    return model_path()


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


@pytest.fixture(scope="module")
def model(path: Path) -> NumpyModel:
    limit_blas_threads(1)
    return NumpyModel.load(path, block_size=BLOCK, num_blocks=64)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(c["prompt"]) for c in reference()["continuations"]]


def table(index: int) -> list[int]:
    return list(range(index * 16, index * 16 + 16))


def step(model: NumpyModel, *slices: SequenceSlice) -> FloatArray:
    return model.forward(Batch.pack(slices, BLOCK))


def best(logits: FloatArray) -> int:
    """Greedy choice; the end token is left out, as it was in the reference."""
    allowed = logits.copy()
    allowed[reference()["greedy_without"]] = -np.inf
    return int(allowed.argmax())


def decode(model: NumpyModel, tokens: list[int], blocks: list[int], first: int) -> list[int]:
    """Greedy continuation after `first`, one sequence at a time."""
    new = [first]
    while len(new) < NUM_NEW:
        start = len(tokens) + len(new) - 1
        new.append(best(step(model, SequenceSlice(new[-1:], start, blocks))[0]))
    return new


def test_tokens_equal_another_program(tokenizer: Tokenizer) -> None:
    texts = reference()["texts"]
    assert [tokenizer.encode(t["text"]) for t in texts] == [t["token_ids"] for t in texts]
    decoded = [tokenizer.decode(t["token_ids"], skip_special=False) for t in texts]
    assert decoded == [t["text"] for t in texts]


def test_the_default_system_prompt_is_the_system_span(tokenizer: Tokenizer) -> None:
    prompt = Chat(tokenizer).prompt([{"role": "user", "content": "What is the capital of France?"}])
    assert prompt.text == reference()["continuations"][0]["prompt"]
    system = tokenizer.decode(prompt.token_ids[: prompt.spans.system_end], skip_special=False)
    assert system == prompt.text[: prompt.text.index("<|im_start|>user")]
    assert prompt.spans.history_end == prompt.spans.system_end


def test_logits_equal_another_program(model: NumpyModel, prompts: list[list[int]]) -> None:
    for index, expected in enumerate(reference()["continuations"]):
        logits = step(model, SequenceSlice(prompts[index], 0, table(index)))[0]
        assert np.argsort(-logits)[:10].tolist() == expected["top_ids"]
        np.testing.assert_allclose(logits[expected["top_ids"]], expected["top_logits"], atol=2e-3)


def test_greedy_tokens_equal_another_program(model: NumpyModel, prompts: list[list[int]]) -> None:
    for index, expected in enumerate(reference()["continuations"]):
        logits = step(model, SequenceSlice(prompts[index], 0, table(index)))[0]
        assert decode(model, prompts[index], table(index), best(logits)) == (expected["greedy"])


def test_greedy_tokens_equal_plain_attention(path: Path) -> None:
    expected = reference()["continuations"][0]
    with GgufFile(path) as file:
        tokens = load_tokenizer(path).encode(expected["prompt"]) + expected["greedy"][:-1]
        tensors = _LazyTensors(file)
        logits = plain_logits(
            tensors,  # type: ignore[arg-type]
            tokens,
            num_layers=file.metadata["llama.block_count"],
            head_dim=64,
            rope_base=file.metadata["llama.rope.freq_base"],
        )
    assert [best(row) for row in logits[-NUM_NEW:]] == expected["greedy"]


class _LazyTensors:
    """Reads a tensor when it is asked for, so that the weights are in memory once."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file.tensor(name)

    def get(self, name: str, default: Any) -> Any:
        return self._file.tensor(name) if name in self._file.tensors else default


def ways(model: NumpyModel, prompts: list[list[int]]) -> Iterator[tuple[str, FloatArray]]:
    """Logits after the first prompt and its first 20 reference tokens, computed in several ways."""
    ids = prompts[0] + reference()["continuations"][0]["greedy"][:20]
    whole = SequenceSlice(ids, 0, table(0))
    yield "whole", step(model, whole)[0]
    for start in range(0, len(ids), 7):
        chunk = step(model, SequenceSlice(ids[start : start + 7], start, table(1)))
    yield "chunked", chunk[0]
    step(model, SequenceSlice(prompts[0], 0, table(2), has_logits=False))
    for position in range(len(prompts[0]), len(ids)):
        decoded = step(model, SequenceSlice([ids[position]], position, table(2)))
    yield "decoded", decoded[0]
    reused = SequenceSlice(ids[BLOCK:], BLOCK, [table(2)[0], *table(3)[1:]])
    yield "reused", step(model, SequenceSlice(prompts[1], 0, table(1)), reused)[1]
    alone = SequenceSlice(ids[-1:], len(ids) - 1, table(0))
    yield "batched", step(model, SequenceSlice([5], len(prompts[1]), table(1)), alone)[1]


def test_the_way_of_computing_does_not_change_the_choice(
    model: NumpyModel, prompts: list[list[int]]
) -> None:
    results = {name: logits.copy() for name, logits in ways(model, prompts)}
    expected = reference()["continuations"][0]["greedy"][20]
    assert {name: best(logits) for name, logits in results.items()} == dict.fromkeys(
        results, expected
    )


def test_on_avx512_not_even_the_last_bit_changes(
    model: NumpyModel, prompts: list[list[int]]
) -> None:
    kernels = {lib["architecture"] for lib in threadpool_info() if lib["user_api"] == "blas"}
    if kernels != {"SkylakeX"}:
        pytest.skip(f"BLAS kernels here are {kernels}")
    results = {name: logits.copy() for name, logits in ways(model, prompts)}
    is_equal = {n: np.array_equal(logits, results["whole"]) for n, logits in results.items()}
    assert is_equal == dict.fromkeys(results, True)
