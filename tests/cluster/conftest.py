"""One fleet at a time for the tests of this folder; each test finds it idle and leaves it idle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.ports import free_ports
from tests.cluster.fleet import BLOCK_SIZE, Fleet, start_fleet, stop_fleet, wait_idle

NUM_BLOCKS = 256
TEST_TIMEOUT_S = 300  # on a busy machine the start of a fleet alone takes more than a minute
SCRIPTED: dict[str, Any] = {
    "executor": {
        "kind": "scripted",
        "num_replicas": 3,
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": NUM_BLOCKS,  # few enough to overflow
        "max_batch_size": 8,
        "max_waiting_requests": 20,
        # Slow enough that a request can be caught while it runs.
        "scripted": {
            "prefill_ms": 1.0,
            "prefill_ms_per_token": 0.02,
            "decode_ms": 2.0,
            "hang_on": "please hang",
            "slow_on": "please be slow",
            "slow_factor": 20.0,
        },
    },
    # Snapshots come when they are asked for, not by themselves.
    "events": {"load_interval_s": 0.2, "heartbeat_timeout_s": 1.5, "snapshot_interval_s": 3600},
    "http": {"num_ingress": 2},
    "grpc": {"enabled": True},
    "retention": {"request_types": {"hasty": {}, "hurried": {}}},
    "tiers": {
        "rules": {
            "hasty": {"rank": 0, "first_token_timeout_s": 1.0},
            "hurried": {"rank": 3, "max_ttft_ms": 300.0},
        },
        "request_types": {"hasty": "hasty", "hurried": "hurried"},
    },
    "tenants": {
        "default": {},
        "one by one": {"api_keys": ["one-by-one"], "limits": {"max_concurrent": 2}},
        "rare": {"api_keys": ["rare"], "limits": {"max_requests_per_s": 0.02}},
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the shared fleet come first: any other fleet between them would stop it.

    Of those, tests of where requests go: what workers were put through before makes them seem
    slower or faster than each other. Then those that read the log from its beginning, before
    anybody deletes records of it.
    """
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.ray)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
    places = [index for index, item in enumerate(items) if item in ours]
    for index, item in zip(places, sorted(ours, key=_turn), strict=True):
        items[index] = item


def _turn(item: pytest.Item) -> int:
    is_shared = "fleet" in getattr(item, "fixturenames", ())
    if not is_shared or hasattr(getattr(item, "module", None), "fleet"):
        return 3
    return {"test_routing.py": 0, "test_event_log.py": 1}.get(item.path.name, 2)


class OneFleet:
    """Starts the fleet that a test wants; the one before it is stopped first."""

    def __init__(self, folders: pytest.TempPathFactory, kafka_libs: Path) -> None:
        self._folders = folders
        self._kafka_libs = kafka_libs
        self._values: dict[str, Any] = {}
        self._fleet: Fleet | None = None

    def with_settings(self, values: dict[str, Any]) -> Fleet:
        if self._fleet is None or self._values != values:
            self.stop()
            self._fleet = self._start(values)
            self._values = values
        return self._fleet

    def stop(self) -> None:
        if self._fleet is not None:
            stop_fleet(self._fleet)
        self._fleet = None

    def _start(self, values: dict[str, Any]) -> Fleet:
        # Apart from those that the fleet chooses for itself, and from those of Ray's workers.
        http_port, grpc_port = free_ports(2, (5_000, 10_000))
        edges = {
            "http": {**values.get("http", {}), "port": http_port},
            "grpc": {**values.get("grpc", {}), "port": grpc_port},
        }
        return start_fleet(self._folders.mktemp("fleet"), self._kafka_libs, {**values, **edges})


@pytest.fixture(scope="session")
def one_fleet(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneFleet]:
    holder = OneFleet(tmp_path_factory, kafka_libs)
    yield holder
    holder.stop()


@pytest.fixture
def fleet(one_fleet: OneFleet) -> Iterator[Fleet]:
    """Three scripted replicas, two ingresses. After each test every counter must return to zero."""
    running = one_fleet.with_settings(SCRIPTED)
    yield running
    wait_idle(running)
