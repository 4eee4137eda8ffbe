"""The producer's queue, accounting and reconnecting, over a scripted connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from controllers.errors import BusError
from infra.event_bus_base import BusHealth, Delivery, Loss
from infra.event_producer import Done, EventProducer, ProducerLimits

WAIT_S = 20.0
LIMITS = ProducerLimits(max_pending=100, min_backoff_s=0.001, max_backoff_s=0.001)


class ScriptedSender:
    """Acknowledges at once unless `is_holding`; fails as told."""

    def __init__(self, is_holding: bool = False, send_error: str = "") -> None:
        self.sent: list[bytes] = []
        self.held: list[Done] = []
        self.is_holding = is_holding
        self.send_error = send_error
        self.has_failed = False
        self.is_closed = False

    def send(self, topic: str, key: bytes, value: bytes, done: Done) -> None:
        if self.send_error:
            raise BusError(self.send_error)
        self.sent.append(value)
        if self.is_holding:
            self.held.append(done)
        else:
            done("", 0, len(self.sent) - 1)

    def is_connected(self) -> bool:
        return not self.is_closed

    def is_usable(self) -> bool:
        return not self.has_failed

    def close(self) -> None:
        self.is_closed = True


class Script:
    """Hands out one connection after another; a string is a refusal. The last one repeats."""

    def __init__(self, *steps: ScriptedSender | str) -> None:
        self._steps = list(steps)
        self.num_calls = 0

    def __call__(self) -> ScriptedSender:
        self.num_calls += 1
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, str):
            raise BusError(step)
        return step


class Outcomes:
    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.losses: list[Loss] = []


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture
def make(outcomes: Outcomes) -> Iterator[Callable[..., EventProducer]]:
    made: list[EventProducer] = []

    def make_one(
        script: Script, limits: ProducerLimits = LIMITS, linger_s: float = 0.0
    ) -> EventProducer:
        on_delivery, on_loss = outcomes.deliveries.append, outcomes.losses.append
        made.append(EventProducer(script, ["t"], limits, on_delivery, on_loss, linger_s))
        return made[-1]

    yield make_one
    for producer in made:
        producer.close(0.0)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_delivers_in_order(make, outcomes):
    sender = ScriptedSender()
    producer = make(Script(sender))
    values = [b"%d" % i for i in range(50)]
    assert all(producer.publish("t", b"k", value) for value in values)
    assert producer.flush(WAIT_S)
    assert sender.sent == values
    assert outcomes.deliveries == [Delivery("t", b"k", 0, i) for i in range(50)]
    assert producer.health() == BusHealth(
        is_connected=True,
        num_connects=1,
        num_pending=0,
        pending_bytes=0,
        num_published=50,
        num_failed=0,
        num_dropped=0,
        last_error="",
    )


def test_records_linger_and_then_go_together(make):
    sender = ScriptedSender()
    producer = make(Script(sender), linger_s=WAIT_S)
    producer.publish("t", b"k", b"1")
    assert not producer.flush(0.1)
    assert sender.sent == []


def test_lingering_records_are_sent_in_order(make):
    sender = ScriptedSender()
    producer = make(Script(sender), linger_s=0.01)
    values = [b"%d" % i for i in range(50)]
    assert all(producer.publish("t", b"k", value) for value in values)
    assert producer.flush(WAIT_S)
    assert sender.sent == values


def test_a_full_window_moves_on_with_every_acknowledgement(make):
    sender = ScriptedSender(is_holding=True)
    producer = make(Script(sender), ProducerLimits(max_in_flight=1))
    values = [b"%d" % i for i in range(20)]
    assert all(producer.publish("t", b"k", value) for value in values)
    for num_sent in range(1, 21):
        until(lambda num_sent=num_sent: len(sender.held) == num_sent)
        sender.held[-1]("", 0, num_sent)
    assert producer.flush(WAIT_S)
    assert sender.sent == values


def test_retries_the_connection(make):
    sender = ScriptedSender()
    script = Script("refused", "refused", sender)
    producer = make(script)
    producer.publish("t", b"k", b"1")
    assert producer.flush(WAIT_S)
    assert script.num_calls == 3
    assert sender.sent == [b"1"]
    health = producer.health()
    assert (health.num_connects, health.last_error) == (1, "refused")


def test_bound_on_records(make):
    producer = make(Script("refused"), ProducerLimits(max_pending=2))
    assert [producer.publish("t", b"k", b"x") for _ in range(3)] == [True, True, False]
    health = producer.health()
    assert (health.num_pending, health.pending_bytes, health.num_dropped) == (2, 4, 1)


def test_bound_on_bytes(make):
    producer = make(Script("refused"), ProducerLimits(max_pending_bytes=10))
    assert producer.publish("t", b"k", b"x" * 8)
    assert not producer.publish("t", b"k", b"x")
    assert producer.publish("t", b"", b"x")
    assert producer.health().pending_bytes == 10


def test_acknowledged_records_free_the_bound(make):
    producer = make(Script(ScriptedSender()), ProducerLimits(max_pending=1))
    for _ in range(5):
        assert producer.publish("t", b"k", b"x")
        assert producer.flush(WAIT_S)
    assert producer.health().num_published == 5


def test_window_limits_what_the_client_holds(make):
    sender = ScriptedSender(is_holding=True)
    limits = ProducerLimits(max_in_flight=2)
    producer = make(Script(sender), limits)
    for i in range(5):
        producer.publish("t", b"k", b"%d" % i)
    until(lambda: len(sender.sent) == 2)
    sender.held.pop(0)("", 0, 0)
    until(lambda: len(sender.sent) == 3)
    assert producer.health().num_pending == 4


def test_unusable_connection_loses_only_what_it_held(make, outcomes):
    broken, sound = ScriptedSender(is_holding=True), ScriptedSender()
    producer = make(Script(broken, sound), ProducerLimits(max_in_flight=2))
    for value in (b"1", b"2", b"3"):
        producer.publish("t", b"k", value)
    until(lambda: len(broken.held) == 2)
    broken.has_failed = True
    broken.held.pop(0)("fatal state", -1, -1)
    assert producer.flush(WAIT_S)
    assert broken.is_closed
    assert outcomes.losses == [
        Loss("t", b"k", b"1", "fatal state"),
        Loss("t", b"k", b"2", "the connection had to be replaced"),
    ]
    assert sound.sent == [b"3"]
    health = producer.health()
    assert (health.num_connects, health.num_published, health.num_failed) == (2, 1, 2)


def test_record_refused_by_a_dead_connection_goes_to_the_next(make, outcomes):
    dead, sound = ScriptedSender(send_error="dead"), ScriptedSender()
    producer = make(Script(dead, sound), LIMITS)
    producer.publish("t", b"k", b"1")
    assert producer.flush(WAIT_S)
    assert dead.is_closed
    assert sound.sent == [b"1"]
    assert outcomes.losses == []
    assert producer.health().num_connects == 2


@pytest.mark.parametrize("step", ["refused", ScriptedSender(send_error="dead")])
def test_records_expire_without_a_connection(make, outcomes, step):
    limits = ProducerLimits(delivery_timeout_s=0.01, min_backoff_s=0.001, max_backoff_s=0.001)
    producer = make(Script(step), limits)
    producer.publish("t", b"k", b"1")
    assert producer.flush(WAIT_S)
    assert outcomes.losses == [Loss("t", b"k", b"1", "not sent within the delivery timeout")]
    health = producer.health()
    assert (health.num_pending, health.pending_bytes, health.num_failed) == (0, 0, 1)


def test_records_the_client_forgets_are_given_up(make, outcomes):
    forgetful, sound = ScriptedSender(is_holding=True), ScriptedSender()
    producer = make(Script(forgetful, sound), ProducerLimits(delivery_timeout_s=0.01))
    producer.publish("t", b"k", b"1")
    assert producer.flush(WAIT_S)
    assert outcomes.losses == [Loss("t", b"k", b"1", "the connection had to be replaced")]
    assert forgetful.is_closed


def test_late_acknowledgement_changes_nothing(make, outcomes):
    broken = ScriptedSender(is_holding=True)
    producer = make(Script(broken, ScriptedSender()))
    producer.publish("t", b"k", b"1")
    until(lambda: broken.held)
    broken.has_failed = True
    assert producer.flush(WAIT_S)
    before = producer.health()
    broken.held[0]("", 0, 0)
    assert producer.health() == before
    assert outcomes.deliveries == []


def test_flush_waits_only_for_what_came_before(make):
    sender = ScriptedSender(is_holding=True)
    producer = make(Script(sender))
    producer.publish("t", b"k", b"1")
    until(lambda: sender.held)
    assert not producer.flush(0.0)
    done: list[bool] = []
    flusher = threading.Thread(target=lambda: done.append(producer.flush(WAIT_S)))
    flusher.start()
    producer.publish("t", b"k", b"2")
    until(lambda: len(sender.held) == 2)
    sender.held.pop(0)("", 0, 0)
    flusher.join(WAIT_S)
    # Whether the second record was accepted before or after the flush began is a race; in both
    # cases the first acknowledgement alone must not settle the second.
    assert producer.health().num_pending == 1
    sender.held.pop(0)("", 0, 1)
    until(lambda: done == [True])


def test_close_loses_the_rest_and_is_idempotent(make, outcomes):
    sender = ScriptedSender(is_holding=True)
    producer = make(Script(sender), ProducerLimits(max_in_flight=1))
    producer.publish("t", b"k", b"1")
    producer.publish("t", b"k", b"2")
    until(lambda: sender.held)
    producer.close(0.0)
    producer.close(0.0)
    assert sender.is_closed
    assert outcomes.losses == [
        Loss("t", b"k", value, "the producer was closed") for value in (b"1", b"2")
    ]
    assert not producer.publish("t", b"k", b"3")
    health = producer.health()
    assert (health.is_connected, health.num_failed, health.num_dropped) == (False, 2, 1)
