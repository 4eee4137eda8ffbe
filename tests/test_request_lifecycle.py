"""No block, slot, stream, ticket or reservation outlives its request, however it ends."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controllers.blocks import block_hashes
from controllers.errors import CachelaneError
from serve_app.asgi import ClientGone
from serve_app.engine.build import EngineLimits
from serve_app.executors.base import Executor, GenerateRequest, SamplingParams
from serve_app.executors.scripted import ScriptedExecutor
from serve_app.feed import Feed
from serve_app.fleet import Ask
from tests.lifecycle_rig import Rig, quiet
from tests.trtllm_double import installed
from tests.trtllm_executors import NEW, OLD, make_trtllm

NUM_CLIENTS = 32
BLOCK_SIZE = 4
VOCAB_SIZE = 259
LIMITS = EngineLimits(
    block_size=BLOCK_SIZE,
    num_gpu_blocks=48,
    max_batch_size=8,
    max_batched_tokens=64,
    max_seq_len=64,
)

ENDINGS = {
    "complete": 8,
    "disconnect": 3,
    "cancel": 3,
    "timeout": 2,
    "abort": 2,
    "stop": 1,
    "too_long": 1,
    "empty": 1,
    "no_such_token": 1,
    "no_such_adapter": 1,
}


class Tally:
    """What all clients did. `action` is called when the `at`-th request is made."""

    def __init__(self, at: int, action: Callable[[], None] | None) -> None:
        self.ends: Counter[str] = Counter()
        self.num_sent = 0
        self._at = at
        self._action = action

    def sent(self) -> int:
        self.num_sent += 1
        if self.num_sent == self._at and self._action is not None:
            self._action()
        return self.num_sent


class Client:
    """Sends requests one after another; each ends in a way that chance chooses."""

    def __init__(self, rig: Rig, number: int, tally: Tally) -> None:
        self._rig = rig
        self._rng = random.Random(number)
        self._tally = tally

    async def run(self, num_requests: int) -> None:
        """Until all clients together have sent so many."""
        while self._tally.num_sent < num_requests:
            [ending] = self._rng.choices(list(ENDINGS), list(ENDINGS.values()))
            asks = [self._ask(ending) for _ in range(self._rng.choice((1, 1, 1, 2)))]
            self._tally.ends[await self._end_of(ending, asks)] += 1

    def _ask(self, ending: str) -> Ask:
        rng = self._rng
        size = {"too_long": 64, "empty": 0}.get(ending, rng.randint(1, 40))
        tokens = rng.choices((7, 8), (3, 1), k=size)
        if ending == "no_such_token":
            tokens[-1] = VOCAB_SIZE
        array = np.array(tokens, np.uint32)
        n = rng.choice((1, 1, 1, 1, 1, 2))
        request = GenerateRequest(
            request_id=str(self._tally.sent()),
            token_ids=array.tobytes(),
            sampling=SamplingParams(max_tokens=rng.randint(1, 4), n=n, temperature=1.0),
            salt=rng.choice((0, 0, 5)),
            adapter="nowhere" if ending == "no_such_adapter" else None,
            service_rank=rng.randint(0, 2),
        )
        return Ask(
            request=request,
            hashes=block_hashes(array, BLOCK_SIZE, request.salt),
            num_tokens=len(tokens),
            request_type="interactive",
            tier="interactive",
            tenant=rng.choice(("a", "b")),
        )

    async def _end_of(self, ending: str, asks: list[Ask]) -> str:
        """How it really ended."""
        task = asyncio.ensure_future(self._read(ending, asks))
        if ending == "cancel":
            for _ in range(self._rng.randint(0, 12)):
                await asyncio.sleep(0)
            task.cancel()
        timeout_s = self._rng.uniform(0, 0.003) if ending == "timeout" else None
        try:
            await asyncio.wait_for(task, timeout_s)
        except asyncio.TimeoutError:
            return "timeout"
        except asyncio.CancelledError:
            return "cancelled"
        except ClientGone:
            return "disconnect"
        except CachelaneError as error:
            return type(error).__name__
        return "complete"

    async def _read(self, ending: str, asks: list[Ask]) -> None:
        """As the HTTP edge reads: a feed over all prompts of a request."""
        gone = asyncio.Event()
        num_left = sum(ask.request.sampling.n for ask in asks)
        async with Feed(self._rig.fleet, asks, self._receive(gone)) as feed:
            if ending == "disconnect" and self._rng.random() < 0.3:
                gone.set()  # before anything came
            while num_left:
                for prompt, chunk in await feed.next():
                    num_left -= chunk.finish_reason is not None
                    self._interfere(ending, asks[prompt], gone)
                if ending == "stop":
                    for prompt in range(len(asks)):
                        feed.stop(prompt)
                    return

    def _interfere(self, ending: str, ask: Ask, gone: asyncio.Event) -> None:
        if ending == "disconnect" and self._rng.random() < 0.5:
            gone.set()
        if ending == "abort" and self._rng.random() < 0.5:
            for replica in self._rig.replicas:
                replica.executor.abort(ask.request.request_id)

    def _receive(self, gone: asyncio.Event) -> Callable[[], Any]:
        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        return receive


def on_double() -> Executor:
    """Events are read rarely: the test is about requests."""
    return make_trtllm(Path(), LIMITS, poll_interval_s=0.05)


async def storm(
    rig: Rig, num_requests: int, midway: Callable[[], None] | None = None
) -> Counter[str]:
    """How they ended; every prompt of a call is a request."""
    tally = Tally(num_requests // 2, midway)
    clients = [Client(rig, number, tally) for number in range(NUM_CLIENTS)]
    await asyncio.gather(*(client.run(num_requests) for client in clients))
    return tally.ends


async def settled(rig: Rig) -> None:
    """Engines let go of aborted requests by their next step. A test's time limit bounds this."""
    while rig.leftovers() or len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.005)


