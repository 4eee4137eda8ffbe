"""What routing by prefix is worth on a laptop: the same conversations, KV-aware and random.

    python -m bench.demo [--replicas 3] [--conversations 24] [--turns 6] [--json OUT.json]

Conversations share a system prompt and run a few at a time on the real default model, on a fresh
fleet for each policy, with the same texts, seeds and order. Prints the cached-token rate, time to
first token, their ratios and a plot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import aiohttp
import plotext

from bench.arguments import new_file, positive_int
from bench.fleet import running_fleet
from bench.report import write_json

POLICIES = ("kv_aware", "random")
CONCURRENCY = 3
MAX_TOKENS = 12
SEED = 7
SYSTEM = (
    "You are the assistant of a small public library in a town by the sea. You answer questions "
    "about opening hours, the catalogue, reading groups, interlibrary loans and the local history "
    "collection. You are friendly and brief, you never invent a title or a date, and if you do not "
    "know something you say so and name the desk that will know. Opening hours are ten to six on "
    "weekdays and ten to two on Saturdays. Loans last three weeks and can be renewed twice."
)
TOPICS = ("novels", "maps", "letters", "newspapers", "photographs", "songs", "atlases", "diaries")
ASKS = (
    "What do you have about {topic} from the {year}s?",
    "Can I take {topic} of {year} home, and for how long?",
    "Who could tell me more about {topic} made around {year}?",
    "Is there a reading group that talks about {topic} after {year}?",
    "Please write one sentence on why {topic} of {year} matter.",
    "Thank you. What should I look at first, {topic} or something else of {year}?",
)


@dataclass
class Turn:
    conversation: int
    number: int  # from 0
    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    worker: str
    reason: str


@dataclass
class Run:
    turns: list[Turn] = field(default_factory=list)

    def cached_rate(self) -> float:
        return sum(t.cached_tokens for t in self.turns) / sum(t.prompt_tokens for t in self.turns)

    def ttft_ms(self, quantile: float) -> float:
        ordered = sorted(t.ttft_ms for t in self.turns)
        return ordered[int(len(ordered) * quantile)]

    def moves(self) -> int:
        """Turns that did not go to the worker of the turn before."""
        by_key = {(t.conversation, t.number): t.worker for t in self.turns}
        return sum(
            worker != by_key[conversation, number - 1]
            for (conversation, number), worker in by_key.items()
            if number
        )


def questions(conversation: int, num_turns: int) -> list[str]:
    rng = random.Random(SEED * 1000 + conversation)
    return [
        ASKS[i % len(ASKS)].format(topic=rng.choice(TOPICS), year=rng.randrange(1850, 1990, 10))
        for i in range(num_turns)
    ]


async def converse(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    conversation: int,
    num_turns: int,
    out: Run,
) -> None:
    messages = [{"role": "system", "content": SYSTEM}]
    for number, question in enumerate(questions(conversation, num_turns)):
        messages.append({"role": "user", "content": question})
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reply, turn = await _one(session, url, body, conversation, number)
        messages.append({"role": "assistant", "content": reply})
        out.turns.append(turn)


async def _one(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], conversation: int, number: int
) -> tuple[str, Turn]:
    started = time.perf_counter()
    first = 0.0
    reply = ""
    usage: dict[str, Any] = {}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                reply += choice["delta"].get("content") or ""
                if reply and not first:
                    first = time.perf_counter()
    turn = Turn(
        conversation,
        number,
        ((first or time.perf_counter()) - started) * 1e3,
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        response.headers["X-Cachelane-Worker"],
        response.headers["X-Cachelane-Reason"],
    )
    return reply, turn


async def drive(url: str, model: str, num_conversations: int, num_turns: int) -> Run:
    out = Run()
    waiting = iter(range(num_conversations))
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def work() -> None:
            for conversation in waiting:
                await converse(session, url, model, conversation, num_turns, out)

        await asyncio.gather(*[work() for _ in range(CONCURRENCY)])
    return out


def measure(policy: str, num_replicas: int, num_conversations: int, num_turns: int) -> Run:
    settings = {"executor": {"num_replicas": num_replicas}, "routing": {"policy": policy}}
    with running_fleet(settings) as fleet:
        return asyncio.run(drive(fleet.url, fleet.model(), num_conversations, num_turns))


def summary(run: Run) -> dict[str, Any]:
    later = [t for t in run.turns if t.number]
    return {
        "requests": len(run.turns),
        "cached_token_rate": round(run.cached_rate(), 4),
        "ttft_p50_ms": round(run.ttft_ms(0.5), 1),
        "ttft_p90_ms": round(run.ttft_ms(0.9), 1),
        "later_turns_that_moved": run.moves(),
        "later_turns_by_reason": dict(Counter(t.reason for t in later)),
        "first_turns_by_worker": sorted(
            Counter(t.worker for t in run.turns if not t.number).values(), reverse=True
        ),
    }


def plot(runs: dict[str, Run], num_turns: int) -> None:
    """Median time to first token by turn."""
    plotext.clear_figure()
    for marker, (policy, run) in zip("ox", runs.items(), strict=True):
        medians = [median(t.ttft_ms for t in run.turns if t.number == n) for n in range(num_turns)]
        plotext.plot(range(1, num_turns + 1), medians, label=policy, marker=marker)
    plotext.title("median TTFT (ms) by turn")
    plotext.xticks(range(1, num_turns + 1))
    plotext.plot_size(70, 16)
    print(plotext.uncolorize(plotext.build()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=positive_int, default=3)
    parser.add_argument("--conversations", type=positive_int, default=24)
    parser.add_argument("--turns", type=positive_int, default=6)
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    runs = {
        policy: measure(policy, args.replicas, args.conversations, args.turns)
        for policy in POLICIES
    }
    table = {policy: summary(run) for policy, run in runs.items()}
    ours, other = (table[policy] for policy in POLICIES)
    ratios = {
        key: round(ours[key] / other[key], 3)
        for key in ("cached_token_rate", "ttft_p50_ms", "ttft_p90_ms")
    }
    write_json("demo", {**table, "ratios": ratios}, args.json)
    for policy, figures in table.items():
        print(policy, *(f"  {key}: {value}" for key, value in figures.items()), sep="\n")
    print("kv_aware / random", *(f"  {key}: {value}" for key, value in ratios.items()), sep="\n")
    plot(runs, args.turns)


if __name__ == "__main__":
    main()
