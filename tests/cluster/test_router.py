"""The Serve router on Serve's own fake replicas; no cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve._private.test_utils import FakeRunningReplica
from ray.serve.request_router import PendingRequest

from controllers.errors import NotReady
from serve_app import router as router_module
from serve_app import routing
from serve_app.fleet import Route
from serve_app.router import KvAwareRouter
from serve_app.wire import decode_call
from tests.routing_rig import Rig, ask, metadata

pytestmark = pytest.mark.ray  # not a cluster, but seconds of imports

TOKENS = list(range(100, 120))


class Replica(FakeRunningReplica):  # type: ignore[misc]
    """With the metadata that ours gives."""

    @property
    def replica_metadata(self) -> dict[str, Any]:
        return metadata(self.replica_id.unique_id)


class Fleet:
    """A router over fake replicas, sharing a rig's routing state."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = Rig()
        monkeypatch.setattr(routing, "_current", [self.rig.routing])
        self.router = KvAwareRouter(DeploymentID("Executor", "app"), DeploymentHandleSource.REPLICA)
        self.router.initialize_state()

    def set_replicas(self, *names: str) -> None:
        self.router.update_replicas([Replica(name) for name in names])

    def pending(self, request_id: str, tokens: list[int]) -> PendingRequest:
        self.rig.routing.begin(ask(request_id, tokens), Route())
        kwargs: dict[str, Any] = {"request_id": request_id, "call": b""}
        return PendingRequest([], kwargs, RequestMetadata(request_id, request_id))

    async def choose(self, pending: PendingRequest, is_retry: bool = False) -> str:
        replica = await self.router._choose_replica_for_request(pending, is_retry=is_retry)
        return str(replica.replica_id.unique_id)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(monkeypatch)


async def test_it_sends_to_the_placed_worker_and_fills_in_the_call(fleet: Fleet) -> None:
    fleet.set_replicas("a", "b")
    fleet.rig.up("a-0", "b-0")
    fleet.rig.store("b-0", TOKENS)
    pending = fleet.pending("q", [*TOKENS, 1])
    assert await fleet.choose(pending) == "b"
    call = decode_call(pending.kwargs["call"])
    assert (call.request.request_id, call.uncached_tokens) == ("q", 1)


async def test_a_refused_request_goes_elsewhere_and_round_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "REJECTED_PAUSE_S", 0.0)
    fleet.set_replicas("a", "b")
    fleet.rig.up("a-0", "b-0")
    fleet.rig.store("b-0", TOKENS)
    pending = fleet.pending("q", TOKENS)
    picks = [await fleet.choose(pending)]
    for _ in range(3):
        picks.append(await fleet.choose(pending, is_retry=True))
    assert picks[:2] == ["b", "a"]
    assert set(picks[2:]) == {"a", "b"}  # both are expected to hold the prompt now


async def test_a_later_attempt_forgets_who_was_full(fleet: Fleet) -> None:
    fleet.set_replicas("a", "b")
    fleet.rig.up("a-0", "b-0")
    fleet.rig.store("b-0", TOKENS)
    pending = fleet.pending("q", TOKENS)
    assert [await fleet.choose(pending, is_retry) for is_retry in (False, True)] == ["b", "a"]
    assert fleet.rig.routing.attempts.refused("q") == {"b"}
    await fleet.choose(pending)
    assert fleet.rig.routing.attempts.refused("q") == set()


async def test_nothing_is_kept_of_a_refused_request_whose_client_left(fleet: Fleet) -> None:
    fleet.set_replicas("a", "b")
    fleet.rig.up("a-0", "b-0")
    pending = fleet.pending("q", TOKENS)
    for is_retry in (False, True):
        await fleet.choose(pending, is_retry)
    fleet.rig.routing.finish(fleet.rig.routing._in_flight["q"], "cancelled")
    kept = [value for value in vars(fleet.router).values() if isinstance(value, dict)]
    assert not any("q" in value for value in kept)
    with pytest.raises(KeyError):
        await fleet.choose(pending, is_retry=True)


async def test_it_waits_for_a_first_replica(fleet: Fleet) -> None:
    task = asyncio.ensure_future(fleet.choose(fleet.pending("q", TOKENS)))
    await asyncio.sleep(0)
    assert not task.done()
    fleet.set_replicas("a")
    assert await task == "a"


async def test_it_gives_up_when_no_replica_comes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "MAX_WAIT_FOR_REPLICA_S", 0.0)
    with pytest.raises(NotReady, match="no worker is up"):
        await fleet.choose(fleet.pending("q", TOKENS))


async def test_a_dead_replica_is_no_candidate_any_more(fleet: Fleet) -> None:
    fleet.set_replicas("a", "b")
    fleet.rig.up("a-0", "b-0")
    fleet.rig.store("b-0", TOKENS)
    dead = fleet.router._by_uid["b"].replica_id
    fleet.router.on_replica_actor_died(dead)
    assert await fleet.choose(fleet.pending("q", TOKENS)) == "a"
    assert [w["worker"] for w in fleet.rig.routing.describe()["workers"]] == ["a-0"]
