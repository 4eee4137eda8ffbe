"""Routers that tell each other what they have sent, on both buses, through an outage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from controllers.booking_sums import NO_TOTALS, Totals
from controllers.other_routers import OtherRouters
from infra.event_bus import KafkaBus
from infra.event_bus_base import Bus, Topics
from infra.event_bus_memory import MemoryBus
from infra.settings import to_settings
from serve_app.sharing import Sharing
from tests.bookings import booking
from tests.kafka_fixtures import TestBroker, fresh_settings, wait_until

ONE_REQUEST = Totals(10, 1, 2, 1)


class Switch(Protocol):
    """What takes a bus down and brings it up again."""

    def take_down(self) -> object: ...

    def bring_up(self) -> object: ...


class Router:
    def __init__(self, bus: Bus, topics: Topics, name: str) -> None:
        self.others = OtherRouters(name)
        self.sharing = Sharing(
            bus=bus,
            topics=topics,
            router=name,
            on_batch=self.others.apply,
            on_turn=self.others.sweep,
        )
        self.sharing.configure(to_settings({"http": {"num_ingress": 2}}))

    def sent(self, request_id: str) -> None:
        self.sharing.sent(booking(request_id))

    def hears(self, totals: Totals) -> Callable[[], bool]:
        return lambda: self.others.totals("a-0") == totals

    def knows(self, names: list[str]) -> Callable[[], bool]:
        return lambda: self.others.alive(time.monotonic()) == names


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def switched_bus(request: pytest.FixtureRequest) -> tuple[Bus, Topics, Switch]:
    if request.param == "memory":
        bus = MemoryBus()
        return bus, bus.topics, bus
    broker: TestBroker = request.getfixturevalue("kafka_broker")
    settings = fresh_settings(broker.bootstrap)
    return KafkaBus(settings), Topics(settings.topic_prefix), broker


@pytest.fixture
def routers(switched_bus: tuple[Bus, Topics, Switch]) -> Iterator[list[Router]]:
    bus, topics, _ = switched_bus
    found = [Router(bus, topics, name) for name in ("r1", "r2", "r3")]
    yield found
    for router in found:
        router.sharing.close()


def test_what_one_sends_the_others_know(
    switched_bus: tuple[Bus, Topics, Switch], routers: list[Router]
) -> None:
    one, *rest = routers
    for router in routers:
        wait_until(router.knows(["r1", "r2", "r3"]))
    one.sent("before")
    for router in rest:
        wait_until(router.hears(ONE_REQUEST))
    assert one.others.totals("a-0") == NO_TOTALS
    switched_bus[2].take_down()
    one.sharing.done("before")
    one.sent("during")
    rest[0].sharing.check_health()
    switched_bus[2].bring_up()
    one.sent("after")
    for router in rest:
        wait_until(router.hears(Totals(20, 2, 4, 2)))
    one.sharing.close()
    for router in rest:
        wait_until(router.hears(NO_TOTALS))
        assert router.others.num_missing() == 0
