"""What it costs several routers to know each other's bookings, and how old they are when known.

    python -m bench.bookings [--routers 4] [--rate 100] [--linger 0.01] [--json OUT.json]

Every router is a process with the product's own booking log and feed, on a Kafka of its own, and
books, starts and ends `rate` requests a second. Ages are by this machine's clock, from the call
that books to the moment at which another process has applied it. CPU time is that of a router's
process, less what the same process takes for making up the requests.
"""

from __future__ import annotations

import heapq
import random
import time
from multiprocessing.connection import Connection
from typing import Any, Protocol

from bench.arguments import positive_int, positive_number
from bench.processes import cpu_per_request, found_together, of_ages, of_cpu, parser_of, show
from controllers.booking_sums import SENT
from controllers.other_routers import OtherRouters
from controllers.records import Booking, BookingBatch
from infra.bookings_feed import BookingsFeed
from infra.event_bus import KafkaBus
from infra.event_bus_base import Topics
from infra.settings_sections import KafkaSettings
from serve_app.booking_log import BookingLog

NUM_WORKERS = 8
TTFT_S = 0.1
TOTAL_S = 1.0
WARM_UP_S = 3.0


class Told(Protocol):
    """A booking log, or what stands for none."""

    def sent(self, booking: Booking) -> None: ...

    def first_token(self, request_id: str) -> None: ...

    def done(self, request_id: str) -> None: ...


class Nobody:
    """Is told everything and does nothing."""

    def sent(self, booking: Booking) -> None:
        return

    def first_token(self, request_id: str) -> None:
        return

    def done(self, request_id: str) -> None:
        return


class Traffic:
    """Requests at random times. An id begins with the time at which the request was booked."""

    def __init__(self, rate: float, seed: int) -> None:
        self._rate = rate
        self._random = random.Random(seed)
        self._due: list[tuple[float, int, str]] = []
        self._number = 0
        self._next_s = time.perf_counter()

    def run(self, told: Told, seconds: float) -> int:
        """Returns the number of requests booked."""
        first, end_s = self._number, time.perf_counter() + seconds
        while (now := time.perf_counter()) < end_s:
            next_s = min(self._next_s, self._due[0][0] if self._due else self._next_s)
            if next_s > now:
                time.sleep(min(next_s, end_s) - now)
            self._run_due(told)
        return self._number - first

    def _run_due(self, told: Told) -> None:
        now = time.perf_counter()
        while self._due and self._due[0][0] <= now:
            _, is_end, request_id = heapq.heappop(self._due)
            if is_end:
                told.done(request_id)
            else:
                told.first_token(request_id)
        while self._next_s <= now:
            self._next_s += self._random.expovariate(self._rate)
            self._book(told, now)

    def _book(self, told: Told, now: float) -> None:
        self._number += 1
        request_id = f"{time.time_ns():x}-{self._number:018d}"  # as long as real ones
        heapq.heappush(self._due, (now + TTFT_S, 0, request_id))
        heapq.heappush(self._due, (now + TOTAL_S, 1, request_id))
        told.sent(
            Booking(
                request_id=request_id,
                worker=f"x8k2ab{self._number % NUM_WORKERS}c-0",
                state=SENT,
                prefill_tokens=1000,
                num_blocks=40,
                rank=1,
                service_ms=50.0,
            )
        )


class TimedRouters(OtherRouters):
    """Notes the age of every booking when it has been applied."""

    def __init__(self, own_id: str) -> None:
        super().__init__(own_id)
        self.ages_ms: list[float] = []

    def apply(self, batch: BookingBatch, now: float) -> dict[str, float]:
        changes = super().apply(batch, now)
        if not batch.num_parts:
            clock = time.time_ns()
            self.ages_ms += [
                (clock - int(booking.request_id[:16], 16)) / 1e6
                for booking in batch.bookings
                if booking.state == SENT
            ]
        return changes


def router(
    end: Connection, number: int, kafka: KafkaSettings, rate: float, linger_s: float
) -> None:
    """One router's process: traffic that nobody is told of, then the same with log and feed."""
    seconds = end.recv()
    name, traffic = f"r{number}", Traffic(rate, seed=number)
    alone = cpu_per_request(lambda: traffic.run(Nobody(), seconds))
    bus, topics, others = KafkaBus(kafka), Topics(kafka.topic_prefix), TimedRouters(name)
    log = BookingLog(
        bus=bus,
        topics=topics,
        router=name,
        linger_s=linger_s,
        max_age_s=900.0,
        max_record_bytes=kafka.max_record_bytes,
    )
    feed = BookingsFeed(
        bus=bus,
        topics=topics,
        own_id=name,
        pause_s=linger_s / 2,
        on_batch=others.apply,
        on_turn=others.sweep,
    )
    log.start()
    feed.start()
    traffic.run(log, WARM_UP_S)
    others.ages_ms = []
    told = cpu_per_request(lambda: traffic.run(log, seconds))
    end.send((alone, told, others.ages_ms, others.num_gaps, feed.counters.num_records))
    end.recv()
    feed.close()
    log.close()


def measure(num_routers: int, rate: float, linger_s: float, seconds: float) -> dict[str, Any]:
    """Everything of this module, on a broker of its own."""
    found = found_together(router, num_routers, seconds, (rate, linger_s))
    alone, told, ages, gaps, records = zip(*found, strict=True)
    return {
        "routers": num_routers,
        "rate": rate,
        "linger_s": linger_s,
        "bookings_heard": sum(len(of_router) for of_router in ages),
        **of_ages("age", ages),
        "gaps": sum(gaps),
        "records_heard_per_s": round(sum(records) / num_routers / (seconds + WARM_UP_S)),
        **of_cpu(alone, told, "request"),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--routers", type=positive_int, default=4)
    parser.add_argument(
        "--rate", type=positive_number, default=100.0, help="requests/s of one router"
    )
    parser.add_argument("--linger", type=float, default=0.01)
    args = parser.parse_args()
    show("bookings", measure(args.routers, args.rate, args.linger, args.seconds), args.json)


if __name__ == "__main__":
    main()
