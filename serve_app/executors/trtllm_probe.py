"""What a TensorRT-LLM engine really does, seen from one small request at its start.

Documentation and defaults have been wrong about retention: a cache manager that ignores it takes
the arguments without a word. So a prompt is stored with a retention priority, and what comes back
in the cache's events counts. Runs in the thread that owns the engine's blocking calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controllers.errors import EventError
from serve_app.executors.trtllm_block_key import block_key
from serve_app.executors.trtllm_json import RawBlock, RawStored, parse
from serve_app.executors.trtllm_port import EnginePort
from serve_app.executors.trtllm_ranks import Ranks
from serve_app.executors.trtllm_requests import Unknown

logger = logging.getLogger(__name__)

RETENTION_PRIORITY = 80
DURATION_S = 1.0  # the block must not stay for the sake of the question
EVENTS_TIMEOUT_S = 5.0
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Findings:
    """All False when the cache tells nothing."""

    has_events: bool = False
    has_retention: bool = False
    has_salt_in_events: bool = False
    has_known_hashes: bool = False


NOTHING_FOUND = Findings()


def probe_tokens(block_size: int, vocab_size: int, max_seq_len: int) -> list[int] | None:
    """One full block and a token; unlike a text. None when that does not fit."""
    num_tokens = block_size + 1
    if num_tokens > max_seq_len - 1:
        return None
    return [vocab_size - 1 - (7 * i) % min(vocab_size, 97) for i in range(num_tokens)]


def look(
    engine: EnginePort,
    ranks: Ranks,
    tokens: Sequence[int],
    block_size: int,
    clock: Callable[[], float] = time.monotonic,
) -> Findings:
    """Leaves the ranks' history complete and without the probe's blocks. Blocks until the engine
    has answered: whoever waits for this must bound it."""
    engine.submit_probe(tokens, RETENTION_PRIORITY, DURATION_S).result()
    wanted = tuple(tokens[:block_size])
    deadline = clock() + EVENTS_TIMEOUT_S
    found: RawBlock | None = None
    while found is None and clock() < deadline:
        events = engine.events()
        ranks.take_silently(events)
        found = next((b for b in map(_first_block, events) if b and b.tokens == wanted), None)
        if found is None:
            time.sleep(POLL_S)
    ranks.hide_all()
    engine.stats()  # of the probe: nobody's load
    if found is None:
        return NOTHING_FOUND
    return Findings(
        has_events=True,
        has_retention=found.retention_priority == RETENTION_PRIORITY,
        has_salt_in_events=not isinstance(found.salt, Unknown),
        has_known_hashes=found.engine_hash == block_key(tokens[:block_size]),
    )


def _first_block(event: object) -> RawBlock | None:
    """Of a stored event at the root."""
    if not isinstance(event, dict) or not event:
        return None
    try:
        data = parse(event).data
    except EventError:
        return None  # the translator counts it
    is_root = isinstance(data, RawStored) and data.parent is None and bool(data.blocks)
    return data.blocks[0] if is_root and isinstance(data, RawStored) else None
