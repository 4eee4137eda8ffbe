"""What it costs ingresses to tell each other of the prompts they serve, over Kafka.

    python -m bench.use_exchange [--ingresses 2] [--rate 50] [--blocks 551] [--json OUT.json]

Every ingress is a process with the product's own exchange and learned retention, on a Kafka of its
own, and sends `rate` requests a second with prompts of so many blocks of 32 tokens: half of them
another turn of an earlier one. Delays are by this machine's clock, from publishing to the moment at
which another process has learned of it. CPU time is that of an ingress's process, less what the
same process takes for its own requests when nobody is told.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

from bench.arguments import positive_int, positive_number
from bench.processes import cpu_per_request, found_together, of_ages, of_cpu, parser_of, show
from controllers.prompt_use import PromptUse
from controllers.records import PrefixUse
from controllers.router_retention import RouterRetention
from infra.event_bus import KafkaBus
from infra.event_bus_base import Topics
from infra.settings_sections import KafkaSettings
from serve_app.use_exchange import UseExchange

BLOCK_SIZE = 32
NUM_WORKERS = 8
WORKER_BLOCKS = 65_536
WARM_UP_S = 3.0


class Ingress:
    """Requests that begin and end at once, and what is heard of the others'."""

    def __init__(self, number: int, num_blocks: int) -> None:
        self.delays_ms: list[float] = []
        self._own = RouterRetention(f"i{number}", BLOCK_SIZE)
        self._own.set_workers({f"w{n}": WORKER_BLOCKS for n in range(NUM_WORKERS)})
        self._first_hash = (number + 1) << 40
        self._num_blocks = num_blocks
        self._num_requests = 0

    def heard(self, record: PrefixUse, at: float) -> None:
        self._own.heard(record, at)
        self.delays_ms.append(time.time() * 1e3 - record.ts_ms)

    def run(self, exchange: UseExchange | None, rate: float, seconds: float) -> int:
        """Returns the number of requests."""
        first = self._num_requests
        next_s, end_s = time.monotonic(), time.monotonic() + seconds
        while next_s < end_s:
            time.sleep(max(0.0, next_s - time.monotonic()))
            self._request(exchange)
            next_s += 1.0 / rate
        return self._num_requests - first

    def _request(self, exchange: UseExchange | None) -> None:
        number = self._num_requests
        self._num_requests += 1
        start = self._first_hash + number // 2 * 10_000
        hashes = range(start, start + self._num_blocks + number % 2 * 16)
        prompt = PromptUse(hashes, len(hashes) * BLOCK_SIZE, BLOCK_SIZE, "agent")
        name, worker, now = f"{start}-{number}", f"w{number % NUM_WORKERS}", time.monotonic()
        ts_ms = None if exchange is None else time.time_ns() // 1_000_000
        planned = self._own.retention(name, prompt, worker, now, ts_ms)
        done = self._own.finished(name, 0, now, ts_ms)
        for record in (planned.record, done):
            if exchange is not None and record is not None:
                exchange.publish(record)


def ingress(
    end: Connection, number: int, kafka: KafkaSettings, rate: float, num_blocks: int
) -> None:
    """One process: requests that nobody is told of, then the same with the exchange."""
    seconds = end.recv()
    alone = cpu_per_request(lambda: Ingress(number, num_blocks).run(None, rate, seconds))
    one = Ingress(number, num_blocks)
    topic = Topics(kafka.topic_prefix).uses
    exchange = UseExchange(KafkaBus(kafka), topic, one.heard, time.monotonic)
    exchange.start()
    one.run(exchange, rate, WARM_UP_S)
    one.delays_ms.clear()
    told = cpu_per_request(lambda: one.run(exchange, rate, seconds))
    end.send((alone, told, one.delays_ms))
    end.recv()
    exchange.close()


def measure(num_ingresses: int, rate: float, num_blocks: int, seconds: float) -> dict[str, Any]:
    """Everything of this module, on a broker of its own."""
    found = found_together(ingress, num_ingresses, seconds, (rate, num_blocks))
    alone, told, delays = zip(*found, strict=True)
    return {
        "ingresses": num_ingresses,
        "rate": rate,
        "blocks": num_blocks,
        **of_ages("delay", delays),
        **of_cpu(alone, told, "own_request"),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--ingresses", type=positive_int, default=2)
    parser.add_argument(
        "--rate", type=positive_number, default=50.0, help="requests/s of one ingress"
    )
    parser.add_argument("--blocks", type=positive_int, default=551)
    args = parser.parse_args()
    show("use_exchange", measure(args.ingresses, args.rate, args.blocks, args.seconds), args.json)


if __name__ == "__main__":
    main()
