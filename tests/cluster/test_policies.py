"""Policies change while the fleet runs; no process is replaced for it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from controllers.retention_policy import SpanRule, TypeRule
from infra.settings import Settings
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet

COMPLETIONS = "/v1/completions"
VIP = {"prompt": "a very important question " * 4, "max_tokens": 1, "request_type": "vip"}


@pytest.fixture
def settings(fleet: Fleet) -> Iterator[Settings]:
    """Those the fleet runs with, and again after the test."""
    before = fleet.settings
    yield before
    fleet.redeploy(before)


def changed(settings: Settings) -> Settings:
    """Another routing policy, and a request type more."""
    vip = TypeRule(system=SpanRule(100), history=SpanRule(90), current=SpanRule(90))
    retention = msgspec.structs.replace(
        settings.retention, request_types={**settings.retention.request_types, "vip": vip}
    )
    routing = msgspec.structs.replace(settings.routing, policy="round_robin")
    return msgspec.structs.replace(settings, retention=retention, routing=routing)


def test_changed_policies_reach_every_ingress_without_a_restart(
    fleet: Fleet, settings: Settings
) -> None:
    pids = pids_of(fleet)
    answers = [client.post(COMPLETIONS, json=VIP) for client in fleet.ingress_clients()]
    assert [answer.status_code for answer in answers] == [400, 400]
    fleet.redeploy(changed(settings))
    eventually(lambda: assert_vips_go_round(fleet))
    assert pids_of(fleet) == pids


def pids_of(fleet: Fleet) -> dict[str, int]:
    replicas = [*fleet.replicas("Executor"), *fleet.replicas("Ingress")]
    return {replica.replica: replica.process.pid for replica in replicas}


def assert_vips_go_round(fleet: Fleet) -> None:
    for client in fleet.ingress_clients():
        answers = [client.post(COMPLETIONS, json=VIP) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert {answer.headers["x-cachelane-reason"] for answer in answers} == {"policy"}
        assert {a.headers["x-cachelane-worker"] for a in answers} == fleet.executors().keys()
