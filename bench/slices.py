"""What it is worth that a long prompt goes out in pieces: the local engine, with and without.

    python -m bench.slices [--long 1] [--tokens 3000] [--rounds 3] [--json OUT.json]

Two replicas with the real default model. Conversations of short turns run beside one long prompt,
or several; in every round once with pieces and once without, on the same fleet, each time with new
texts of the same lengths. Prints the times to first token of the turns that were sent during the
long prefill, of the long prompt itself, and how many tokens the pieces made the engines compute
again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

import aiohttp

from bench.arguments import new_file, positive_int
from bench.fleet import Fleet, running_fleet
from bench.report import Row, print_rows, write_json

NUM_CONVERSATIONS = 4
OPENING_WORDS = 250
TURN_WORDS = 30
THINKING_S = 1.0
SETTINGS: dict[str, Any] = {
    "executor": {
        "num_replicas": 2,
        "num_gpu_blocks": 256,
        "max_batch_size": 8,
        "max_batched_tokens": 128,  # a full iteration takes this CPU about half a second
    },
    "retention": {"policy": "static"},
}
# Each is a token.
WORDS = "library winter letter garden evening window market engine river paper station mountain"


@dataclass
class Round:
    """Times in ms; turns sent while the long prompt had no first token."""

    turns_ms: list[float] = field(default_factory=list)
    long_ms: list[float] = field(default_factory=list)
    long_tokens: int = 0
    cached_tokens: int = 0  # of the long prompts, as their clients are told
    extra_tokens: int = 0  # computed by the engines, beyond what usage says of all requests
    num_pieces: int = 0


class Client:
    """Completions with words at random; the seed is the text."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.uncached_tokens = 0  # of all prompts, as usage says
        self._session = session
        self._url = url

    async def ask(self, prompt: str, max_tokens: int) -> tuple[float, dict[str, Any], str]:
        """Time to first token in ms, usage, answer."""
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        usage: dict[str, Any] = {}
        began, first_ms, text = time.perf_counter(), 0.0, ""
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                first_ms = first_ms or (time.perf_counter() - began) * 1e3
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                text += "".join(choice["text"] for choice in event["choices"])
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.uncached_tokens += usage["prompt_tokens"] - cached
        return first_ms, usage, text

    async def figures(self) -> tuple[int, int]:
        """Tokens that the engines have computed, and pieces that were sent."""
        async with self._session.get(f"{self._url}/fleet") as response:
            view = await response.json()
        computed = sum(row["prompt_tokens"] - row["hit_tokens"] for row in view["workers"])
        return computed, view["routing"]["pieces"]


def words(num: int, seed: str) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS.split()) for _ in range(num))


async def converse(client: Client, name: str, is_over: asyncio.Event, out: Round) -> None:
    """A new conversation goes on until the long prompt is done."""
    text = f"{name}: {words(OPENING_WORDS, name)}"
    _, _, answer = await client.ask(text, 4)
    turn = 0
    while not is_over.is_set():
        turn += 1
        text += answer + words(TURN_WORDS, f"{name} {turn}")
        first_ms, _, answer = await client.ask(text, 4)
        if turn > 1:  # the first one of all is before the long prompt
            out.turns_ms.append(first_ms)
        await asyncio.sleep(THINKING_S)


async def one_round(url: str, name: str, num_long: int, num_tokens: int) -> Round:
    out, is_over = Round(), asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        client = Client(session, url)
        before = await settled(client)
        talks = [
            asyncio.create_task(converse(client, f"{name} {number}", is_over, out))
            for number in range(NUM_CONVERSATIONS)
        ]
        await asyncio.sleep(8 * THINKING_S)  # the conversations have begun, on both workers
        out.turns_ms.clear()
        texts = [f"{name} {i}: {words(num_tokens, f'{name} long {i}')}" for i in range(num_long)]
        answers = await asyncio.gather(*(client.ask(text, 4) for text in texts))
        is_over.set()
        await asyncio.gather(*talks)
        after = await settled(client)
    for first_ms, usage, _ in answers:
        out.long_ms.append(first_ms)
        out.long_tokens += usage["prompt_tokens"]
        out.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    out.extra_tokens = after[0] - before[0] - client.uncached_tokens
    out.num_pieces = after[1] - before[1]
    return out


async def settled(client: Client) -> tuple[int, int]:
    """When the last load records have been read."""
    await asyncio.sleep(1.5)
    return await client.figures()


def measure(
    fleet: Fleet, num_long: int, num_tokens: int, num_rounds: int
) -> dict[str, list[Round]]:
    rounds: dict[str, list[Round]] = {"pieces": [], "whole": []}
    asyncio.run(one_round(fleet.url, "to warm up", num_long, num_tokens // 4))
    for number in range(num_rounds):
        for kind, iterations in (("pieces", 4), ("whole", 0)):
            fleet.redeploy("routing", slice_iterations=iterations)
            name = f"{kind} {number}"
            rounds[kind].append(asyncio.run(one_round(fleet.url, name, num_long, num_tokens)))
    return rounds


def summary(rounds: list[Round]) -> dict[str, float]:
    turns = sorted(ms for each in rounds for ms in each.turns_ms)
    return {
        "num_turns": len(turns),
        "turns_ttft_ms_mean": mean(turns),
        "turns_ttft_ms_p50": median(turns),
        "turns_ttft_ms_p90": turns[int(0.9 * (len(turns) - 1))],
        "turns_ttft_ms_max": turns[-1],
        "long_ttft_ms": mean(ms for each in rounds for ms in each.long_ms),
        "long_tokens": median(each.long_tokens for each in rounds),
        "long_cached_tokens": median(each.cached_tokens for each in rounds),
        "num_pieces": median(each.num_pieces for each in rounds),
        "extra_tokens": median(each.extra_tokens for each in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", type=positive_int, default=1)
    parser.add_argument("--tokens", type=positive_int, default=3000)
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    with running_fleet(SETTINGS) as fleet:
        rounds = measure(fleet, args.long, args.tokens, args.rounds)
    figures = {kind: summary(each) for kind, each in rounds.items()}
    path = write_json("slices", figures, args.json)
    rows = [
        Row(name, unit, figures["pieces"][key], figures["whole"][key], is_less_better=True)
        for name, unit, key in (
            ("turns during the long prefill", "", "num_turns"),
            ("their TTFT, mean", "ms", "turns_ttft_ms_mean"),
            ("their TTFT, median", "ms", "turns_ttft_ms_p50"),
            ("their TTFT, p90", "ms", "turns_ttft_ms_p90"),
            ("their TTFT, longest", "ms", "turns_ttft_ms_max"),
            ("TTFT of a long prompt, mean", "ms", "long_ttft_ms"),
            ("tokens of all long prompts", "", "long_tokens"),
            ("of these cached, as clients hear", "", "long_cached_tokens"),
            ("pieces before their last parts", "", "num_pieces"),
            ("tokens computed beyond what usage says", "", "extra_tokens"),
        )
    ]
    print_rows("a long prompt beside short turns, local engine", rows, peer="whole")
    print(path)


if __name__ == "__main__":
    main()
