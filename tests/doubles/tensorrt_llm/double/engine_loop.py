"""The thread in which the ranks' engines run, one iteration after another.

Owns the inbox, faults and pretended time. The loop of whoever generates is never blocked by it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from serve_app.engine.engine import Output
from serve_app.engine.scripted_model import Timing
from tensorrt_llm.double.events import JsonObject
from tensorrt_llm.double.faults import Faults
from tensorrt_llm.double.live import LiveRequest, LiveRequests
from tensorrt_llm.double.published import Published, warn_of_discarded
from tensorrt_llm.double.rank import Rank
from tensorrt_llm.double.requests import packed
from tensorrt_llm.double.responses import Waker
from tensorrt_llm.double.settings import Settings
from tensorrt_llm.double.shape import Shape

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0


class EngineLoop:
    """Started by the constructor. `fatal_error` is set when it ended by itself."""

    def __init__(
        self, ranks: list[Rank], shape: Shape, settings: Settings, *, has_stats: bool
    ) -> None:
        self.fatal_error: Exception | None = None
        self.waker = Waker()
        self.faults = Faults(self._notify, settings)
        self.events = Published(shape.num_events, lambda: warn_of_discarded(shape.num_events))
        self.stats = Published(shape.num_stats if has_stats else 0)
        self._ranks = ranks
        self._settings = settings
        self._markers = (packed(list(settings.die_on)), packed(list(settings.hang_on)))
        self._timing = Timing(
            settings.prefill_ms, settings.prefill_ms_per_token, settings.decode_ms
        )
        self._live = LiveRequests(self.waker, has_end_id=settings.has_end_id_in_output)
        self._inbox: deque[LiveRequest | str] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        for rank in ranks if shape.num_events else []:
            self.events.put(rank.created())
        self._thread = threading.Thread(target=self._run, name="tensorrt_llm double", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self.fatal_error is None and not self._is_stopping

    def submit(self, item: LiveRequest | str) -> None:
        """A request, or the id of one to abort."""
        with self._changed:
            self._inbox.append(item)
            self._changed.notify()

    def stop(self) -> None:
        """Cancels what runs and ends the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self.faults.end()
        self._thread.join(STOP_TIMEOUT_S)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._take_inbox():
                self._iterate()
            self._live.cancel_all()
        except Exception as error:
            logger.error("the engine's loop ended: %s", error)
            self.fatal_error = error
            self._on_death(error)

    def _on_death(self, error: Exception) -> None:
        """Only an engine in the same process tells those who wait."""
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, LiveRequest):
                self._live.add(item)
        if not self._settings.has_worker_process:
            self._live.fail_all(f"Event loop terminated with error: {error}")

    def _take_inbox(self) -> bool:
        """Waits for work; False at the end."""
        with self._changed:
            while not (self._inbox or self._is_stopping or self.faults.death or self._has_work()):
                self._changed.wait()
        self._suffer()
        while self._inbox:
            self._take(self._inbox.popleft())
        return not self._is_stopping

    def _suffer(self) -> None:
        self.faults.wait_while_hanging()
        if self.faults.death is not None:
            raise RuntimeError(self.faults.death)

    def _take(self, item: LiveRequest | str) -> None:
        if isinstance(item, str):
            for rank in self._ranks:
                rank.engine.abort(item)
            self._live.cancel(item)
            return
        self._live.add(item)
        die_on, hang_on = self._markers
        if die_on and die_on in item.request.token_ids:
            self.faults.die()
        if hang_on and hang_on in item.request.token_ids:
            self.faults.hang()
        self._suffer()
        self._ranks[item.rank].add(item.request)

    def _has_work(self) -> bool:
        return any(rank.engine.has_work for rank in self._ranks)

    def _iterate(self) -> None:
        """Events and statistics of an iteration are there before its tokens are."""
        outputs: list[Output] = []
        for rank in self._ranks:
            outputs += self._step(rank)
            events = [event for event in rank.take_events() if not self.faults.loses_event()]
            if events:
                self.events.put(self._with_falsy(events))
        self._live.take(outputs)

    def _step(self, rank: Rank) -> list[Output]:
        started_at = time.monotonic()
        step = rank.schedule()
        if not step:
            return []
        duration_s = self._timing.duration_s(step) * self.faults.slow_factor
        if duration_s:
            time.sleep(duration_s)
        outputs = rank.finish_step(step)
        ms = (time.monotonic() - started_at) * 1000
        is_impossible = self.faults.has_impossible_stats
        self.stats.put([rank.stats_of(step, outputs, ms, is_impossible=is_impossible)])
        return outputs

    def _with_falsy(self, events: list[JsonObject]) -> list[JsonObject]:
        every = self._settings.falsy_event_every
        if not every:
            return events
        mixed: list[JsonObject] = []
        for at, event in enumerate(events, start=1):
            mixed += [event] if at % every else [event, {}]
        return mixed
