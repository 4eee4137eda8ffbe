"""When placement looks at what waits, and who is told what came of it.

A pass follows every change that may let somebody go, changes of one moment together; at the latest
one comes at the time that placement names. Knows no worker and decides nothing. Requests wait on
one event loop, the one that Serve's router runs on; changes may be told by any thread.

While requests are left waiting, passes take at most half of the loop's time: then the rest of what
changes has to wait for a moment, but nothing of a request that finds nobody waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from controllers.placement import Refused, Sent


class Passes:
    """`run` makes one pass; `wake_in_s` says in how many seconds the next one is due at the latest,
    None: never; `give_back` takes back what was sent for somebody who has left."""

    def __init__(
        self,
        run: Callable[[], Sequence[Sent | Refused]],
        wake_in_s: Callable[[], float | None],
        give_back: Callable[[str], None],
    ) -> None:
        self._run = run
        self._wake_in_s = wake_in_s
        self._give_back = give_back
        self._turns: dict[str, asyncio.Future[Sent]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # of those that wait
        self._thread = 0
        self._num_run = 0
        self._is_due = False
        self._rests_until = 0.0  # in the loop's time
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, request_id: str) -> Sent:
        """Wait until a pass sends the request, which placement knows already; raises why it cannot
        be sent. Costs one turn of the loop if it can go at once."""
        turn = self._join(request_id)
        num_run = self._num_run
        try:
            await asyncio.sleep(0)  # requests of one moment are looked at together
            if self._num_run == num_run:
                self._pass_or_rest()
            return await turn
        finally:
            if self._turns.get(request_id) is turn:
                del self._turns[request_id]

    def leave(self, request_id: str) -> bool:
        """Nobody shall wait for the request any more; False if nobody did. Any thread."""
        turn = self._turns.pop(request_id, None)
        if turn is None or turn.done() or self._loop is None:
            return False
        if threading.get_ident() == self._thread:
            turn.cancel()
        else:
            self._loop.call_soon_threadsafe(turn.cancel)
        return True

    def soon(self) -> None:
        """Something has changed. Any thread."""
        loop = self._loop
        if self._is_due or not self._turns or loop is None:
            return
        self._is_due = True
        if threading.get_ident() == self._thread:
            loop.call_soon(self._pass_if_due)
        else:
            loop.call_soon_threadsafe(self._pass_if_due)

    def close(self) -> None:
        """Whoever waits is told by those who close; no pass comes by itself any more."""
        self._set_timer(None)

    def _join(self, request_id: str) -> asyncio.Future[Sent]:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        turn: asyncio.Future[Sent] = self._loop.create_future()
        self._turns[request_id] = turn
        return turn

    def _pass_if_due(self) -> None:
        if self._is_due:
            self._pass_or_rest()

    def _pass_or_rest(self) -> None:
        assert self._loop is not None, "somebody waits"
        rest_s = self._rests_until - self._loop.time()
        if rest_s > 0:
            self._set_timer(rest_s)
        else:
            self._pass(self._loop)

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False  # what changes from here on is for another pass
        self._num_run += 1
        began = loop.time()
        try:
            for result in self._run():
                self._tell(result)
        except Exception as error:
            self._fail_all(error)  # what failed once would fail again, and all would wait for ever
        finally:
            ended = loop.time()
            self._rests_until = 2 * ended - began if self._turns else ended
            self._set_timer(self._wake_in_s())

    def _fail_all(self, error: Exception) -> None:
        turns, self._turns = self._turns, {}
        for turn in turns.values():
            if not turn.done():
                turn.set_exception(error)

    def _tell(self, result: Sent | Refused) -> None:
        turn = self._turns.pop(result.request_id, None)
        if turn is None or turn.done():
            self._give_back(result.request_id)
        elif isinstance(result, Refused):
            turn.set_exception(result.error)
        else:
            turn.set_result(result)

    def _set_timer(self, delay_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if delay_s is not None and self._loop is not None:
            self._timer = self._loop.call_later(delay_s, self._pass_or_rest)
