"""The thread that runs an engine step after step.

Owns the thread, the inbox and the report of a crash. Knows no event loop and no streams: it calls
`on_outputs` and `on_death` from its own thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from controllers.errors import ExecutorDead
from serve_app.engine.engine import Engine, Output
from serve_app.executors.base import GenerateRequest

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0  # longer than any step of a usable set-up


class EngineThread:
    """Started by the constructor. An abort takes effect before the next step.

    Only the running thread keeps the engine, so that the model is gone when it ends.
    """

    def __init__(
        self,
        engine: Engine,
        on_outputs: Callable[[list[Output]], None],
        on_death: Callable[[ExecutorDead], None],
    ) -> None:
        self._on_outputs = on_outputs
        self._on_death = on_death
        self._inbox: list[GenerateRequest | str] = []
        self._has_news = threading.Condition()
        self._is_stopping = False
        self._step_started_at: float | None = None
        self._thread = threading.Thread(
            target=self._run, args=(engine,), name="engine", daemon=True
        )
        self._thread.start()

    @property
    def num_inbox(self) -> int:
        """Requests that the engine does not know yet."""
        return sum(isinstance(item, GenerateRequest) for item in list(self._inbox))

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def step_age_s(self) -> float:
        """How long the present step has been running; 0 between steps."""
        started_at = self._step_started_at
        return 0.0 if started_at is None else time.monotonic() - started_at

    def submit(self, item: GenerateRequest | str) -> None:
        """A request to add, or the id of one to abort. In order; from any thread."""
        with self._has_news:
            self._inbox.append(item)
            self._has_news.notify()

    def stop(self) -> None:
        """Ends the thread after the present step, and waits for that."""
        with self._has_news:
            self._is_stopping = True
            self._has_news.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self, engine: Engine) -> None:
        try:
            while self._take_inbox(engine):
                if engine.has_work:
                    self._step(engine)
        except Exception as error:
            logger.exception("the engine's thread crashed")
            self._on_death(ExecutorDead(f"the engine crashed: {error!r}"))

    def _take_inbox(self, engine: Engine) -> bool:
        """Waits for work; False at the end."""
        with self._has_news:
            while not (self._inbox or self._is_stopping or engine.has_work):
                self._has_news.wait()
            inbox, self._inbox = self._inbox, []
        for item in inbox:
            if isinstance(item, str):
                engine.abort(item)
            else:
                engine.add_request(item)
        return not self._is_stopping

    def _step(self, engine: Engine) -> None:
        self._step_started_at = time.monotonic()
        outputs = engine.step()
        self._step_started_at = None
        if outputs:
            self._on_outputs(outputs)
