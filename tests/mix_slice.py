"""A slice of the retention benchmark's mix, small enough for tests: prompts and their tokens.

`tests/data/traces/mix_200.jsonl.gz`: 193 requests of seven minutes, each sixth block of a prompt.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from controllers.blocks import block_hash, block_hashes
from controllers.retention import RetentionPolicy, Spans
from controllers.retention_replay import Prompt
from controllers.simulation.trace import TRACE_BLOCK, Row, read_rows

FILE = Path(__file__).parent / "data" / "traces" / "mix_200.jsonl.gz"
BLOCK_SIZE = 4
_BUILT_IN = RetentionPolicy().request_types
POLICY = RetentionPolicy(request_types={"document": _BUILT_IN["interactive"]})


class Sliced(NamedTuple):
    """`tokens` are the prompt's blocks and one token more that is nobody else's."""

    prompt: Prompt
    tokens: list[int]


def load_slice() -> Iterator[Sliced]:
    with gzip.open(FILE, "rt") as lines:
        rows = read_rows(lines, FILE.name)
    for number, row in enumerate(rows):
        yield _sliced(row, number)


def _sliced(row: Row, number: int) -> Sliced:
    """A trace block becomes a block of four tokens, which no other one begins with."""
    tokens = [BLOCK_SIZE * block + i for block in row.hash_ids for i in range(BLOCK_SIZE)]
    tokens.append(10**6 + number)
    array = np.array(tokens, np.uint32)
    hashes = block_hashes(array, BLOCK_SIZE)
    hashes.append(block_hash(hashes[-1], array[-1:]))
    shrink = TRACE_BLOCK // BLOCK_SIZE
    spans = Spans(row.system_length // shrink, row.history_length // shrink, len(tokens))
    prompt = Prompt(row.timestamp / 1e3, row.request_type, "default", hashes, spans)
    return Sliced(prompt, tokens)
