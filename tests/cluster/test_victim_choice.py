"""Our choice of replicas to stop in the scheduler of the installed Serve; no cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.serve._private import deployment_scheduler
from ray.serve._private.common import DeploymentID, ReplicaID

from serve_app import victim_choice
from serve_app.autoscaling import ScalingPolicy, newest_figures, tick_of

ID = DeploymentID("Executor", "app")
SCHEDULER = deployment_scheduler.DeploymentScheduler


@pytest.fixture(autouse=True)
def _unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's own method comes back after each test."""
    monkeypatch.setattr(SCHEDULER, victim_choice.METHOD, _original())


def _original() -> Callable[..., Any]:
    method = getattr(SCHEDULER, victim_choice.METHOD)
    assert not hasattr(method, victim_choice.MARK)
    return method  # type: ignore[no-any-return]


def scheduler(*running: str, pending: tuple[str, ...] = ()) -> Any:
    found = object.__new__(SCHEDULER)
    found._running_replicas = {ID: {ReplicaID(name, ID): "node" for name in running}}
    found._pending_replicas = {ID: {ReplicaID(name, ID): None for name in pending}}
    found._launching_replicas, found._recovering_replicas = {ID: {}}, {ID: set()}
    found._deployments = {ID: SimpleNamespace(label_selector={}, bundle_label_selector=None)}
    found._head_node_id = "head"
    found._cluster_node_info_cache = SimpleNamespace(get_node_labels=lambda node: {})
    return found


def stopped(found: Any, num: int) -> set[str]:
    chosen = found._get_replicas_to_stop(
        ID, num, gang_id_by_replica=None, replicas_by_gang_id=None, gang_size=None
    )
    return {replica.unique_id for replica in chosen}


def test_the_installed_version_is_known() -> None:
    assert victim_choice.is_known(ray.__version__, _original())
    assert not victim_choice.is_known("2.61.0", _original())
    assert not victim_choice.is_known(ray.__version__, lambda self, deployment_id: None)


def test_the_named_replica_goes_instead_of_the_newest() -> None:
    asked: list[tuple[str, list[str], int]] = []

    def choose(deployment: str, running: Collection[str], num: int) -> list[str]:
        asked.append((deployment, list(running), num))
        return ["oldest"]

    assert stopped(scheduler("oldest", "newest"), 1) == {"newest"}
    assert victim_choice.install(choose)
    assert stopped(scheduler("oldest", "newest"), 1) == {"oldest"}
    assert asked == [(str(ID), ["oldest", "newest"], 1)]


@pytest.mark.parametrize("failure", ["none", "unknown", "raises"])
def test_without_a_usable_answer_serve_chooses(failure: str) -> None:
    def choose(deployment: str, running: Collection[str], num: int) -> list[str] | None:
        if failure == "raises":
            raise RuntimeError("told to")
        return None if failure == "none" else ["never heard of"]

    assert victim_choice.install(choose)
    assert stopped(scheduler("oldest", "newest"), 1) == {"newest"}


def test_a_replica_that_does_not_run_yet_goes_first() -> None:
    assert victim_choice.install(lambda deployment, running, num: ["oldest"])
    assert stopped(scheduler("oldest", "newest", pending=("starting",)), 1) == {"starting"}


def test_it_is_put_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert victim_choice.install(lambda deployment, running, num: None)
    first = getattr(SCHEDULER, victim_choice.METHOD)
    assert victim_choice.install(lambda deployment, running, num: None)
    assert getattr(SCHEDULER, victim_choice.METHOD) is first


def test_another_version_is_left_alone_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(victim_choice, "KNOWN_VERSION", "1.0.0")
    before = _original()
    assert not victim_choice.install(lambda deployment, running, num: ["oldest"])
    assert getattr(SCHEDULER, victim_choice.METHOD) is before
    assert "coldest_first has no effect" in caplog.text


def point(value: float, timestamp: float) -> SimpleNamespace:
    return SimpleNamespace(value=value, timestamp=timestamp)


def test_only_the_newest_report_of_a_replica_counts() -> None:
    a, b = ReplicaID("a", ID), ReplicaID("b", ID)
    found = newest_figures(
        {
            "used": {a: [point(1, 10.0), point(2, 11.0)], b: [point(3, 5.0)]},
            "gone": {a: [point(9, 10.0)], b: []},
        }
    )
    assert found == {"a": ({"used": 2}, 11.0), "b": ({"used": 3}, 5.0)}


def test_serves_context_in_our_words() -> None:
    context = SimpleNamespace(
        deployment_name="Executor",
        target_num_replicas=2,
        running_replicas=[ReplicaID("a", ID)],
        raw_metrics=None,
        total_queued_requests=None,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
    )
    tick = tick_of(context)
    assert (tick.deployment, tick.target, tick.running) == ("Executor", 2, ["a"])
    assert (tick.figures(), tick.num_in_routers()) == ({}, 0.0)
    assert (tick.min_replicas, tick.max_replicas) == (1, 4)


def test_a_policy_that_fails_holds_still_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error would stop Serve's loop over all deployments."""
    policy = ScalingPolicy({"bootstrap_servers": "no port"})
    context = SimpleNamespace(deployment_id=ID, deployment_name="Executor", target_num_replicas=3)
    assert [policy(context) for _ in range(3)] == [(3, {})] * 3
    assert caplog.text.count("autoscaling of Executor holds still") == 1
