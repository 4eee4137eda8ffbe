"""An executor that takes requests and makes no tokens; time is moved by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from controllers.errors import ExecutorDead, RequestAborted
from serve_app.engine.build import EngineLimits
from serve_app.executors.base import TokenChunk
from serve_app.executors.scripted import Faults, ScriptedExecutor
from serve_app.stall_watch import Patience, StallWatch
from tests.contract.test_executors import ask, prompt_of

LIMITS = EngineLimits(block_size=8, num_gpu_blocks=64, max_seq_len=400)
HANG = [77, 77]
PATIENCE = Patience(first_token_s=10.0, next_token_s=2.0)


class Rig:
    def __init__(self, faults: Faults | None = None) -> None:
        self.now = 100.0
        self.num_stalls = 0
        self.executor = ScriptedExecutor(LIMITS, faults=faults or Faults())
        self.watch = StallWatch(self.executor, lambda: self.now, self._count)

    def _count(self) -> None:
        self.num_stalls += 1

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.watch.check()


@pytest.fixture
async def hanging() -> AsyncIterator[Rig]:
    marker = b"".join(token.to_bytes(4, "little") for token in HANG)
    rig = Rig(Faults(hang_on=marker))
    yield rig
    rig.executor.close()


async def run_out(chunks: AsyncIterator[TokenChunk]) -> None:
    async for _ in chunks:
        pass


async def tokens(rig: Rig, request_id: str, prompt: list[int]) -> list[TokenChunk]:
    return [chunk async for chunk in rig.watch.generate(ask(request_id, prompt), PATIENCE)]


async def test_a_request_that_gets_its_tokens_passes_through() -> None:
    rig = Rig()
    request = ask("q", prompt_of(20))
    chunks = await tokens(rig, "q", prompt_of(20))
    assert [chunk.token_ids for chunk in chunks] == [
        chunk.token_ids async for chunk in rig.executor.generate(request)
    ]
    assert not rig.watch.is_stalled
    rig.executor.close()


async def test_no_first_token_in_time_is_death(hanging: Rig) -> None:
    run = asyncio.create_task(tokens(hanging, "q", HANG))
    await asyncio.sleep(0)
    hanging.later(10.0)
    assert not hanging.watch.is_stalled
    hanging.later(0.1)
    assert hanging.watch.is_stalled
    with pytest.raises(ExecutorDead, match="made no token of 'q' in time"):
        await run


async def test_no_next_token_in_time_is_death_too() -> None:
    rig = Rig()
    async with aclosing(rig.watch.generate(ask("q", prompt_of(20), max_tokens=300), PATIENCE)) as (
        chunks
    ):
        assert (await anext(chunks)).token_ids
        rig.later(2.1)
        with pytest.raises(ExecutorDead):
            await run_out(chunks)
    assert not rig.watch._id_to_run
    rig.executor.close()


async def test_a_token_for_anybody_ends_the_alarm(hanging: Rig) -> None:
    other = Rig()
    hanging.watch._executor = other.executor  # it recovers
    run = asyncio.create_task(tokens(hanging, "q", prompt_of(9)))
    await asyncio.sleep(0)
    hanging.later(10.1)
    assert hanging.watch.is_stalled
    with contextlib.suppress(ExecutorDead):
        await run
    assert await tokens(hanging, "r", prompt_of(9))
    assert not hanging.watch.is_stalled
    other.executor.close()


async def test_while_one_tries_a_stalled_executor_nobody_else_does(hanging: Rig) -> None:
    late = asyncio.create_task(tokens(hanging, "late", HANG))
    await asyncio.sleep(0)
    hanging.later(5.0)
    other = asyncio.create_task(tokens(hanging, "other", prompt_of(9)))
    await asyncio.sleep(0)
    assert hanging.num_stalls == 0
    hanging.later(5.1)
    assert hanging.num_stalls == 1
    with pytest.raises(ExecutorDead, match="made no token of 'late'"):
        await late
    with pytest.raises(ExecutorDead, match="takes requests and makes no tokens"):
        await tokens(hanging, "third", prompt_of(9))
    assert list(hanging.watch._id_to_run) == ["other"]
    hanging.later(5.0)
    assert hanging.num_stalls == 2
    with pytest.raises(ExecutorDead, match="made no token of 'other'"):
        await other
    hanging.watch.check_open()  # one may try


async def test_an_abort_by_somebody_else_stays_an_abort(hanging: Rig) -> None:
    run = asyncio.create_task(tokens(hanging, "q", HANG))
    await asyncio.sleep(0)
    hanging.executor.abort("q")
    with pytest.raises(RequestAborted):
        await run
    assert not hanging.watch.is_stalled


async def test_cancelling_leaves_nothing_to_watch(hanging: Rig) -> None:
    run = asyncio.create_task(tokens(hanging, "q", HANG))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    hanging.later(100.0)
    assert not hanging.watch.is_stalled
