"""Cache hits of eight workers when routing minds where there is no room to keep a prompt.

    python -m bench.retention_crowding --traces FOLDER [--sizes 625,1250,2500] [--weights 0,0.1]
                                       [--seeds 1] [--json FILE]

The mix of `bench.retention`, without time for service, so that nothing but the choice of the worker
makes a difference: the one with the fewest tokens to compute, and a share of those that it was sent
lately, and of those that would be lost there. The second half in time is scored.
`bench.retention_routing` runs the router of production, and the time.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.arguments import new_file, positive_int, positive_ints, shares
from bench.report import write_json
from bench.retention import TIERS, TYPES
from bench.retention_mix import load, traces_folder
from controllers.events import Removed, Stored, ints_of
from controllers.prompt_use import PromptUse
from controllers.retention_replay import Hits, Prompt, kept_of, prompt_use_of
from controllers.router_retention import RouterRetention
from controllers.simulation.cache import Ask, Cache
from controllers.simulation.cache_store import CacheShape
from controllers.simulation.trace import TRACE_BLOCK

NUM_WORKERS = 8
LOAD_SHARE = 0.3  # of tokens sent lately, as tokens to compute
LOAD_HALF_LIFE_S = 20.0
LOAD_NOISE = 0.02  # seeds differ by so much of the load


class Workers:
    """What each has cached, and was sent lately."""

    def __init__(self, num_blocks: int) -> None:
        self.names = [f"w{i}" for i in range(NUM_WORKERS)]
        self.router = RouterRetention("router", TRACE_BLOCK)
        self.router.set_workers(dict.fromkeys(self.names, num_blocks))
        self.sent_tokens = [0.0] * NUM_WORKERS
        self._num_blocks = num_blocks
        shape = CacheShape(num_blocks, tokens_of_node=TRACE_BLOCK)
        self._caches = [Cache(shape) for _ in self.names]
        self._cached: list[set[int]] = [set() for _ in self.names]
        self._decayed_at_s = 0.0

    def decay(self, now: float) -> None:
        factor = 0.5 ** ((now - self._decayed_at_s) / LOAD_HALF_LIFE_S)
        self._decayed_at_s = now
        self.sent_tokens = [tokens * factor for tokens in self.sent_tokens]

    def uncached(self, prompt: Prompt, at: int) -> int:
        """Tokens to compute."""
        cached = self._cached[at]
        num = next((i for i, h in enumerate(prompt.hashes) if h not in cached), len(prompt.hashes))
        return (len(prompt.hashes) - num) * TRACE_BLOCK

    def serve(self, prompt: Prompt, use: PromptUse, at: int) -> int:
        """Returns the blocks that it found cached."""
        now, name, cache = prompt.at_s, self.names[at], self._caches[at]
        self.sent_tokens[at] += self.uncached(prompt, at)
        planned = self.router.retention("only", use, name, now, None)
        kept = kept_of(planned.retention, prompt, TRACE_BLOCK)
        keys = prompt.hashes[: self._num_blocks]
        held = cache.admit(Ask(keys, [1] * len(keys), 0, kept), now)
        cache.release(held, now)
        self.router.finished("only", held.num_hit_blocks, now, None)
        for event in cache.drain():
            if isinstance(event, Stored):
                self._cached[at].update(ints_of(event.hashes))
            elif isinstance(event, Removed):
                self._removed(at, ints_of(event.hashes), now)
        return held.num_hit_blocks

    def _removed(self, at: int, hashes: Sequence[int], now: float) -> None:
        self._cached[at].difference_update(hashes)
        self.router.removed(self.names[at], hashes, now)


def main() -> None:
    args = _arguments()
    prompts = load(args.traces)
    table = Table("blocks", "weight", "seed", "hit %", *TYPES)
    results: list[dict[str, Any]] = []
    for size in args.sizes:
        for seed in range(args.seeds):
            for weight in args.weights:
                hits = routed(prompts, size, weight, seed)
                by_type = {kind: 100.0 * hits.rate_of(kind) for kind in TYPES}
                found = {"blocks": size, "weight": weight, "seed": seed, "hits": 100.0 * hits.rate}
                results.append({**found, **by_type})
                write_json("retention_crowding", {"results": results}, args.json)
                figures = [f"{figure:.1f}" for figure in (100.0 * hits.rate, *by_type.values())]
                table.add_row(f"{size:,}", f"{weight:g}", str(seed), *figures)
    Console().print(table)


def routed(prompts: Sequence[Prompt], num_blocks: int, weight: float, seed: int) -> Hits:
    """Blocks of the second half."""
    rng, workers, hits = Random(seed), Workers(num_blocks), Hits(Counter(), Counter())
    for number, prompt in enumerate(prompts):
        now = prompt.at_s
        workers.router.tick(now)
        workers.decay(now)
        use = prompt_use_of(prompt, TIERS, TRACE_BLOCK)
        lost = workers.router.lost_tokens(use, now) if weight else {}
        costs = [
            workers.uncached(prompt, at)
            + weight * lost.get(name, 0.0)
            + LOAD_SHARE * workers.sent_tokens[at] * (1.0 + LOAD_NOISE * rng.random())
            for at, name in enumerate(workers.names)
        ]
        num_hits = workers.serve(prompt, use, costs.index(min(costs)))
        if number >= len(prompts) // 2:
            hits.asked[prompt.request_type] += len(prompt.hashes)
            hits.hit[prompt.request_type] += num_hits
    return hits


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=traces_folder, required=True)
    parser.add_argument("--sizes", type=positive_ints, default="625,1250,2500")
    parser.add_argument("--weights", type=shares, default="0,0.1")
    parser.add_argument("--seeds", type=positive_int, default=1)
    parser.add_argument("--json", type=new_file)
    return parser.parse_args()


if __name__ == "__main__":
    main()
