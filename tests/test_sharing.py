"""When routers tell each other what they have sent."""

from __future__ import annotations

import time
from typing import Any

from controllers.booking_sums import NO_TOTALS, Totals
from controllers.other_routers import OtherRouters
from infra.event_bus_memory import MemoryBus
from infra.settings import Settings, to_settings
from serve_app.sharing import Sharing
from tests.bookings import booking
from tests.kafka_fixtures import wait_until


def settings(num_ingress: int, **http: Any) -> Settings:
    return to_settings({"http": {"num_ingress": num_ingress, **http}})


class Router:
    def __init__(self, bus: MemoryBus, name: str) -> None:
        self.others = OtherRouters(name)
        self.sharing = Sharing(
            bus=bus,
            topics=bus.topics,
            router=name,
            on_batch=self.others.apply,
            on_turn=self.others.sweep,
        )

    def sent(self, request_id: str) -> None:
        self.sharing.sent(booking(request_id))


def num_written(bus: MemoryBus) -> int:
    return len(bus.reader(bus.topics.bookings).poll(0.0))


def test_nothing_happens_while_alone() -> None:
    bus = MemoryBus()
    router = Router(bus, "r1")
    router.sharing.configure(settings(1))
    router.sent("q")
    router.sharing.first_token("q")
    router.sharing.done("q")
    router.sharing.check_health()
    router.sharing.close()
    assert router.sharing.counters() is None
    assert num_written(bus) == 0


def test_two_know_of_each_other_until_one_is_left() -> None:
    bus = MemoryBus()
    one, two = Router(bus, "r1"), Router(bus, "r2")
    try:
        for router in (one, two):
            router.sharing.configure(settings(2))
            router.sharing.configure(settings(2))
            router.sharing.check_health()
        wait_until(lambda: "r1" in two.others.alive(time.monotonic()))
        one.sent("q")
        wait_until(lambda: two.others.totals("a-0") == Totals(10, 1, 2, 1))
        one.sharing.first_token("q")
        wait_until(lambda: two.others.totals("a-0") == Totals(0, 1, 2, 0))
        assert one.others.totals("a-0") == NO_TOTALS
        one.sharing.close()
        wait_until(lambda: two.others.totals("a-0") == NO_TOTALS)
        two.sharing.configure(settings(1))
        assert two.others.alive(0.0) == ["r2"]
        assert two.sharing.counters() is None
        two.sharing.check_health()
    finally:
        one.sharing.close()
        two.sharing.close()


def test_a_request_sent_while_alone_is_not_told_of() -> None:
    bus = MemoryBus()
    router, reader = Router(bus, "r1"), Router(bus, "r2")
    router.sent("before")
    router.sharing.configure(settings(2))
    reader.sharing.configure(settings(2))
    try:
        router.sharing.done("before")
        router.sent("after")
        wait_until(lambda: reader.others.totals("a-0") == Totals(10, 1, 2, 1))
        assert reader.others.num_missing() == 0
    finally:
        router.sharing.close()
        reader.sharing.close()
