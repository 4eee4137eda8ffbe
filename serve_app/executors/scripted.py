"""An executor without a model: the real engine, scheduler and cache around scripted tokens.

For tests, documentation and load generation. Time is pretended by waiting, on the event loop and
without a thread, so that zero timing costs only what the engine's own work does.

Everything about the engine happens on the loop that called `generate`. A step has two halves, its
start and its end, with the pretended time between; what comes in between waits in the inbox.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from controllers.errors import ExecutorDead, RequestAborted
from controllers.events import Event, Load
from serve_app.engine.build import EngineLimits, build_engine
from serve_app.engine.scheduler import Scheduled
from serve_app.engine.scripted_model import ScriptedModel, Timing
from serve_app.engine.tiers import NoStorage
from serve_app.executors.base import ExecutorInfo, GenerateRequest, TokenChunk
from serve_app.executors.engine_info import idle_load, info_of
from serve_app.executors.loop_calls import call_on
from serve_app.executors.request_checks import check_request
from serve_app.executors.streams import Streams

logger = logging.getLogger(__name__)

VOCAB_SIZE = 259  # bytes and three control tokens
EOS_IDS = (257, 258)
MAX_SEQ_LEN = 131072
MAX_LAG_S = 0.1  # a loop that lags more than this does not catch up


@dataclass(frozen=True)
class Faults:
    """What to do wrong, for rehearsals. A marker is token bytes anywhere in a prompt."""

    die_on: bytes | None = None  # the executor dies when such a prompt would start
    hang_on: bytes | None = None  # it stops for ever, silently
    slow_on: bytes | None = None  # its pretended time is longer from then on
    slow_factor: float = 1.0


NO_TIMING = Timing()
NO_FAULTS = Faults()


class ScriptedExecutor:
    """See the module. `hang_timeout_s`: a step that takes longer means death to check_health."""

    def __init__(
        self,
        limits: EngineLimits,
        *,
        timing: Timing = NO_TIMING,
        faults: Faults = NO_FAULTS,
        model_name: str = "scripted",
        vocab_size: int = VOCAB_SIZE,
        eos_after: int | None = None,
        hang_timeout_s: float = 60.0,
    ) -> None:
        self._model = ScriptedModel(eos_id=EOS_IDS[0], eos_after=eos_after)
        self._engine, self._events = build_engine(
            limits, self._model, NoStorage(), model_max_seq_len=MAX_SEQ_LEN, eos_ids=EOS_IDS
        )
        self._info = info_of(limits, "scripted", model_name, limits.seq_len(MAX_SEQ_LEN))
        self._timing = timing
        self._faults = faults
        self._slowness = 1.0
        self._vocab_size = vocab_size
        self._hang_timeout_s = hang_timeout_s
        self._streams = Streams()
        self._inbox: deque[GenerateRequest | str] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_busy = False  # a half of a step is on the loop's calendar
        self._due = 0.0  # loop time when the present step ends
        self._step_started_at: float | None = None

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """See Executor."""
        return self._streams.run(request, self._start, self._withdraw)

    def abort(self, request_id: str) -> None:
        """See Executor."""
        call_on(self._loop, self._streams.abort, request_id)

    def drain_events(self, timeout_s: float, dp_rank: int = 0) -> list[Event]:
        """See Executor."""
        return self._events.drain(timeout_s)

    def load(self, dp_rank: int = 0) -> Load:
        """See Executor."""
        if self._streams.is_ended:
            return idle_load(self._info)
        load = self._engine.load()
        num_new = sum(isinstance(item, GenerateRequest) for item in list(self._inbox))
        return msgspec.structs.replace(load, num_queued=load.num_queued + num_new)

    def check_health(self) -> None:
        """See Executor."""
        if self._streams.death is not None:
            raise ExecutorDead(*self._streams.death.args)
        started_at = self._step_started_at
        if started_at is not None and time.monotonic() - started_at > self._hang_timeout_s:
            raise ExecutorDead(f"a step has been running for over {self._hang_timeout_s} s")

    def close(self) -> None:
        """See Executor."""
        self._streams.end(RequestAborted("the executor was closed"))
        self._events.close()
        call_on(self._loop, self._streams.fail_all)

    def _start(self, request: GenerateRequest) -> None:
        check_request(request, self._vocab_size, self._info.max_seq_len)
        self._inbox.append(request)
        self._wake()

    def _withdraw(self, key: str) -> None:
        self._inbox.append(key)
        self._wake()

    def _wake(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._run, self._begin_step)

    def _run(self, half: Callable[..., None], *args: list[Scheduled]) -> None:
        """A half of a step; whatever it raises is the executor's death."""
        try:
            half(*args)
        except Exception as error:
            logger.exception("the scripted executor died")
            self._die(repr(error))

    def _begin_step(self) -> None:
        self._take_inbox()
        if not self._engine.has_work or self._streams.death is not None:
            self._is_busy = False
            self._due = 0.0  # what comes after a pause has nothing to catch up with
            return
        assert self._loop is not None
        step = self._engine.schedule()
        self._step_started_at = time.monotonic()
        if _has_marker(step, self._faults.die_on):
            self._die("told to by a prompt")
        elif not _has_marker(step, self._faults.hang_on):
            self._end_step_later(step)

    def _end_step_later(self, step: list[Scheduled]) -> None:
        assert self._loop is not None
        if _has_marker(step, self._faults.slow_on):
            self._slowness = self._faults.slow_factor
        duration_s = self._timing.duration_s(step) * self._slowness
        if not duration_s:
            self._end_step(step)
            return
        now = self._loop.time()
        start = self._due if now - MAX_LAG_S < self._due < now else now
        self._due = start + duration_s
        self._loop.call_at(self._due, self._run, self._end_step, step)

    def _end_step(self, step: list[Scheduled]) -> None:
        assert self._loop is not None
        self._streams.deliver(self._engine.postprocess(step, self._model.run(step)))
        self._step_started_at = None
        self._loop.call_soon(self._run, self._begin_step)

    def _take_inbox(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, str):
                self._engine.abort(item)
            else:
                self._engine.add_request(item)

    def _die(self, reason: str) -> None:
        self._streams.end(ExecutorDead(f"the scripted executor died: {reason}"))
        self._streams.fail_all()
        self._events.close()


def _has_marker(step: list[Scheduled], marker: bytes | None) -> bool:
    return marker is not None and any(marker in part.seq.request.token_ids for part in step)
