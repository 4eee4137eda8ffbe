"""The one thread that makes a TensorRT-LLM engine and its blocking calls: events, figures, health.

Owns the thread and the rhythm. The package's getters block, swallow errors and destroy what they
return, so there is exactly one caller, and it is never an event loop. Nor is the engine made on
one: an object made where a loop runs would want that loop for its queues.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controllers.errors import CachelaneError, ExecutorDead
from serve_app.executors.trtllm_books import Books
from serve_app.executors.trtllm_port import EnginePort
from serve_app.executors.trtllm_probe import NOTHING_FOUND, Findings, look
from serve_app.executors.trtllm_ranks import Ranks
from serve_app.executors.trtllm_requests import Prompt

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 0.1
HEALTH_INTERVAL_S = 1.0
IDLE_POLL_S = 0.25  # without requests and after the last ones' events; a request wakes it
BUSY_FOR_S = 1.0


class PollThread:
    """`open_engine` may take minutes. `on_death` is called at most once, from this thread."""

    def __init__(
        self,
        open_engine: Callable[[], EnginePort],
        ranks: Ranks,
        books: Books,
        *,
        block_size: int,
        poll_interval_s: float,
        hang_timeout_s: float,
        on_death: Callable[[ExecutorDead], None],
    ) -> None:
        self._open_engine = open_engine
        self._ranks = ranks
        self._books = books
        self._block_size = block_size
        self._poll_interval_s = poll_interval_s
        self._hang_timeout_s = hang_timeout_s
        self._on_death = on_death
        self._engine: EnginePort | None = None
        self._probe_tokens: Sequence[int] | None = None
        self._findings = NOTHING_FOUND
        self.capacity: Mapping[str, Any] = {}  # as the engine says it; complete after `probe`
        self._error: Exception | None = None
        self._is_loaded = threading.Event()
        self._may_probe = threading.Event()
        self._is_ready = threading.Event()
        self._wake = threading.Event()
        self._is_stopping = threading.Event()
        self._call_started_at: float | None = None
        self._busy_until = 0.0
        self._next_stats = self._next_health = 0.0
        self._reuses: deque[tuple[int, Sequence[int], int, float, Prompt]] = deque()
        self._thread = threading.Thread(target=self._run, name="trtllm-poll", daemon=True)
        self._thread.start()

    def wait_loaded(self) -> EnginePort:
        """The engine, once it is made. Raises what making it raised."""
        self._is_loaded.wait()
        if self._engine is None:
            assert self._error is not None
            raise self._error
        return self._engine

    def probe(self, tokens: Sequence[int] | None, timeout_s: float) -> Findings:
        """Lets the first request run and the rhythm begin. Raises ExecutorDead."""
        self._probe_tokens = tokens
        self._may_probe.set()
        if not self._is_ready.wait(timeout_s):
            raise ExecutorDead(
                f"TensorRT-LLM did not answer its first request within {timeout_s:g} s"
            )
        if self._error is not None:
            raise ExecutorDead(f"TensorRT-LLM failed at its start: {self._error}")
        return self._findings

    def wake(self) -> None:
        """There will be events soon."""
        self._wake.set()

    def note_reuse(
        self,
        dp_rank: int,
        hashes: Sequence[int],
        num_cached_tokens: int,
        asked_at: float,
        prompt: Prompt,
    ) -> None:
        """What a request found in the cache; any thread."""
        self._reuses.append((dp_rank, hashes, num_cached_tokens, asked_at, prompt))

    def check(self) -> None:
        """Raises ExecutorDead if the thread or the engine does not move. Any thread."""
        if not self._thread.is_alive() and not self._is_stopping.is_set():
            raise ExecutorDead("the thread that reads TensorRT-LLM's events has ended")
        started_at = self._call_started_at
        if started_at is not None and self._books.clock() - started_at > self._hang_timeout_s:
            raise ExecutorDead(f"TensorRT-LLM has not answered a call for {self._hang_timeout_s} s")
        silence_s = self._books.silence_s()
        if silence_s > self._hang_timeout_s:
            raise ExecutorDead(
                f"TensorRT-LLM has work and has not said anything for {silence_s:.0f} s"
            )

    def stop(self, timeout_s: float) -> bool:
        """False if a call into the engine does not return."""
        self._is_stopping.set()
        self._wake.set()
        self._may_probe.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._engine = self._open_engine()
            self._is_loaded.set()
            self._may_probe.wait()
            if self._probe_tokens is not None and not self._is_stopping.is_set():
                self._findings = look(
                    self._engine, self._ranks, self._probe_tokens, self._block_size
                )
            self.capacity = self._engine.capacity()
            self._is_ready.set()
            while not self._is_stopping.is_set():
                self._turn(self._engine)
                self._rest()
        except Exception as error:
            self._error = error
            if self._is_ready.is_set() and not self._is_stopping.is_set():
                self._on_death(_death_of(error))
        finally:
            self._is_loaded.set()
            self._is_ready.set()

    def _rest(self) -> None:
        """Only an idle thread is woken: many requests must not mean many calls."""
        if len(self._books) or self._books.clock() < self._busy_until:
            self._is_stopping.wait(self._poll_interval_s)
        else:
            self._wake.wait(IDLE_POLL_S)
        if self._wake.is_set():
            self._wake.clear()
            self._busy_until = self._books.clock() + BUSY_FOR_S

    def _turn(self, engine: EnginePort) -> None:
        self._call_started_at = now = self._books.clock()
        events = engine.events()
        has_news = self._ranks.take(events, self._books.clock())
        if now >= self._next_stats:
            self._next_stats = now + STATS_INTERVAL_S
            has_news = self._ranks.feed(engine.stats()) or has_news
        if now >= self._next_health:
            self._next_health = now + HEALTH_INTERVAL_S
            if not engine.is_alive():
                raise ExecutorDead("TensorRT-LLM says that it is not healthy")
        self._call_started_at = None
        if has_news:
            self._books.sign_of_life()
        while self._reuses:
            self._ranks.reused(*self._reuses.popleft())
        self.check()


def _death_of(error: Exception) -> ExecutorDead:
    if isinstance(error, ExecutorDead):
        return error
    logger.exception("the thread that reads TensorRT-LLM's events crashed")
    if isinstance(error, CachelaneError):
        return ExecutorDead(str(error))
    return ExecutorDead(f"TensorRT-LLM's events cannot be read: {error!r}")
