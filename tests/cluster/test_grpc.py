"""The gRPC edge of a running fleet: what a client sees, through Ray and both ingresses."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import msgspec
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from infra.settings import environment
from serve_app.proto import cachelane_pb2 as pb
from serve_app.proto import cachelane_pb2_grpc
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet
from tests.cluster.test_failures import REPLACE_TIMEOUT_S
from tests.edge_clients import message_of, plain, refusal_of

TIMEOUT_S = 30.0
CLIENT = Path(__file__).parent.parent.parent / "examples/grpc_client/client.py"


def channel_to(fleet: Fleet) -> Any:
    """A connection of its own: channels of one process share theirs by default."""
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(fleet.run.grpc, options=options)


@pytest.fixture
def channel(fleet: Fleet) -> Iterator[Any]:
    with channel_to(fleet) as channel:
        yield channel


@pytest.fixture
def stub(channel: Any) -> Any:
    return cachelane_pb2_grpc.CachelaneStub(channel)


def test_one_answer_over_both_edges(fleet: Fleet, stub: Any) -> None:
    fields = {"prompt": "the same over gRPC and HTTP " * 6, "max_tokens": 12}
    answer, call = stub.Generate.with_call(
        message_of(fields), timeout=TIMEOUT_S, metadata=[("x-request-id", "mine-8")]
    )
    trailers = dict(call.trailing_metadata())
    assert trailers["x-request-id"] == "mine-8"
    assert trailers["x-cachelane-worker"] in fleet.executors()
    http = fleet.http.post("/v1/completions", json=fields).raise_for_status().json()
    (choice,) = answer.choices
    assert choice.text == http["choices"][0]["text"]
    assert choice.finish_reason == "length"
    assert len(choice.token_ids) == answer.usage.completion_tokens == 12
    # Pinned, because a repetition may meet the other ingress before the log has told it.
    pinned = message_of({**fields, "pin": trailers["x-cachelane-worker"]})
    call = stub.GenerateStream(pinned, timeout=TIMEOUT_S)
    chunks = list(call)
    assert "".join(c.text for chunk in chunks for c in chunk.choices) == choice.text
    assert [chunk.HasField("usage") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    usage = chunks[-1].usage
    assert usage.cached_tokens == usage.prompt_tokens - 1
    again = dict(call.trailing_metadata())
    assert again["x-cachelane-worker"] == trailers["x-cachelane-worker"]
    assert again["x-cachelane-reason"] == "pinned"
    assert again["x-request-id"] == chunks[0].id


def test_health_and_reflection(fleet: Fleet, channel: Any) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "cachelane.v1.Cachelane"):
        found = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        assert found.status == health_pb2.HealthCheckResponse.SERVING
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert set(services) == {
        "cachelane.v1.Cachelane",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_a_bad_request_names_the_field(stub: Any) -> None:
    bad = {"prompt": "Hi", "retention": [{"start": 0, "retention_priority": 101}]}
    with pytest.raises(grpc.RpcError) as caught:
        stub.Generate(message_of(bad), timeout=TIMEOUT_S)
    refusal = refusal_of(caught.value, {})
    assert (refusal.code, refusal.param) == ("INVALID_ARGUMENT", "retention[0].retention_priority")


def test_cancelling_and_deadlines_abort_in_the_engine(fleet: Fleet, stub: Any) -> None:
    cancelled = num_cancelled(fleet)
    call = stub.GenerateStream(message_of({"prompt": "cancelled " * 9, "max_tokens": 6000}))
    next(call)
    call.cancel()
    with pytest.raises(grpc.RpcError) as caught:  # long enough to get there
        stub.Generate(message_of({"prompt": "too late " * 9, "max_tokens": 6000}), timeout=2.0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: assert_cancelled(fleet, cancelled + 2))


def num_cancelled(fleet: Fleet) -> int:
    return sum(view["routing"]["outcomes"].get("cancelled", 0) for view in fleet.views())


def assert_cancelled(fleet: Fleet, total: int) -> None:
    assert num_cancelled(fleet) == total


def test_every_ingress_takes_part_and_listens_on_loopback_only(fleet: Fleet) -> None:
    with contextlib.ExitStack() as stack:
        expected = {view["ingress"]["id"] for view in fleet.views()}
        assert stubs_by_ingress(fleet, stack).keys() == expected
    port = int(fleet.run.grpc.rpartition(":")[2])
    for replica in fleet.replicas("Ingress"):
        listeners = [
            connection.laddr.ip.removeprefix("::ffff:")
            for connection in replica.process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        ]
        assert listeners == ["127.0.0.1"]


def stubs_by_ingress(fleet: Fleet, stack: contextlib.ExitStack) -> dict[str, Any]:
    """A connection to each ingress: the kernel deals them out by a hash, so it takes some."""
    found: dict[str, Any] = {}
    for _ in range(64):
        stub = cachelane_pb2_grpc.CachelaneStub(stack.enter_context(channel_to(fleet)))
        answer = stub.Fleet(pb.FleetRequest(), timeout=TIMEOUT_S)
        found.setdefault(plain(answer.fleet)["ingress"]["id"], stub)
        if len(found) == len(fleet.replicas("Ingress")):
            break
    return found


def test_calls_of_an_ingress_that_dies_end_and_the_next_go_to_another(fleet: Fleet) -> None:
    (victim, survivor) = fleet.replicas("Ingress")
    (victim_id, _) = [view["ingress"]["id"] for view in fleet.views()]
    long = {"prompt": "outlives an ingress " * 5, "max_tokens": 1000}
    with contextlib.ExitStack() as stack:
        by_ingress = stubs_by_ingress(fleet, stack)
        stubs = list(by_ingress.values())
        # That of the victim could not end by itself.
        longs = [{**long, "max_tokens": 5000} if id == victim_id else long for id in by_ingress]
        calls = [
            stub.GenerateStream(message_of(fields), timeout=TIMEOUT_S)
            for stub, fields in zip(stubs, longs, strict=True)
        ]
        for call in calls:
            next(call)
        victim.kill()
        endings = sorted(ending_of(call) for call in calls)
        assert endings == ["OK", "UNAVAILABLE"]
        for stub in stubs:  # also over the channel whose connection broke
            answer = stub.Generate(message_of({"prompt": "on"}), timeout=TIMEOUT_S)
            assert answer.usage.completion_tokens == 16
    eventually(lambda: assert_replaced(fleet, victim.replica, survivor.replica), REPLACE_TIMEOUT_S)


def test_replaced_ingresses_let_their_streams_end_and_refuse_nobody(fleet: Fleet) -> None:
    old, executors = {r.replica for r in fleet.replicas("Ingress")}, fleet.executors().keys()
    long = message_of({"prompt": "outlives a deployment " * 5, "max_tokens": 4000})
    grpc_settings = msgspec.structs.replace(fleet.settings.grpc, max_ongoing_requests=999)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        stubs = stubs_by_ingress(fleet, stack).values()
        calls = [stub.GenerateStream(long, timeout=120) for stub in stubs]
        for call in calls:
            next(call)
        deploying = pool.submit(
            fleet.redeploy, msgspec.structs.replace(fleet.settings, grpc=grpc_settings)
        )
        endings: list[str] = []
        while not deploying.done():
            endings.append(ending_of_one(fleet))
        deploying.result()
        # gRPC itself ends a call that comes in the very moment in which its server stops.
        assert Counter(endings)["OK"] >= len(endings) - len(old), Counter(endings)
        assert [ending_of(call) for call in calls] == ["OK", "OK"]
    eventually(lambda: assert_all_new(fleet, old), REPLACE_TIMEOUT_S)
    assert fleet.executors().keys() == executors


def ending_of_one(fleet: Fleet) -> str:
    """Of a short call over a connection of its own."""
    with channel_to(fleet) as channel:
        call = cachelane_pb2_grpc.CachelaneStub(channel).GenerateStream(
            message_of({"prompt": "meanwhile", "max_tokens": 1}), timeout=TIMEOUT_S
        )
        return ending_of(call)


def assert_all_new(fleet: Fleet, old: set[str]) -> None:
    found = {replica.replica for replica in fleet.replicas("Ingress")}
    assert len(found) == 2
    assert not found & old
    assert all(view["ready"] for view in fleet.views())


def ending_of(call: Any) -> str:
    with contextlib.suppress(grpc.RpcError):
        list(call)
    return str(call.code().name)


def assert_replaced(fleet: Fleet, victim: str, survivor: str) -> None:
    found = {replica.replica for replica in fleet.replicas("Ingress")}
    assert len(found) == 2
    assert survivor in found
    assert victim not in found
    assert all(view["ready"] for view in fleet.views())


def test_the_example_client(fleet: Fleet) -> None:
    done = run_client(fleet, "Which worker holds my prefix?", "--max-tokens", "8")
    assert (done.returncode, done.stderr) == (0, "")
    text, _, summary = done.stdout.rstrip("\n").rpartition("\n")
    assert len(text) == 8
    assert summary.endswith("prompt tokens cached · 8 tokens]")
    refused = run_client(fleet, "Hi", "--max-tokens", "0")
    assert refused.returncode == 1
    assert refused.stderr.startswith("INVALID_ARGUMENT: max_tokens: ")
    assert refused.stderr.endswith("field: max_tokens\n")


def run_client(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLIENT), "--address", fleet.run.grpc, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment(), check=False
    )
