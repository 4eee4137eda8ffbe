from __future__ import annotations

import asyncio

import pytest

from controllers.errors import ExecutorDead, Overtaken, WorkerFull
from controllers.fair_queue import Bounds
from serve_app.executors.base import ExecutorInfo, TokenChunk
from serve_app.gate_keeper import ORDINARY, GateKeeper, Standing

INFO = ExecutorInfo(
    name="scripted",
    version="1",
    model="m",
    block_size=4,
    num_blocks={"gpu": 8},
    max_seq_len=64,
    max_batch_size=3,
    max_batched_tokens=8192,
)


class Rig:
    """Requests as tasks that hold their place until told to go on."""

    def __init__(self, max_waiting: int = 10) -> None:
        self.now = 0.0
        self.keeper = GateKeeper(INFO, Bounds(max_waiting), 0.5, clock=lambda: self.now)
        self.started: list[str] = []
        self.steps: dict[str, asyncio.Queue[str]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.chunks: list[TokenChunk] = []

    async def submit(self, request_id: str, uncached: int, standing: Standing = ORDINARY) -> None:
        self.steps[request_id] = asyncio.Queue()
        self.tasks[request_id] = asyncio.ensure_future(self._run(request_id, uncached, standing))
        await settle()

    async def _run(self, request_id: str, uncached: int, standing: Standing) -> None:
        async with self.keeper.admit(request_id, uncached, standing) as ticket:
            self.started.append(request_id)
            while await self.steps[request_id].get() == "token":
                self.chunks.append(ticket.on_chunk(TokenChunk(token_ids=(1,), queue_ms=2.0)))

    async def step(self, request_id: str, what: str) -> None:
        self.steps[request_id].put_nowait(what)
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_long_prefill_holds_the_next_until_its_first_token() -> None:
    rig = Rig()
    await rig.submit("a", 4000)
    await rig.submit("b", 3000)
    await rig.submit("c", 100)
    assert rig.started == ["a"]
    assert rig.keeper.waiting() == (2, 3100)
    await rig.step("a", "token")
    assert rig.started == ["a", "c"]
    await rig.step("c", "end")
    assert rig.started == ["a", "c", "b"]
    for name in "ab":
        await rig.step(name, "end")
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 0)


async def test_short_prefills_share_a_start_and_full_hits_pass() -> None:
    rig = Rig()
    for name, uncached in (("a", 1000), ("b", 500), ("c", 500), ("hit", 0)):
        await rig.submit(name, uncached)
    assert rig.started == ["a", "b", "hit"]  # c would make 2,000 tokens and a batch of four
    await rig.step("a", "end")
    assert rig.started == ["a", "b", "hit", "c"]


async def test_the_batch_bounds_what_runs() -> None:
    rig = Rig()
    for name in "abcd":
        await rig.submit(name, 0)
    assert rig.started == ["a", "b", "c"]
    await rig.step("b", "end")
    assert rig.started == ["a", "b", "c", "d"]


async def test_too_many_waiting_is_overloaded_and_changes_nothing() -> None:
    rig = Rig(max_waiting=1)
    await rig.submit("a", 4000)
    await rig.submit("b", 4000)
    with pytest.raises(WorkerFull, match="1 requests with 4000 tokens to prefill wait"):
        async with rig.keeper.admit("c", 4000):
            pytest.fail("was let in")
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((1, 4000), 1)


@pytest.mark.parametrize("victim", ["a", "b"])
async def test_a_cancelled_request_gives_its_place_back(victim: str) -> None:
    rig = Rig()
    await rig.submit("a", 4000)
    await rig.submit("b", 4000)
    await rig.submit("c", 4000)
    rig.tasks[victim].cancel()
    await asyncio.gather(rig.tasks[victim], return_exceptions=True)
    await settle()
    assert rig.started == (["a", "b"] if victim == "a" else ["a"])
    assert rig.keeper.waiting()[0] == 1
    rest = [name for name in "abc" if name != victim]
    for name in rest:
        await rig.step(name, "end")
    assert rig.started[-2:] == rest[-2:]
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 0)


async def test_a_second_request_of_the_same_id_is_refused() -> None:
    rig = Rig()
    await rig.submit("a", 10)
    with pytest.raises(ValueError, match="runs already"):
        async with rig.keeper.admit("a", 10):
            pytest.fail("was let in")
    assert rig.keeper.num_running() == 1
    await rig.step("a", "end")


async def test_queue_ms_of_the_first_chunk_holds_the_wait_at_the_gate() -> None:
    rig = Rig()
    await rig.submit("a", 4000)
    await rig.submit("b", 4000)
    rig.now = 0.5
    await rig.step("a", "token")
    await rig.step("a", "token")
    await rig.step("b", "token")
    assert [chunk.queue_ms for chunk in rig.chunks] == [2.0, 2.0, 502.0]


