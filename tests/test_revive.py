"""Starting a dead embedded broker again: only ours, and nothing is touched otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.broker_ports import choose_ports
from infra.local_broker import BrokerPaths
from infra.process_session import ProcessId
from infra.revive import revive_broker
from infra.run_state import RunState, StateDir
from tests.kafka_fixtures import TestBroker

GONE = ProcessId(2**22 + 1, 0.0)


def run_with(bootstrap_servers: str) -> RunState:
    return RunState(starter=GONE, url="", is_ready=True, bootstrap_servers=bootstrap_servers)


def test_a_broker_of_the_users_is_left_alone(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path)
    assert not revive_broker(state, run_with("127.0.0.1:9092"))
    assert list(tmp_path.iterdir()) == []
    paths = BrokerPaths(state.path)
    paths.home.mkdir()
    choose_ports(paths.ports)
    assert not revive_broker(state, run_with("kafka.example:9092"))
    assert list(paths.home.iterdir()) == [paths.ports]


@pytest.mark.kafka
def test_a_broker_that_was_killed_comes_back_where_it_was(tmp_path: Path, kafka_libs: Path) -> None:
    broker = TestBroker(tmp_path, kafka_libs)
    first = broker.bring_up()
    # As after a start by `cachelane up`, which keeps the jars in the state folder.
    BrokerPaths(tmp_path).libs.symlink_to(kafka_libs)
    state, run = StateDir.at(tmp_path), run_with(first.bootstrap)
    try:
        assert not revive_broker(state, run)
        first.kill()
        assert revive_broker(state, run)
        assert broker.bring_up().bootstrap == first.bootstrap
    finally:
        broker.take_down()
