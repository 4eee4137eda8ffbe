"""A whole engine on the tiny random model, run step by step."""

from __future__ import annotations

import array
from collections import defaultdict
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np

from controllers.events import Event, Load
from controllers.retention import Retention, TokenRange
from serve_app.engine.blas import limit_blas_threads
from serve_app.engine.build import EngineLimits, build_engine
from serve_app.engine.engine import Output
from serve_app.engine.model_numpy import NumpyModel
from serve_app.engine.model_runner import ModelRunner
from serve_app.executors.base import GenerateRequest, SamplingParams
from tests.tiny_llama import VOCAB, plain_logits, random_tensors, write_tiny_llama

BLOCK, CONTEXT = 8, 8192
TENSORS = random_tensors()


def request(request_id: str, prompt: Seq[int], **options: Any) -> GenerateRequest:
    """Greedy unless said otherwise; `ranges` and `salt` aside, options are SamplingParams."""
    ranges, salt = options.pop("ranges", ()), options.pop("salt", 0)
    sampling = SamplingParams(**{"max_tokens": 12, "temperature": 0.0, **options})
    return GenerateRequest(
        request_id=request_id,
        token_ids=array.array("I", prompt).tobytes(),
        sampling=sampling,
        retention=Retention(tuple(TokenRange(*r) for r in ranges)),
        salt=salt,
    )


def prompt_of(num_tokens: int, seed: int = 1) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, num_tokens)]


def plain_greedy(prompt: Seq[int], num_tokens: int = 12, window: int | None = None) -> list[int]:
    """Attention over everything (in the window), for every token: no cache at all."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(plain_logits(TENSORS, tokens, window=window)[-1].argmax()))
    return tokens[len(prompt) :]


def tiny_model(directory: Path, limits: EngineLimits, window: int | None = None) -> NumpyModel:
    """Its pool is full of noise: what a free block still holds must not matter."""
    limit_blas_threads(1)
    changes = {"llama.context_length": CONTEXT, "llama.attention.sliding_window": window}
    model = NumpyModel.load(
        write_tiny_llama(directory / "tiny.gguf", TENSORS, **changes),
        block_size=limits.block_size,
        num_blocks=limits.num_gpu_blocks,
        num_host_blocks=limits.num_host_blocks,
    )
    model.pool.gpu[:] = np.random.default_rng(9).standard_normal(model.pool.gpu.shape)
    return model


class EngineRun:
    """An engine with no end token, and everything that came out of it."""

    def __init__(
        self,
        directory: Path,
        eos_ids: Seq[int] = (),
        window: int | None = None,
        **limits: Any,
    ) -> None:
        self.limits = EngineLimits(
            **{
                "block_size": BLOCK,
                "num_gpu_blocks": 64,
                "max_batch_size": 8,
                "max_batched_tokens": 64,
                **limits,
            }
        )
        model = tiny_model(directory, self.limits, window)
        self.engine, self._events = build_engine(
            self.limits,
            ModelRunner(model),
            model.pool,
            model_max_seq_len=model.max_seq_len,
            eos_ids=eos_ids,
            attention_window=model.attention_window,
        )
        self.outputs: list[Output] = []

    def add(self, *requests: GenerateRequest) -> None:
        for item in requests:
            self.engine.add_request(item)

    def step(self) -> list[Output]:
        new = self.engine.step()
        self.outputs += new
        return new

    def finish(self, *requests: GenerateRequest) -> dict[str, list[int]]:
        """Adds, runs to the end; the tokens by request, those of all its sequences in order."""
        self.add(*requests)
        while self.engine.has_work:
            self.step()
        return {item.request_id: self.tokens(item.request_id) for item in requests}

    def tokens(self, request_id: str) -> list[int]:
        by_index: dict[int, list[int]] = defaultdict(list)
        for output in self.outputs:
            if output.request_id == request_id and output.sample is not None:
                by_index[output.index].append(output.sample.token_id)
        return [token for index in sorted(by_index) for token in by_index[index]]

    def cached_tokens(self, request_id: str) -> int | None:
        first = next(output for output in self.outputs if output.request_id == request_id)
        return first.cached_tokens

    def finish_reasons(self, request_id: str) -> list[tuple[int, str]]:
        return [
            (output.index, output.finish_reason)
            for output in self.outputs
            if output.request_id == request_id and output.finish_reason is not None
        ]

    def drain(self) -> list[Event]:
        return self._events.drain(0)

    def load(self) -> Load:
        return self.engine.load()
