"""Whom the fleet's processes give way to."""

from __future__ import annotations

import psutil

from tests.cluster.fleet import Fleet


def test_replicas_give_way_to_nobody(fleet: Fleet) -> None:
    head = psutil.Process(fleet.run.sessions["ray"].pid)
    replicas = [*fleet.replicas("Executor"), *fleet.replicas("Ingress")]
    assert {replica.process.nice() for replica in replicas} == {head.nice()}
