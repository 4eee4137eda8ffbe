"""The executor that runs a model on this machine, with our own engine in a thread of its own.

The event loop and the engine's thread meet in two places: the thread's inbox, and one callback on
the loop for all tokens of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from controllers.errors import ExecutorDead, RequestAborted
from controllers.events import Event, Load
from serve_app.engine.batch import Model
from serve_app.engine.blas import limit_blas_threads
from serve_app.engine.build import EngineLimits, build_engine
from serve_app.engine.engine import Engine, Output
from serve_app.engine.model_numpy import NumpyModel
from serve_app.engine.model_runner import ModelRunner
from serve_app.executors.base import ExecutorInfo, GenerateRequest, TokenChunk
from serve_app.executors.engine_info import idle_load, info_of
from serve_app.executors.engine_thread import EngineThread
from serve_app.executors.loop_calls import call_on
from serve_app.executors.request_checks import check_request
from serve_app.executors.streams import Streams
from serve_app.tokenizer import load_tokenizer


class LocalExecutor:
    """`eos_ids` are the model's end tokens.

    `hang_timeout_s`: a step that takes longer means death to check_health.
    """

    def __init__(
        self,
        model: Model,
        limits: EngineLimits,
        *,
        eos_ids: Sequence[int],
        model_name: str,
        hang_timeout_s: float = 60.0,
    ) -> None:
        self._engine: Engine | None
        self._engine, self._events = build_engine(
            limits,
            ModelRunner(model),
            model.pool,
            model_max_seq_len=model.max_seq_len,
            eos_ids=eos_ids,
            attention_window=model.attention_window,
        )
        self._vocab_size = model.vocab_size
        self._info = info_of(limits, "local", model_name, limits.seq_len(model.max_seq_len))
        self._hang_timeout_s = hang_timeout_s
        self._streams = Streams()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = EngineThread(self._engine, self._on_outputs, self._on_death)

    @classmethod
    def from_gguf(
        cls, path: Path, limits: EngineLimits, *, model_name: str | None, num_threads: int
    ) -> LocalExecutor:
        """Loads a model file (seconds). `model_name` None: the file's name without its suffix.

        `num_threads` of matrix products holds for the whole process. Raises ModelFileError.
        """
        model = NumpyModel.load(
            path,
            block_size=limits.block_size,
            num_blocks=limits.num_gpu_blocks,
            num_host_blocks=limits.num_host_blocks,
        )
        limit_blas_threads(num_threads)
        eos_ids = load_tokenizer(path).eos_ids
        return cls(model, limits, eos_ids=eos_ids, model_name=model_name or path.stem)

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """See Executor."""
        return self._streams.run(request, self._start, self._thread.submit)

    def abort(self, request_id: str) -> None:
        """See Executor."""
        call_on(self._loop, self._streams.abort, request_id)

    def drain_events(self, timeout_s: float, dp_rank: int = 0) -> list[Event]:
        """See Executor."""
        return self._events.drain(timeout_s)

    def load(self, dp_rank: int = 0) -> Load:
        """See Executor."""
        engine = self._engine
        if engine is None:
            return idle_load(self._info)
        load = engine.load()
        return msgspec.structs.replace(load, num_queued=load.num_queued + self._thread.num_inbox)

    def check_health(self) -> None:
        """See Executor."""
        if self._streams.death is not None:
            raise ExecutorDead(*self._streams.death.args)
        if self._thread.step_age_s() > self._hang_timeout_s:
            raise ExecutorDead(f"a step has been running for over {self._hang_timeout_s} s")

    def close(self) -> None:
        """See Executor. Waits for the present step."""
        self._end(RequestAborted("the executor was closed"))
        self._thread.stop()
        self._engine = None

    def _start(self, request: GenerateRequest) -> None:
        check_request(request, self._vocab_size, self._info.max_seq_len)
        self._loop = asyncio.get_running_loop()
        self._thread.submit(request)

    def _on_outputs(self, outputs: list[Output]) -> None:
        call_on(self._loop, self._streams.deliver, outputs)

    def _on_death(self, error: ExecutorDead) -> None:
        self._end(error)

    def _end(self, error: ExecutorDead | RequestAborted) -> None:
        self._streams.end(error)
        self._events.close()
        call_on(self._loop, self._streams.fail_all)
