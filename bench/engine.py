"""Speed of the whole local engine beside the bare forward pass of the same model.

    python -m bench.engine [--model FILE.gguf] [--json OUT.json]

Engine and bare pass take turns step by step in one process, on one BLAS thread. Rates are per
second of CPU time, which is wall time on an idle machine and does not count waiting on a busy one;
the ratio of their medians is what scheduling, cache and sampling cost.
"""

from __future__ import annotations

import argparse
import array
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench.arguments import existing_file, new_file
from bench.report import Row, print_rows, write_json
from serve_app.engine.batch import Batch, SequenceSlice
from serve_app.engine.blas import limit_blas_threads
from serve_app.engine.build import EngineLimits, build_engine
from serve_app.engine.model_numpy import NumpyModel
from serve_app.engine.model_runner import ModelRunner
from serve_app.engine.model_store import ensure_default_model
from serve_app.executors.base import GenerateRequest, SamplingParams

MODELS = Path(".cachelane/models")
BLOCK, NUM_BLOCKS = 32, 192  # of each side
PREFILL, CONTEXT = 512, 250  # tokens
BATCHES = (1, 4, 8)
NUM_PROMPTS, NUM_STEPS = 5, 24
TARGET = 0.9


class Sides:
    """The engine on the first half of one pool, the bare forward pass on the other."""

    def __init__(self, path: Path) -> None:
        self._model = NumpyModel.load(path, block_size=BLOCK, num_blocks=2 * NUM_BLOCKS)
        self._random = np.random.default_rng(1)
        limits = EngineLimits(
            block_size=BLOCK,
            num_gpu_blocks=NUM_BLOCKS,
            max_batch_size=max(BATCHES),
            max_batched_tokens=PREFILL,
        )
        runner = ModelRunner(self._model)
        model_len = self._model.max_seq_len
        self._engine, self._events = build_engine(
            limits, runner, self._model.pool, model_max_seq_len=model_len, eos_ids=()
        )

    def prefill(self) -> tuple[float, float]:
        """Seconds of one prompt: engine, bare."""
        self._add("prompt", PREFILL, max_tokens=1)
        bare = self._slices(1, 0, PREFILL)
        return _seconds(self._step), _seconds(partial(self._forward, bare))

    def decode(self, batch_size: int) -> list[tuple[float, float]]:
        """Seconds of each step of `batch_size` sequences: engine, bare."""
        for index in range(batch_size):
            self._add(str(index), CONTEXT, max_tokens=CONTEXT)
        while self._engine.load().num_queued or self._engine.load().queued_prefill_tokens:
            self._step()
        self._forward(self._slices(batch_size, 0, CONTEXT))
        times = []
        for step in range(NUM_STEPS):
            bare = self._slices(batch_size, CONTEXT + step, 1)
            times.append((_seconds(self._step), _seconds(partial(self._forward, bare))))
        for index in range(batch_size):
            self._engine.abort(str(index))
        return times

    def _add(self, name: str, num_tokens: int, max_tokens: int) -> None:
        prompt = array.array("I", self._tokens(num_tokens)).tobytes()
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        request = GenerateRequest(request_id=name, token_ids=prompt, sampling=sampling)
        self._engine.add_request(request)

    def _step(self) -> None:
        self._engine.step()
        self._events.drain(0)

    def _forward(self, slices: Sequence[SequenceSlice]) -> None:
        self._model.forward(Batch.pack(slices, BLOCK))

    def _slices(self, batch_size: int, start: int, num_tokens: int) -> list[SequenceSlice]:
        each = NUM_BLOCKS // batch_size
        tables = [
            range(NUM_BLOCKS + i * each, NUM_BLOCKS + (i + 1) * each) for i in range(batch_size)
        ]
        return [SequenceSlice(self._tokens(num_tokens), start, list(t)) for t in tables]

    def _tokens(self, count: int) -> list[int]:
        return [int(t) for t in self._random.integers(3, self._model.vocab_size, count)]


def measure(path: Path) -> list[Row]:
    """One row for prefill and for each decode batch."""
    limit_blas_threads(1)
    sides = Sides(path)
    sides.prefill()  # the first pass touches the memory
    rows = [_row("prefill 512", PREFILL, [sides.prefill() for _ in range(NUM_PROMPTS)])]
    for batch_size in BATCHES:
        rows.append(_row(f"decode x {batch_size}", batch_size, sides.decode(batch_size)))
    return rows


def _row(name: str, num_tokens: int, times: Sequence[tuple[float, float]]) -> Row:
    engine, bare = (num_tokens / median(side) for side in zip(*times, strict=True))
    return Row(name, "tokens/s of CPU", engine, peer=bare, target=TARGET * bare)


def _seconds(work: Callable[[], None]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--model", type=existing_file, help="GGUF file; without it the default model"
    )
    parser.add_argument("--json", type=new_file, help="where to write the figures")
    args = parser.parse_args()
    rows = measure(args.model or ensure_default_model(MODELS, print))
    print_rows("engine", rows, peer="bare forward")
    figures = {"target_ratio": TARGET, "rows": [{**vars(r), "ratio": r.ratio} for r in rows]}
    print(write_json("engine", figures, args.json))


if __name__ == "__main__":
    main()
