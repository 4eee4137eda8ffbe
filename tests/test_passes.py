from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from controllers.errors import NotReady
from controllers.placement import Placed, Refused, Sent
from serve_app.passes import Passes

PLACED = Placed(
    worker="a-0",
    reason="cold",
    predicted_cached_tokens=0,
    best_cached_tokens=0,
    predicted_ttft_ms=1.0,
    num_candidates=1,
    predicted_service_ms=1.0,
)


class Door:
    """What placement does here: who waits goes when the door is open."""

    def __init__(self) -> None:
        self.is_open = True
        self.waiting: list[str] = []
        self.passes: list[list[str]] = []  # who was sent or refused by each
        self.given_back: list[str] = []
        self.refusal: NotReady | None = None
        self.wake_in_s: float | None = None
        self.on_run: Callable[[], None] = lambda: None
        self.rules = Passes(self.run, lambda: self.wake_in_s, self.given_back.append)

    def run(self) -> Sequence[Sent | Refused]:
        self.on_run()
        going = self.waiting if self.is_open else []
        self.waiting = [] if self.is_open else self.waiting
        self.passes.append(list(going))
        return [self._result(name) for name in going]

    def _result(self, name: str) -> Sent | Refused:
        if self.refusal is not None:
            return Refused(request_id=name, error=self.refusal)
        return Sent(request_id=name, placed=PLACED)

    async def turn(self, name: str) -> Sent:
        self.waiting.append(name)
        return await self.rules.turn(name)

    def begin(self, name: str) -> asyncio.Task[Sent]:
        return asyncio.create_task(self.turn(name))


async def turns_of_loop(num: int) -> None:
    for _ in range(num):
        await asyncio.sleep(0)


async def test_what_can_go_costs_one_turn_of_the_loop() -> None:
    door, steps = Door(), list[str]()

    async def count() -> None:
        for number in range(5):
            steps.append(str(number))
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)  # the counter is at its first step
    steps.append("came")
    await door.turn("q")
    steps.append("went")
    assert steps == ["0", "came", "1", "went"]
    await counting


async def test_requests_of_one_moment_are_looked_at_together() -> None:
    door = Door()
    sent = await asyncio.gather(*(door.turn(name) for name in "abc"))
    assert [one.request_id for one in sent] == ["a", "b", "c"]
    assert door.passes == [["a", "b", "c"]]


async def test_changes_of_one_moment_make_one_pass() -> None:
    door = Door()
    door.is_open = False
    task = door.begin("q")
    await turns_of_loop(3)
    assert door.passes == [[]]
    door.rules._rests_until = 0.0
    door.is_open = True
    for _ in range(3):
        door.rules.soon()
    assert (await task).request_id == "q"
    assert door.passes == [[], ["q"]]


async def test_a_change_may_be_told_by_another_thread() -> None:
    door = Door()
    door.is_open = False
    task = door.begin("q")
    await turns_of_loop(3)
    door.is_open = True
    thread = threading.Thread(target=door.rules.soon)
    thread.start()
    assert (await task).request_id == "q"
    thread.join()


async def test_a_change_during_a_pass_makes_another_one() -> None:
    door = Door()
    door.is_open = False

    def open_late() -> None:
        door.on_run = lambda: None
        door.rules.soon()

    door.on_run = open_late
    task = door.begin("q")
    while len(door.passes) < 2:
        await asyncio.sleep(0)
    assert door.passes == [[], []]
    task.cancel()


async def test_a_pass_comes_when_placement_says_so() -> None:
    door = Door()
    door.is_open, door.wake_in_s = False, 0.001
    task = door.begin("q")
    await asyncio.sleep(0.01)
    door.is_open, door.wake_in_s = True, None
    assert (await task).request_id == "q"
    assert door.rules._timer is None


async def test_without_a_word_nothing_is_looked_at_again() -> None:
    door = Door()
    await door.turn("q")
    door.rules.soon()  # nobody waits
    await turns_of_loop(3)
    assert door.passes == [["q"]]
    assert (door.rules._turns, door.rules._timer) == ({}, None)


async def test_a_refusal_is_raised() -> None:
    door = Door()
    door.refusal = NotReady("nobody is left")
    with pytest.raises(NotReady, match="nobody is left"):
        await door.turn("q")
    assert door.rules._turns == {}


async def test_when_a_pass_fails_nobody_waits_for_ever() -> None:
    door = Door()
    door.is_open = False
    one = door.begin("one")
    await turns_of_loop(3)
    door.rules._rests_until = 0.0

    def fail() -> None:
        raise ZeroDivisionError("as never seen before")

    door.on_run = fail
    for task in (one, door.begin("other")):
        with pytest.raises(ZeroDivisionError, match="as never seen before"):
            await task
    assert (door.rules._turns, door.rules._timer) == ({}, None)


@pytest.mark.parametrize("num_turns", [0, 1, 3])
async def test_who_is_cancelled_takes_nothing_from_the_others(num_turns: int) -> None:
    """Also in the very turn that it gave the others to be looked at together."""
    door = Door()
    door.is_open = False
    one, other = door.begin("one"), door.begin("other")
    await turns_of_loop(num_turns)
    one.cancel()
    await asyncio.wait([one])
    assert one.cancelled()
    door.is_open = True
    door.rules.soon()
    assert (await other).request_id == "other"
    # It was cancelled before it began, or it is still in placement's list: nobody removed it here.
    assert door.given_back == ([] if num_turns == 0 else ["one"])
    assert door.rules._turns == {}


async def test_who_gives_way_stops_waiting_at_once() -> None:
    door = Door()
    door.is_open = False
    task = door.begin("q")
    await turns_of_loop(3)
    assert (door.rules.leave("q"), door.rules.leave("q")) == (True, False)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_gives_way_may_be_told_by_another_thread() -> None:
    door = Door()
    door.is_open = False
    task = door.begin("q")
    await turns_of_loop(3)
    thread = threading.Thread(target=door.rules.leave, args=("q",))
    thread.start()
    with pytest.raises(asyncio.CancelledError):
        await task
    thread.join()


async def test_passes_leave_the_loop_half_of_its_time_while_requests_wait() -> None:
    door, loop = Door(), asyncio.get_running_loop()
    door.is_open = False
    spans: list[tuple[float, float]] = []

    def take_long() -> None:
        began = loop.time()
        time.sleep(0.05)
        spans.append((began, loop.time()))

    door.on_run = take_long
    task = door.begin("q")
    await turns_of_loop(3)
    door.is_open = True
    for _ in range(3):
        door.rules.soon()
        await turns_of_loop(3)
    assert (await task).request_id == "q"  # it is made up for, without another word
    (first_began, first_ended), (second_began, _) = spans
    assert second_began - first_ended >= first_ended - first_began
    door.on_run = lambda: None
    await door.turn("r")  # nobody was left waiting: at once
    assert len(door.passes) == 3
