from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import Any

import numpy as np

from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import ExecutorDead
from controllers.hot_prefixes import is_warm_up
from serve_app.fleet import Ask
from serve_app.knock import Knock
from serve_app.warm_start import LAST_RANK, WarmStart
from tests.routing_rig import BLOCK_SIZE, ask

SYSTEM, OTHER = list(range(100, 116)), list(range(200, 208))
SOMEBODY = contextvars.ContextVar("SOMEBODY", default="nobody")


class Rig:
    """A warm start whose requests end when they are told to."""

    def __init__(self, **values: Any) -> None:
        self.sent: list[Ask] = []
        self.contexts: list[str] = []
        self.known: dict[str, int] = {"new-0": 0}
        self.failure: Exception | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()
        loop = asyncio.get_running_loop()
        self.warm = WarmStart(BLOCK_SIZE, self.run, self.overlap, loop, lambda: 0.0)
        self.warm.configure(AutoscalingSettings(**{"warm_start": True, **values}))
        for prompt in (SYSTEM, OTHER):
            for i in range(5):
                self.warm.observe(ask(f"q{i}", [*prompt, *range(10 * i, 10 * i + 8)]))

    async def run(self, sent: Ask) -> None:
        self.sent.append(sent)
        self.contexts.append(SOMEBODY.get())
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure

    def overlap(self, worker: str, hashes: Sequence[int]) -> int | None:
        return self.known.get(worker)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def prompts(self) -> list[list[int]]:
        return [np.frombuffer(a.request.token_ids, np.uint32).tolist() for a in self.sent]


async def test_a_new_worker_gets_the_hottest_prefixes_one_by_one() -> None:
    rig = Rig()
    rig.may_end.clear()
    rig.warm.on_new_workers(["new-0"])
    await rig.settle()
    assert rig.prompts() == [SYSTEM]
    rig.may_end.set()
    await rig.settle()
    assert rig.prompts() == [SYSTEM, OTHER]
    for sent in rig.sent:
        assert (sent.pinned_worker, sent.request_type) == ("new-0", "system")
        assert is_warm_up(sent.request.request_id)
        assert sent.request.service_rank == LAST_RANK
        assert sent.request.sampling.max_tokens == 1


async def test_it_belongs_to_nobodys_request() -> None:
    rig = Rig()
    SOMEBODY.set("a client")
    rig.warm.on_new_workers(["new-0"])
    await rig.settle()
    assert rig.contexts == ["nobody", "nobody"]


async def test_what_the_worker_has_by_now_is_not_sent() -> None:
    rig = Rig()
    rig.known["new-0"] = len(SYSTEM) // BLOCK_SIZE
    rig.warm.on_new_workers(["new-0"])
    await rig.settle()
    assert rig.sent == []


async def test_a_worker_that_left_gets_nothing_more() -> None:
    rig = Rig()
    rig.may_end.clear()
    rig.warm.on_new_workers(["new-0"])
    await rig.settle()
    del rig.known["new-0"]
    rig.may_end.set()
    await rig.settle()
    assert rig.prompts() == [SYSTEM]


async def test_a_failure_ends_one_warm_up_only() -> None:
    rig = Rig()
    rig.failure = ExecutorDead("told to")
    rig.warm.on_new_workers(["new-0"])
    await rig.settle()
    assert rig.prompts() == [SYSTEM, OTHER]


async def test_bounds_and_the_switch() -> None:
    rig = Rig(warm_start_max_prefixes=1)
    rig.warm.on_new_workers(["new-0"])
    await rig.settle()
    assert rig.prompts() == [SYSTEM]
    rig = Rig(warm_start=False)
    rig.warm.on_new_workers(["new-0"])
    await rig.settle()
    assert rig.sent == []


async def test_closing_ends_what_runs() -> None:
    rig = Rig()
    rig.may_end.clear()
    rig.warm.on_new_workers(["new-0"])
    await rig.settle()
    rig.warm.close()
    rig.may_end.set()
    await rig.settle()
    assert rig.prompts() == [SYSTEM]


async def test_a_knock_is_sent_once_at_a_time_and_only_where_there_may_be_nobody() -> None:
    rig = Rig()
    rig.may_end.clear()
    knock = Knock(rig.run, asyncio.get_running_loop())
    knock.knock()
    await rig.settle()
    assert rig.sent == []
    knock.is_enabled = True
    for _ in range(3):
        knock.knock()
        await rig.settle()
    assert rig.prompts() == [[0]]
    rig.failure = ExecutorDead("nobody came")
    rig.may_end.set()
    await rig.settle()
    knock.knock()
    await rig.settle()
    assert rig.prompts() == [[0], [0]]
