"""For all tests: a clean environment, marks by fixture, the session's broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kafka_fixtures import kafka_broker, kafka_libs, kafka_session
from tests.trtllm_double import trtllm_double

__all__ = ["kafka_broker", "kafka_libs", "kafka_session", "trtllm_double"]

BROKER_FIXTURES = {"kafka_broker", "kafka_libs", "kafka_session"}
CONTROLLERS = Path(__file__).parent.parent / "controllers"
PURE_FILES = {f"test_{path.stem}" for path in CONTROLLERS.glob("*.py")} | {
    "test_routing_table_model"
}
FOREIGN_PREFIXES = ("CACHELANE_", "RAY_", "TLLM_", "TRTLLM_DOUBLE")


def pytest_configure() -> None:
    """A developer's own settings and cluster must not reach the tests or their child processes."""
    for name in [name for name in os.environ if name.startswith(FOREIGN_PREFIXES)]:
        del os.environ[name]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing all other files takes longer than the pure tests themselves."""
    is_test = collection_path.name.startswith("test_")
    return True if is_test and _is_pure(config) and collection_path.stem not in PURE_FILES else None


def _is_pure(config: pytest.Config) -> bool:
    return bool(config.getoption("markexpr") == "pure")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in PURE_FILES:
            item.add_marker(pytest.mark.pure)
        if BROKER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kafka)