@asynccontextmanager
async def rig_of(*executors: Executor) -> AsyncIterator[Rig]:
    """Whatever a task or callback raises and nobody hears is an error."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    rig = Rig(executors, BLOCK_SIZE)
    with quiet("serve_app.ray_fleet", "serve_app.executors.trtllm_runs"):
        yield rig
        rig.close()
    gc.collect()
    assert unheard == []


def assert_engine_empty(llm: Any) -> None:
    """What the engine itself says, behind the adapter."""
    [rank] = llm._executor._ranks
    assert rank.num_requests == 0
    assert rank._largest.used_blocks["gpu"] == 0
    assert rank._largest.num_free_blocks == LIMITS.num_gpu_blocks
    assert len(llm._executor._loop._live) == 0


def assert_all_kinds(ends: Counter[str]) -> None:
    """The storm was one."""
    assert set(ends) >= {
        "complete",
        "cancelled",
        "disconnect",
        "timeout",
        "InvalidRequest",
        "PromptTooLong",
    }


@pytest.mark.timeout(300)
async def test_nothing_is_left_on_the_double_of_tensorrt_llm() -> None:
    with installed(version=NEW) as package:
        async with rig_of(*(on_double() for _ in range(2))) as rig:
            assert_all_kinds(await storm(rig, 10_000))
            await settled(rig)
            for llm in package.double.running():
                assert_engine_empty(llm)


async def test_nothing_is_left_on_the_scripted_executor() -> None:
    executors = [ScriptedExecutor(LIMITS) for _ in range(2)]
    async with rig_of(*executors) as rig:
        assert_all_kinds(await storm(rig, 1000))
        await settled(rig)
        assert [executor._engine._request_id_to_live for executor in executors] == [{}, {}]


@pytest.mark.parametrize("is_proxy", [False, True])
async def test_nothing_is_left_when_an_engine_dies(is_proxy: bool) -> None:
    """Behind a proxy it dies without a word to those who wait."""
    with installed(version=OLD, is_proxy=is_proxy) as package:
        async with rig_of(*(on_double() for _ in range(2))) as rig:
            dying, healthy = package.double.running()
            ends = await storm(rig, 400, midway=dying.faults.die)
            assert ends["complete"] > 0  # how many is a matter of when it died
            await settled(rig)
            assert_engine_empty(healthy)