async def test_requests_cancelled_together_do_not_hold_up_those_behind_them() -> None:
    rig = Rig()
    for name, uncached in (("a", 4000), ("b", 3000), ("c", 3100), ("d", 3200)):
        await rig.submit(name, uncached)
    for name in "abc":  # as when a router process dies: a's end must not fail on b, cancelled too
        rig.tasks[name].cancel()
    await settle()
    assert all(rig.tasks[name].cancelled() for name in "abc")
    assert rig.started == ["a", "d"]
    await rig.step("d", "end")
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 0)


async def test_a_better_rank_takes_the_place_of_the_youngest_of_the_worst() -> None:
    rig = Rig(max_waiting=2)
    for name, rank in (("a", 0), ("old batch", 2), ("new batch", 2)):
        await rig.submit(name, 4000, Standing(rank))
    await rig.submit("chat", 4000, Standing(0))
    with pytest.raises(WorkerFull, match="'new batch' gave way to one that comes first"):
        await rig.tasks["new batch"]
    assert rig.keeper.waiting_by_rank() == {0: (1, 4000), 2: (1, 4000)}
    await rig.step("a", "end")
    assert rig.started == ["a", "chat"]
    await rig.step("chat", "end")
    await rig.step("old batch", "end")
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 0)


async def test_who_may_wait_no_longer_is_refused_when_the_time_comes() -> None:
    rig = Rig()
    await rig.submit("a", 4000)
    await rig.submit("b", 4000, Standing(max_wait_s=0.01))
    rig.now = 0.01
    with pytest.raises(WorkerFull, match="'b' waited as long as it may"):
        await rig.tasks["b"]
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 1)
    await rig.step("a", "end")
    assert rig.started == ["a"]


async def test_a_late_turn_is_no_turn() -> None:
    rig = Rig()
    await rig.submit("a", 4000)
    await rig.submit("b", 4000, Standing(max_wait_s=60))
    rig.now = 60.0  # the loop stood still: its timer has not fired
    await rig.step("a", "end")
    with pytest.raises(WorkerFull):
        await rig.tasks["b"]
    assert rig.started == ["a"]


async def test_a_victim_that_is_cancelled_meanwhile_harms_nobody() -> None:
    rig = Rig(max_waiting=1)
    await rig.submit("a", 4000)
    await rig.submit("batch", 4000, Standing(2))
    rig.tasks["batch"].cancel()
    rig.steps["chat"] = asyncio.Queue()
    rig.tasks["chat"] = asyncio.ensure_future(rig._run("chat", 4000, Standing(0)))
    await settle()
    assert rig.tasks["batch"].cancelled()
    await rig.step("a", "end")
    assert rig.started == ["a", "chat"]
    await rig.step("chat", "end")
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 0)


async def test_turned_away_is_who_waits_and_nobody_else() -> None:
    rig = Rig()
    for name in "abc":
        await rig.submit(name, 4000)
    rig.tasks["c"].cancel()  # has not noticed yet
    rig.keeper.turn_away("it hangs")
    with pytest.raises(ExecutorDead, match="'b' was not started: it hangs"):
        await rig.tasks["b"]
    await settle()
    assert rig.tasks["c"].cancelled()
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 1)
    await rig.submit("d", 4000)
    await rig.step("a", "end")
    assert rig.started == ["a", "d"]
    await rig.step("d", "end")
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 0)


async def test_what_several_routers_send_at_once_starts_in_order() -> None:
    now = [0.0]
    keeper = GateKeeper(INFO, Bounds(10), gather_s=0.01, clock=lambda: now[0])
    order: list[str] = []
    done = asyncio.Event()

    async def run(request_id: str, uncached: int) -> None:
        async with keeper.admit(request_id, uncached) as ticket:
            order.append(request_id)
            ticket.on_chunk(TokenChunk(token_ids=(1,)))
            await done.wait()

    tasks = [asyncio.ensure_future(run("first", 4000))]
    await settle()
    tasks += [asyncio.ensure_future(run(name, num)) for name, num in (("b", 5000), ("a", 3000))]
    await asyncio.sleep(0.02)  # by the keeper's clock no time passes yet
    assert order == ["first"]
    now[0] = 0.01
    while len(order) < 3:
        await asyncio.sleep(0.01)
    assert order == ["first", "a", "b"]
    done.set()
    await asyncio.gather(*tasks)
    assert keeper.num_running() == 0


async def test_who_is_handed_back_hears_it_and_leaves_its_place() -> None:
    rig = Rig()
    await rig.submit("running", 4000)
    await rig.submit("patient", 5000, Standing(max_ahead_tokens=4000))
    await rig.submit("overtaken", 6000, Standing(max_ahead_tokens=8999, max_wait_s=60.0))
    with pytest.raises(Overtaken, match="'overtaken' is not the next one"):
        await rig.tasks["overtaken"]
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((1, 5000), 1)
    await rig.step("running", "token")
    assert rig.started == ["running", "patient"]
    for name in rig.started:
        await rig.step(name, "end")
    assert (rig.keeper.waiting(), rig.keeper.num_running()) == ((0, 0), 0)
