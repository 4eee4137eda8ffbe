"""What came of each request: counted for GET /fleet, and a record in the log. Decides nothing."""

from __future__ import annotations

import logging

from controllers.errors import BusError, Overloaded
from controllers.record_codec import encode
from infra.event_bus_base import Bus
from serve_app.fleet import Ask
from serve_app.outcome import Outcome
from serve_app.routing_counters import RoutingCounters

logger = logging.getLogger(__name__)

# Nobody waits for decision records: sent together they cost a fraction.
LINGER_S = 0.05


class DecisionLog:
    """Writes to `topic`."""

    def __init__(self, bus: Bus, topic: str) -> None:
        self.counters = RoutingCounters()
        self._topic = topic
        self._producer = bus.producer(linger_s=LINGER_S)

    @property
    def num_lost(self) -> int:
        """Records that the log did not take."""
        health = self._producer.health()
        return health.num_failed + health.num_dropped

    def close(self) -> None:
        self._producer.close(1.0)

    def not_let_in(self, ask: Ask, why: Overloaded) -> None:
        """There is no record of it: nothing was decided."""
        self.counters.count_refusal(ask, why)

    def ended(self, outcome: Outcome, model: str) -> None:
        self.counters.count(outcome)
        request_id = outcome.ask.request.request_id
        try:
            self._producer.publish(self._topic, request_id.encode(), encode(outcome.record(model)))
        except BusError as error:
            logger.warning("decision record of %s: %s", request_id, error)
