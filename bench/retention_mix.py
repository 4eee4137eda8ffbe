"""The workload of the retention benchmark, and Belady's bound for it.

Chat (Mooncake's conversation trace), documents (its synthetic trace, 3.46 times as slow, so that it
lasts as long) and agents (the merged coding sessions, as far as chat goes), by time.
"""

from __future__ import annotations

import gzip
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.arguments import folder_with
from controllers.retention import Spans
from controllers.retention_replay import Hits, Prompt
from controllers.simulation.trace import TRACE_BLOCK, Row, read_rows

# File, request type, first id (those of the agents are as they are), and times as slow.
PARTS = (
    ("mooncake_conversation.jsonl.gz", "interactive", 10_000_000, 1.0),
    ("mooncake_synthetic.jsonl.gz", "document", 20_000_000, 3.46),
    ("weka_merged_512_12k.delta.jsonl.gz", "agent", 0, 1.0),
)
END_S = 3537.0
NEVER = 1 << 60


traces_folder = folder_with(*(name for name, *_ in PARTS))


def load(folder: Path) -> list[Prompt]:
    """Prompts in the order of time. What of a prompt was seen before is its history."""
    seen: set[int] = set()
    return [_with_history(_prompt(row), seen) for row in load_rows(folder)]


def load_rows(folder: Path) -> list[Row]:
    """The same as rows of a trace, with the lengths of replies."""
    rows = [row for part in PARTS for row in _part(folder, *part)]
    return sorted(rows, key=lambda row: row.timestamp)


def _part(folder: Path, name: str, request_type: str, first: int, slower: float) -> Iterator[Row]:
    with gzip.open(folder / name, "rt") as lines:
        for row in read_rows(lines, name):
            timestamp = int(row.timestamp * slower)
            if row.hash_ids and timestamp <= 1e3 * END_S:
                yield msgspec.structs.replace(
                    row,
                    timestamp=timestamp,
                    hash_ids=[first + block for block in row.hash_ids],
                    request_type=request_type,
                )


def _prompt(row: Row) -> Prompt:
    spans = Spans(0, 0, row.input_length)
    return Prompt(row.timestamp / 1e3, row.request_type, "default", row.hash_ids, spans)


def _with_history(prompt: Prompt, seen: set[int]) -> Prompt:
    """The first block is taken for the system prompt."""
    num = next((i for i, h in enumerate(prompt.hashes) if h not in seen), len(prompt.hashes))
    seen.update(prompt.hashes)
    num_tokens = prompt.spans.num_tokens
    system_end = min(TRACE_BLOCK, num_tokens)
    history_end = max(system_end, min((num - 1) * TRACE_BLOCK, num_tokens))
    return prompt._replace(spans=Spans(system_end, history_end, num_tokens))


def belady(prompts: Sequence[Prompt], num_blocks: int) -> Hits:
    """What is used farthest in the future goes first, deeper blocks first among equals; every
    prompt must be stored, as in an engine."""
    upcoming = _uses(prompts)
    cached: dict[int, tuple[int, int]] = {}
    heap: list[tuple[int, int, int]] = []
    hits = Hits(Counter(), Counter())
    for prompt in prompts:
        own = prompt.hashes[:num_blocks]
        hits.asked[prompt.request_type] += len(prompt.hashes)
        hits.hit[prompt.request_type] += next(
            (i for i, block in enumerate(own) if block not in cached), len(own)
        )
        _evict(cached, heap, own, num_blocks)
        for depth, block in enumerate(prompt.hashes):
            upcoming[block].pop()
            if depth < len(own):
                at = upcoming[block][-1] if upcoming[block] else NEVER
                cached[block] = (-at, -depth)
                heapq.heappush(heap, (-at, -depth, block))
    return hits


def _uses(prompts: Sequence[Prompt]) -> dict[int, list[int]]:
    """Block -> numbers of the prompts that use it, the next one last."""
    uses: dict[int, list[int]] = {}
    for number in range(len(prompts) - 1, -1, -1):
        for block in prompts[number].hashes:
            uses.setdefault(block, []).append(number)
    return uses


def _evict(
    cached: dict[int, tuple[int, int]],
    heap: list[tuple[int, int, int]],
    own: Sequence[int],
    num_blocks: int,
) -> None:
    mine = set(own)
    missing = sum(block not in cached for block in own) - (num_blocks - len(cached))
    back = []
    while missing > 0:
        entry = heapq.heappop(heap)
        if cached.get(entry[2]) != entry[:2]:
            continue
        if entry[2] in mine:
            back.append(entry)
            continue
        del cached[entry[2]]
        missing -= 1
    for entry in back:
        heapq.heappush(heap, entry)
