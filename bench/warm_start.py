"""The first 50 requests of a new replica, with a cache warmed by the hottest prefixes and without.

    python -m bench.warm_start [--requests 50] [--prompts 6] [--prompt-tokens 1500] [--json FILE]

Starts a fleet of one scripted replica with pretended timing (0.5 ms a prompt token) and sends it
questions behind a few long system prompts until those are known to be shared. Then the bounds of
autoscaling go to two replicas, and as soon as the new one is in the table 50 questions, one after
the other, go to it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from statistics import median
from typing import Any

import aiohttp

from bench.arguments import new_file, positive_int
from bench.fleet import Fleet, running_fleet
from bench.load import send
from bench.report import Row, print_rows, write_json
from bench.scale_down import scale, workers

MS_PER_TOKEN = 0.5
QUESTIONS_BEFORE = 5  # for each prompt
GAP_S = 0.05


def settings(is_warm: bool) -> dict[str, Any]:
    return {
        "executor": {
            "kind": "scripted",
            "block_size": 32,
            "num_gpu_blocks": 4096,
            "scripted": {
                "prefill_ms": 2.0,
                "prefill_ms_per_token": MS_PER_TOKEN,
                "decode_ms": 5.0,
            },
        },
        "autoscaling": {
            "enabled": True,
            "min_replicas": 1,
            "max_replicas": 1,
            "interval_s": 0.5,
            "warm_start": is_warm,
        },
    }


class Questions:
    """Questions behind a few shared system prompts; a character is a token."""

    def __init__(self, num_prompts: int, num_tokens: int) -> None:
        self._rng = random.Random(7)
        words = ["harbour", "ledger", "lantern", "orchard", "copper", "meadow", "signal", "granite"]
        self._prompts = [
            f"{i} " + " ".join(self._rng.choices(words, k=num_tokens // 7))
            for i in range(num_prompts)
        ]
        self._number = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def body(self, prompt: int) -> dict[str, Any]:
        self._number += 1
        text = f"{self._prompts[prompt]}\n\nquestion {self._number * 7919}?"
        return {"prompt": text, "max_tokens": 4, "stream": True}

    def any(self) -> dict[str, Any]:
        return self.body(self._rng.randrange(len(self._prompts)))


async def measure(fleet: Fleet, questions: Questions, num_requests: int) -> list[float]:
    """Milliseconds to the first token of the new replica's first requests, in order."""
    url = f"{fleet.url}/v1/completions"
    async with aiohttp.ClientSession() as session:
        for _ in range(QUESTIONS_BEFORE):
            for prompt in range(len(questions)):
                await send(session, url, questions.body(prompt))
    before = await workers(fleet)
    (new,) = await scale(fleet, 2) - before
    times = []
    async with aiohttp.ClientSession(headers={"x-cachelane-pin": new}) as session:
        for _ in range(num_requests):
            times.append((await send(session, url, questions.any())).ttft_ms)
            await asyncio.sleep(GAP_S)
    return times


def run(is_warm: bool, args: argparse.Namespace) -> list[float]:
    questions = Questions(args.prompts, args.prompt_tokens)
    with running_fleet(settings(is_warm)) as fleet:
        return asyncio.run(measure(fleet, questions, args.requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=positive_int, default=50)
    parser.add_argument("--prompts", type=positive_int, default=6)
    parser.add_argument("--prompt-tokens", type=positive_int, default=1500)
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    cold, warm = run(False, args), run(True, args)
    slow_ms = args.prompt_tokens * MS_PER_TOKEN / 2
    rows = [
        Row(name, unit, of(warm), of(cold), is_less_better=True)
        for name, unit, of in (
            ("mean TTFT of the first requests", "ms", lambda times: sum(times) / len(times)),
            ("median", "ms", median),
            ("largest", "ms", max),
            ("that computed a system prompt", "", lambda times: sum(t > slow_ms for t in times)),
        )
    ]
    print_rows(f"first {args.requests} requests of a new replica: warmed", rows, "cold")
    print(write_json("warm_start", {"warm_ttft_ms": warm, "cold_ttft_ms": cold}, args.json))


if __name__ == "__main__":
    main()
