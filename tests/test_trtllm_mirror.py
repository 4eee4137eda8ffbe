"""What the executor tells of a TensorRT-LLM cache is what that cache holds, after any history.

The truth is read out of the double's block manager. Random requests share prefixes, displace one
another, move to host and back, and are left in the middle.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from controllers.blocks import as_token_array, block_hashes
from controllers.events import Lost, Removed, WorkerUp, hex_of, hexes_of
from controllers.mirror import Mirror
from controllers.retention import Retention, TokenRange
from serve_app.engine.build import EngineLimits
from serve_app.executors.base import GenerateRequest, SamplingParams
from serve_app.executors.trtllm_executor import TrtllmExecutor
from serve_app.executors.trtllm_probe import probe_tokens
from tests.trtllm_double import installed
from tests.trtllm_executors import DOUBLE_FACTS, NEW, OLD, make_trtllm

B = 4
MAX_SEQ_LEN = 80
NUM_REQUESTS = 150
UP = WorkerUp(num_blocks={}, executor="", version="", salt_id="", max_seq_len=0)


class Case(NamedTuple):
    version: str
    num_host_blocks: int = 0
    has_retention: bool = False
    has_partial_reuse: bool = False


CASES = [Case(OLD), Case(NEW), Case(NEW, has_retention=True), Case(NEW, 12, has_retention=True)]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    given: Case = request.param
    return given


@pytest.fixture
def executor(case: Case) -> Iterator[TrtllmExecutor]:
    limits = EngineLimits(
        block_size=B,
        num_gpu_blocks=40,
        max_batch_size=4,
        max_batched_tokens=64,
        max_seq_len=MAX_SEQ_LEN,
    )
    with ExitStack() as stack:
        stack.enter_context(installed(version=case.version, bytes_per_token=1))
        made = make_trtllm(
            Path(),
            limits,
            host_cache_bytes=case.num_host_blocks * B,
            enable_partial_reuse=case.has_partial_reuse,
        )
        stack.callback(made.close)
        yield made


def request_of(rng: random.Random, number: int, has_retention: bool) -> GenerateRequest:
    """A path through a small tree of texts: prefixes are shared often."""
    tokens: list[int] = []
    for _ in range(rng.randint(1, 12)):
        branch = rng.choice((0, 0, 0, 1, 2))
        tokens += [branch * 10 + at for at in range(rng.choice((B, B, B, 3)))]
    priority = rng.choice((0, 35, 60, 100))
    retention = Retention((TokenRange(0, None, priority),), priority)
    return GenerateRequest(
        request_id=str(number),
        token_ids=as_token_array(tokens).tobytes(),
        sampling=SamplingParams(
            max_tokens=rng.randint(1, 12), temperature=0.0, ignore_eos=True, n=rng.choice((1, 1, 2))
        ),
        retention=retention if has_retention else Retention(),
    )


async def one(executor: TrtllmExecutor, request: GenerateRequest, num_chunks: int) -> None:
    """`num_chunks`: after so many it is left."""
    async with aclosing(executor.generate(request)) as stream:  # type: ignore[type-var]
        async for _ in stream:
            num_chunks -= 1
            if not num_chunks:
                return


async def run_all(executor: TrtllmExecutor, case: Case, seed: int) -> None:
    rng = random.Random(seed)
    places = asyncio.Semaphore(6)

    async def run(number: int) -> None:
        async with places:
            request = request_of(rng, number, case.has_retention)
            await one(executor, request, rng.choice((3, 100, 100, 100)))

    await asyncio.gather(*(run(number) for number in range(NUM_REQUESTS)))
    while executor.load().num_active + executor.load().num_queued:
        await asyncio.sleep(0.001)


class Truth(NamedTuple):
    """Of full blocks: hash -> medium, and retention priority where the engine tells all of them."""

    mediums: dict[str, str]
    priorities: dict[str, int]


def truth() -> Truth:
    from tensorrt_llm.double import running

    [llm] = running()
    cache = llm._core()._ranks[0]._largest
    probe = probe_tokens(B, DOUBLE_FACTS.vocab_size, MAX_SEQ_LEN)
    hidden = set(hexes_of(block_hashes(as_token_array(probe or []), B)))
    blocks = [block for block in cache.reusable_blocks() if len(block.key) == 4 * B]
    found = {hex_of(block.block_hash): block for block in blocks}
    kept = {name: block for name, block in found.items() if name not in hidden}
    return Truth(
        {name: ("gpu", "host")[block.level] for name, block in kept.items()},
        {name: block.retention_priority for name, block in kept.items()},
    )


def told(mirror: Mirror) -> Truth:
    [part] = mirror.snapshot(UP, 0, 10**6)
    rows = part.blocks
    full = [at for at, num_tokens in enumerate(rows.num_tokens) if num_tokens == B]
    return Truth(
        {rows.hashes[at]: rows.mediums[at] for at in full},
        {rows.hashes[at]: rows.retention_priority[at] for at in full},
    )


@pytest.mark.parametrize("seed", range(2))
async def test_what_is_told_is_what_is_there(
    seed: int, case: Case, executor: TrtllmExecutor
) -> None:
    await run_all(executor, case, seed)
    mirror, events = Mirror(), executor.drain_events(0)
    for event in events:
        mirror.apply(event)
    while told(mirror).mediums != truth().mediums:
        more = executor.drain_events(0)
        events += more
        for event in more:
            mirror.apply(event)
        await asyncio.sleep(0.001)
    assert told(mirror).priorities == truth().priorities
    assert not any(isinstance(event, Lost) for event in events)
    assert_each_removed_once(events)
    translator = executor._ranks[0].translator
    assert sum(translator.cached_blocks.values()) == len(mirror)
    counts = translator.counts
    assert (counts.num_left_out, counts.num_orphan_events, counts.num_healed) == (0, 0, 0)


@pytest.mark.parametrize("case", [Case(NEW, has_partial_reuse=True)], ids=str, indirect=True)
async def test_with_reuse_of_parts_of_blocks_nothing_is_missing(
    case: Case, executor: TrtllmExecutor
) -> None:
    """Leaves that were taken without a word may be believed in, but no block is forgotten."""
    await run_all(executor, case, seed=1)
    mirror, events = Mirror(), executor.drain_events(0)
    for event in events:
        mirror.apply(event)
    while not truth().mediums.items() <= told(mirror).mediums.items():
        for event in executor.drain_events(0):
            mirror.apply(event)
        await asyncio.sleep(0.001)
    assert len(mirror) <= 2 * 40
    assert executor._ranks[0].translator.counts.num_orphan_events == 0


def assert_each_removed_once(events: Sequence[Any]) -> None:
    """A block that is named in `removed` was told before, and is told again before it is named
    again."""
    resident: set[str] = set()
    for event in events:
        if isinstance(event, Removed):
            for block in event.hashes:
                assert block in resident
                resident.remove(block)
        else:
            resident.update(getattr(event, "hashes", ()))
