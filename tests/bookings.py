"""A booking, for tests of routers that tell each other what they send."""

from __future__ import annotations

from controllers.booking_sums import SENT
from controllers.records import Booking


def booking(request_id: str) -> Booking:
    """Of a request that was sent to worker a-0."""
    return Booking(
        request_id=request_id,
        worker="a-0",
        state=SENT,
        prefill_tokens=10,
        num_blocks=2,
        service_ms=5.0,
    )
