"""The fleet of one executor: predictions, books, closing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from controllers.blocks import block_hashes
from controllers.errors import ExecutorDead, PromptTooLong
from controllers.events import Cleared, Event, Removed, hexes_of
from serve_app.executors.base import GenerateRequest, SamplingParams
from serve_app.fleet import Ask, Route
from serve_app.local_fleet import WORKER, LocalFleet
from tests.edge_fixtures import BLOCK_SIZE, PlannedExecutor


def ask(num_tokens: int, max_tokens: int = 2, request_id: str = "r") -> Ask:
    tokens = np.arange(num_tokens, dtype=np.uint32)
    return Ask(
        request=GenerateRequest(
            request_id=request_id,
            token_ids=tokens.tobytes(),
            sampling=SamplingParams(max_tokens=max_tokens),
        ),
        hashes=block_hashes(tokens, BLOCK_SIZE),
        num_tokens=num_tokens,
        request_type="interactive",
        tier="interactive",
        tenant="default",
    )


async def run(fleet: LocalFleet, given: Ask) -> Route:
    route = Route()
    assert [chunk async for chunk in fleet.generate(given, route)]
    return route


async def test_the_second_time_the_prefix_is_predicted() -> None:
    fleet = LocalFleet(PlannedExecutor())
    first, second, longer = [await run(fleet, ask(n)) for n in (20, 20, 40)]
    assert (first.worker, first.reason, first.predicted_cached_tokens) == (WORKER, "cold", 0)
    assert (second.reason, second.predicted_cached_tokens) == ("overlap", 16)
    assert (longer.predicted_cached_tokens, longer.best_cached_tokens) == (16, 16)
    assert (longer.num_attempts, longer.num_candidates) == (1, 1)


class Forgetful(PlannedExecutor):
    """Says, once, what `say` holds."""

    say: tuple[Event, ...] = ()

    def drain_events(self, timeout_s: float) -> list[Event]:
        said, self.say = self.say, ()
        return [*super().drain_events(timeout_s), *said]


async def test_removed_and_cleared_blocks_are_not_predicted() -> None:
    executor = Forgetful()
    fleet = LocalFleet(executor)
    given = ask(24)
    await run(fleet, given)
    executor.say = (Removed(hashes=hexes_of(given.hashes[1:2])),)
    assert fleet.explain(given)["predicted_cached_tokens"] == 8
    executor.say = (Cleared(),)
    assert fleet.explain(given) == {
        "worker": WORKER,
        "reason": "cold",
        "predicted_cached_tokens": 0,
        "num_prompt_tokens": 24,
        "num_blocks": 3,
    }


async def test_explaining_runs_nothing() -> None:
    executor = PlannedExecutor()
    fleet = LocalFleet(executor)
    fleet.explain(ask(20))
    assert executor.requests == []
    assert fleet.describe()["num_requests"] == 0


async def test_closing_the_iterator_aborts() -> None:
    executor = PlannedExecutor(hold_after=1)
    fleet = LocalFleet(executor)
    chunks: Any = fleet.generate(ask(20, max_tokens=5), Route())
    await anext(chunks)
    assert (executor.num_running, fleet.describe()["num_running"]) == (1, 1)
    await chunks.aclose()
    assert (executor.num_running, fleet.describe()["num_running"]) == (0, 0)


async def test_errors_of_the_executor_pass_and_nothing_is_left() -> None:
    executor = PlannedExecutor(fail_after=0, error=PromptTooLong("prompt", "no"))
    fleet = LocalFleet(executor)
    with pytest.raises(PromptTooLong):
        await run(fleet, ask(20))
    assert fleet.describe()["num_running"] == 0


class Dead(PlannedExecutor):
    def check_health(self) -> None:
        raise ExecutorDead("gone")


def test_readiness() -> None:
    assert LocalFleet(PlannedExecutor()).readiness() is None
    assert LocalFleet(Dead()).readiness() == "gone"


def test_info_is_the_executors() -> None:
    executor = PlannedExecutor()
    assert LocalFleet(executor).info() == executor.info
