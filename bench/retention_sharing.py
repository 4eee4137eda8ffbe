"""What it is worth that ingresses tell each other of the prompts they serve.

    python -m bench.retention_sharing --traces FOLDER [--blocks 5000] [--ingresses 2]

The workload of `bench.retention` on one cache, its requests going to the ingresses at random. Rows:
one ingress, several that share with and without delay, several that do not. Each learns the first
half as well; the second half is scored from an empty cache. Then the CPU time of one request of
another ingress, from the bytes of its records to what is learned.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.arguments import positive_int
from bench.retention import TIERS, TYPES
from bench.retention_mix import load, traces_folder
from controllers.prompt_use import PromptUse
from controllers.record_codec import encode
from controllers.records import PrefixUse
from controllers.retention import Retention
from controllers.retention_replay import Hits, Prompt, prompt_use_of, replay
from controllers.router_retention import RouterRetention
from controllers.shared_uses import UseRecords
from controllers.simulation.trace import TRACE_BLOCK

WORKER = "w"
DELAYS_S = (0.0, 0.1, 1.0)
BLOCK = 32  # tokens of a block of an engine, for the cost
_SPLIT = TRACE_BLOCK // BLOCK
NUM_COSTED = 4000


class Ingresses:
    """A policy for `replay`: each request is one ingress's. `delay_s` None: they do not share."""

    def __init__(self, num: int, num_blocks: int, delay_s: float | None) -> None:
        self.num_blocks = num_blocks
        self._all = [_ingress(f"i{number}", num_blocks) for number in range(num)]
        self._delay_s = delay_s
        self._told: deque[tuple[float, PrefixUse]] = deque()
        self._num_requests = 0
        self._random = random.Random(1)
        self._worker = WORKER
        self._ingress = self._all[0]  # of the request of now

    def watch(self, prompts: Iterable[Prompt]) -> None:
        """Requests that went to workers of which nothing is known."""
        self._worker = "elsewhere"
        for prompt in prompts:
            self.retention(prompt)
            self.done(prompt, None, ())
        self._worker = WORKER

    def retention(self, prompt: Prompt) -> Retention:
        self._hear(prompt.at_s)
        self._num_requests += 1
        self._ingress = self._random.choice(self._all)
        self._ingress.tick(prompt.at_s)
        name, use = str(self._num_requests), _prompt_use(prompt)
        planned = self._ingress.retention(name, use, self._worker, prompt.at_s, 0)
        self._tell(planned.record, prompt.at_s)
        return planned.retention

    def done(self, prompt: Prompt, num_hits: int | None, removed: Sequence[int]) -> None:
        record = self._ingress.finished(str(self._num_requests), num_hits, prompt.at_s, 0)
        self._tell(record, prompt.at_s)
        for each in self._all:
            each.removed(WORKER, removed, prompt.at_s)

    def _tell(self, record: PrefixUse | None, at_s: float) -> None:
        if record is not None and self._delay_s is not None:
            self._told.append((at_s, record))

    def _hear(self, now: float) -> None:
        while self._told and self._told[0][0] + (self._delay_s or 0.0) <= now:
            at_s, record = self._told.popleft()
            for ingress in self._all:
                ingress.heard(record, at_s)


def _ingress(name: str, num_blocks: int, block_size: int = TRACE_BLOCK) -> RouterRetention:
    ingress = RouterRetention(name, block_size)
    ingress.set_workers({WORKER: num_blocks})
    return ingress


def main() -> None:
    args = _arguments()
    prompts = load(args.traces)
    half = len(prompts) // 2
    table = Table(title=f"hit %, {args.blocks} blocks of {TRACE_BLOCK}", title_justify="left")
    for column in ("ingresses", "hit %", *TYPES):
        table.add_column(column, justify="left" if column == "ingresses" else "right")
    rows: list[tuple[str, int, float | None]] = [("1", 1, None)]
    num = args.ingresses
    rows += [(f"{num}, told after {delay_s:g} s", num, delay_s) for delay_s in DELAYS_S]
    rows.append((f"{num}, not told", num, None))
    for name, number, delay_s in rows:
        hits = _score(prompts[:half], prompts[half:], Ingresses(number, args.blocks, delay_s))
        shares = [f"{100 * hits.rate_of(kind):.1f}" for kind in TYPES]
        table.add_row(name, f"{100 * hits.rate:.1f}", *shares)
    Console().print(table)
    _print_cost(prompts[:NUM_COSTED], args.blocks)


def _score(past: Sequence[Prompt], test: Sequence[Prompt], policy: Ingresses) -> Hits:
    policy.watch(past)
    return replay(test, policy, policy.num_blocks, TRACE_BLOCK)


def _print_cost(prompts: Sequence[Prompt], num_blocks: int) -> None:
    """Of requests that one ingress tells another, in blocks as engines have them."""
    records, reader = UseRecords("i0"), _ingress("i1", num_blocks * _SPLIT, BLOCK)
    decode = msgspec.json.Decoder(PrefixUse).decode
    tell_us: list[float] = []
    hear_us: list[float] = []
    sizes: list[int] = []
    for number, prompt in enumerate(prompts):
        name, asked = str(number), _prompt_use(prompt, _SPLIT)
        started = time.process_time()
        told = [
            encode(records.sent(name, WORKER, asked, 0)),
            encode(records.done(name, WORKER, 0, 0)),
        ]
        tell_us.append((time.process_time() - started) * 1e6)
        sizes.append(sum(map(len, told)))
        started = time.process_time()
        for value in told:
            reader.heard(decode(value), prompt.at_s)
        hear_us.append((time.process_time() - started) * 1e6)
    num = sum(len(p.full_hashes(TRACE_BLOCK)) for p in prompts) * _SPLIT / len(prompts)
    print(f"{len(prompts)} requests of {num:.0f} blocks of {BLOCK} tokens in the mean:")
    for what, values in (("bytes", sizes), ("us to tell", tell_us), ("us to hear", hear_us)):
        p50, p90, p99 = np.percentile(values, [50, 90, 99])
        mean = sum(values) / len(values)
        print(f"  {what}: mean {mean:.0f}, p50 {p50:.0f}, p90 {p90:.0f}, p99 {p99:.0f}")


def _prompt_use(prompt: Prompt, split: int = 1) -> PromptUse:
    """Each trace block as so many blocks."""
    use = prompt_use_of(prompt, TIERS, TRACE_BLOCK)
    hashes = [split * block + part for block in use.hashes for part in range(split)]
    return use._replace(hashes=hashes, block_size=TRACE_BLOCK // split)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", type=traces_folder, required=True)
    parser.add_argument("--blocks", type=positive_int, default=5000)
    parser.add_argument("--ingresses", type=positive_int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
