"""What every executor promises. Runs on each; a model file's only where the file is there."""

from __future__ import annotations

import array
import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from controllers.blocks import as_token_array, block_hashes
from controllers.errors import ExecutorError, InvalidRequest, PromptTooLong, RequestAborted
from controllers.events import Event, Load, Lost, Removed, Stored, hexes_of
from controllers.retention import Retention, TokenRange
from serve_app.engine.blas import limit_blas_threads
from serve_app.engine.build import EngineLimits
from serve_app.engine.config import ModelConfig
from serve_app.engine.model_numpy import NumpyModel
from serve_app.engine.model_store import DEFAULT_MODEL
from serve_app.engine.weights import ModelWeights, load_model
from serve_app.executors.base import Executor, GenerateRequest, SamplingParams, TokenChunk
from serve_app.executors.local import LocalExecutor
from serve_app.executors.scripted import ScriptedExecutor
from tests.engine_fixture import tiny_model
from tests.trtllm_double import installed
from tests.trtllm_executors import (
    NEW,
    OLD,
    make_real_trtllm,
    make_trtllm,
    why_no_real_model,
)

MODEL_FILE = Path(__file__).parents[2] / ".cachelane" / "models" / DEFAULT_MODEL.file_name
BLOCK = 8
LIMITS = {
    "block_size": BLOCK,
    "num_gpu_blocks": 24,
    "max_batch_size": 4,
    "max_batched_tokens": 32,
    "max_seq_len": 96,
}

Make = Callable[..., Executor]


def make_scripted(_: Path, limits: EngineLimits) -> Executor:
    return ScriptedExecutor(limits)


def make_tiny(directory: Path, limits: EngineLimits) -> Executor:
    return LocalExecutor(tiny_model(directory, limits), limits, eos_ids=(), model_name="tiny")


@functools.cache
def real_weights() -> tuple[ModelConfig, ModelWeights]:
    limit_blas_threads(1)
    return load_model(MODEL_FILE)


def make_real(_: Path, limits: EngineLimits) -> Executor:
    num_blocks = {"num_blocks": limits.num_gpu_blocks, "num_host_blocks": limits.num_host_blocks}
    model = NumpyModel(*real_weights(), block_size=limits.block_size, **num_blocks)
    return LocalExecutor(model, limits, eos_ids=(), model_name="real")


class Kind(NamedTuple):
    """`context` lasts as long as its executors."""

    make: Make
    context: Callable[[], AbstractContextManager[object]] = nullcontext


def on_double(version: str) -> Kind:
    """With more memory than any test asks for, and steps that can be told apart."""
    return Kind(make_trtllm, lambda: installed(version=version, memory_blocks=4096, decode_ms=0.2))


KINDS = [
    pytest.param(Kind(make_scripted), id="scripted"),
    pytest.param(Kind(make_tiny), id="local-tiny"),
    pytest.param(on_double(OLD), id="trtllm-1.2"),
    pytest.param(on_double(NEW), id="trtllm-1.3"),
    pytest.param(
        Kind(make_real_trtllm),
        id="trtllm-real",
        marks=pytest.mark.skipif(why_no_real_model() is not None, reason=str(why_no_real_model())),
    ),
    pytest.param(
        Kind(make_real),
        id="local-real",
        marks=[
            pytest.mark.model,
            pytest.mark.skipif(not MODEL_FILE.exists(), reason=f"{MODEL_FILE.name} is not here"),
        ],
    ),
]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes executors with some limits changed; closes them at the end."""
    made: list[Executor] = []

    def build(**changes: Any) -> Executor:
        executor = request.param.make(tmp_path, EngineLimits(**{**LIMITS, **changes}))
        made.append(executor)
        return executor

    with request.param.context():
        yield build
        for executor in made:
            executor.close()


@pytest.fixture
def executor(make: Make) -> Executor:
    return make()


@pytest.fixture
def endless(make: Make) -> Executor:
    """For requests that must still run when the test gets at them."""
    return make(num_gpu_blocks=1000, max_seq_len=8000)


ENDLESS = 7900  # tokens; seconds even on the tiny model


def ask(request_id: str, prompt: Sequence[int], **options: Any) -> GenerateRequest:
    """Greedy, without an end by the model itself, unless said otherwise."""
    extra = {
        name: options.pop(name) for name in ("retention", "salt", "dp_rank") if name in options
    }
    defaults = {"max_tokens": 5, "temperature": 0.0, "ignore_eos": True}
    return GenerateRequest(
        request_id=request_id,
        token_ids=array.array("I", prompt).tobytes(),
        sampling=SamplingParams(**{**defaults, **options}),
        **extra,
    )


def prompt_of(num_tokens: int, first: int = 1) -> list[int]:
    return [(first + 3 * i) % 90 for i in range(num_tokens)]


async def collect(executor: Executor, request: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in executor.generate(request)]


async def tokens_of(executor: Executor, request: GenerateRequest) -> list[int]:
    return joined(await collect(executor, request))


def joined(chunks: Sequence[TokenChunk], index: int = 0) -> list[int]:
    return [token for chunk in chunks if chunk.index == index for token in chunk.token_ids]


async def idle_load(executor: Executor) -> Load:
    """The load once the engine has nothing left; a test's time limit bounds the wait."""
    while True:
        load = executor.load()
        if not (load.num_active or load.num_queued or load.used_blocks["gpu"]):
            return load
        await asyncio.sleep(0)


async def events_until(
    executor: Executor, is_complete: Callable[[list[Event]], bool]
) -> list[Event]:
    """Some executors tell of their cache a little later; a test's time limit bounds the wait."""
    events = executor.drain_events(0)
    while not is_complete(events):
        events += executor.drain_events(0)
        await asyncio.sleep(0.001)
    return events


def hashes_of(events: Sequence[Event]) -> list[str]:
    return [h for event in events if isinstance(event, Stored) for h in event.hashes]


def assert_zero(load: Load) -> None:
    assert (load.num_active, load.num_queued) == (0, 0)
    assert (load.queued_prefill_tokens, load.decode_tokens) == (0, 0)
    assert load.used_blocks == {"gpu": 0, "host": 0}


async def next_chunk(stream: AsyncIterator[TokenChunk]) -> TokenChunk:
    return await stream.__anext__()


async def read_on(stream: AsyncIterator[TokenChunk]) -> None:
    async for _ in stream:
        pass


def test_info(executor: Executor) -> None:
    info = executor.info
    assert (info.block_size, info.num_blocks) == (BLOCK, {"gpu": 24, "host": 0})
    assert (info.max_seq_len, info.max_batch_size, info.max_batched_tokens) == (96, 4, 32)
    assert info.name in {"scripted", "local", "trtllm"}
    assert info.version


async def test_tokens_and_the_end(executor: Executor) -> None:
    chunks = await collect(executor, ask("a", prompt_of(20)))
    assert len(joined(chunks)) == 5
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[0].cached_tokens == 0
    assert chunks[0].queue_ms is not None
    assert chunks[0].queue_ms >= 0
    assert chunks[-1].cached_tokens == 0


async def test_greedy_tokens_repeat(executor: Executor) -> None:
    first = await tokens_of(executor, ask("a", prompt_of(20)))
    assert await tokens_of(executor, ask("b", prompt_of(20), seed=99)) == first
    assert await tokens_of(executor, ask("a", prompt_of(20))) == first  # an id may come again


async def test_a_seed_decides(executor: Executor) -> None:
    async def drawn(name: str, seed: int) -> list[int]:
        hot = ask(name, prompt_of(20), temperature=2.0, seed=seed, max_tokens=12)
        return await tokens_of(executor, hot)

    assert await drawn("a", 1) == await drawn("b", 1)
    assert await drawn("c", 1) != await drawn("d", 2)


async def test_a_second_request_reuses_blocks(executor: Executor) -> None:
    await collect(executor, ask("a", prompt_of(20)))
    chunks = await collect(executor, ask("b", prompt_of(20)))
    assert chunks[0].cached_tokens is not None
    assert 16 <= chunks[0].cached_tokens <= 19
    assert chunks[-1].cached_tokens == chunks[0].cached_tokens
    load = await idle_load(executor)
    assert (load.hit_tokens, load.prompt_tokens) == (chunks[0].cached_tokens, 40)


async def test_salts_keep_blocks_apart(executor: Executor) -> None:
    await collect(executor, ask("a", prompt_of(20), salt=7))
    chunks = await collect(executor, ask("b", prompt_of(20), salt=8))
    assert chunks[0].cached_tokens == 0
    full = [block_hashes(as_token_array(prompt_of(16)), BLOCK, salt) for salt in (7, 8)]
    await events_until(executor, lambda events: {*hexes_of(sum(full, []))} <= {*hashes_of(events)})


async def test_stored_events_name_the_prompts_blocks(executor: Executor) -> None:
    prompt = prompt_of(20)
    generated = await tokens_of(executor, ask("a", prompt, max_tokens=13))
    expected = hexes_of(block_hashes(as_token_array([*prompt, *generated]), BLOCK))
    events = await events_until(executor, lambda events: len(hashes_of(events)) >= len(expected))
    assert all(isinstance(event, Stored) for event in events)
    told = chain_of(events)
    assert told[: len(expected)] == expected
    sizes = [num for event in events if isinstance(event, Stored) for num in event.num_tokens]
    assert sizes == [8] * len(expected)


def chain_of(events: Sequence[Event]) -> list[str]:
    """Stored hashes of one prefix; every event must go on where the one before ended."""
    told: list[str] = []
    for event in events:
        assert isinstance(event, Stored)
        assert event.parent == (told[-1] if told else None)
        assert len(event.hashes) == len(event.num_tokens) == len(event.retention_priority)
        told += event.hashes
    return told


async def test_events_account_for_every_block(executor: Executor) -> None:
    """Resident by the events = what the executor says is cached, also after evictions."""
    for i in range(6):
        await collect(executor, ask(f"r{i}", prompt_of(40, first=i)))
    await idle_load(executor)
    last = block_hashes(as_token_array(prompt_of(40, first=5)), BLOCK)
    events = await events_until(executor, lambda events: {*hexes_of(last)} <= {*hashes_of(events)})
    assert any(isinstance(event, Removed) for event in events)
    # What is told in the same breath may come a little later; a test's time limit bounds the wait.
    while len(resident_of(events)) != executor.load().cached_blocks["gpu"]:
        events += executor.drain_events(0)
        await asyncio.sleep(0.001)


def resident_of(events: Sequence[Event]) -> set[str]:
    """What is there after them; none may take or go on from what is not there."""
    resident: set[str] = set()
    for event in events:
        if isinstance(event, Stored):
            assert event.parent is None or event.parent in resident
            resident.update(event.hashes)
        elif isinstance(event, Removed):
            assert resident.issuperset(event.hashes)
            resident.difference_update(event.hashes)
    return resident


async def test_retention_shows_in_events(executor: Executor) -> None:
    ranges = (TokenRange(0, 8, 100), TokenRange(8, None, 60, 30.0))
    retention = Retention(ranges, decode_retention_priority=20)
    await collect(executor, ask("a", prompt_of(16), max_tokens=12, retention=retention))
    events = await events_until(executor, lambda events: len(hashes_of(events)) >= 3)
    stored = [event for event in events if isinstance(event, Stored)]
    assert [p for event in stored for p in event.retention_priority][:3] == [100, 60, 20]


async def test_low_retention_goes_first(executor: Executor) -> None:
    keep = ask("keep", prompt_of(33), retention=Retention((TokenRange(0, None, 100),)))
    await collect(executor, keep)
    for i in range(2, 7):
        once = Retention((TokenRange(0, None, 0),), decode_retention_priority=0)
        await collect(executor, ask(f"once{i}", prompt_of(60, first=i), retention=once))
    chunks = await collect(executor, ask("again", prompt_of(33)))
    assert chunks[0].cached_tokens is not None
    assert chunks[0].cached_tokens >= 32


async def test_a_cache_full_of_the_highest_priority_still_serves(executor: Executor) -> None:
    """A retention priority ranks; it is no pin."""
    always = Retention((TokenRange(0, None, 100),), decode_retention_priority=100)
    prompts = [prompt_of(61, first=first) for first in range(6)]  # each a third of the cache
    for number, prompt in enumerate(prompts):
        asked = ask(f"always{number}", prompt, retention=always)
        assert len(await tokens_of(executor, asked)) == 5
    await events_until(executor, lambda events: any(isinstance(e, Removed) for e in events))
    chunks = await collect(executor, ask("last", prompts[-1]))
    assert chunks[0].cached_tokens is not None
    assert chunks[0].cached_tokens >= 56
    assert (await collect(executor, ask("first", prompts[0])))[0].cached_tokens == 0


async def test_labels_come_back_in_events(executor: Executor) -> None:
    request = GenerateRequest(
        request_id="a",
        token_ids=array.array("I", prompt_of(9)).tobytes(),
        sampling=SamplingParams(max_tokens=1),
        tier="gold",
        tenant="acme",
    )
    await collect(executor, request)
    [first, *_] = executor.drain_events(1.0)
    assert isinstance(first, Stored)
    assert (first.tier, first.tenant) == ("gold", "acme")


async def test_abort_ends_the_request_and_frees_its_blocks(endless: Executor) -> None:
    async with aclosing(endless.generate(ask("a", prompt_of(20), max_tokens=ENDLESS))) as stream:  # type: ignore[type-var]
        await next_chunk(stream)
        endless.abort("a")
        with pytest.raises(RequestAborted, match="'a'"):
            await read_on(stream)
    endless.abort("a")
    endless.abort("never seen")
    assert_zero(await idle_load(endless))


async def test_closing_the_iterator_aborts(endless: Executor) -> None:
    stream = endless.generate(ask("a", prompt_of(20), max_tokens=ENDLESS))
    await next_chunk(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert_zero(await idle_load(endless))
    assert len(await tokens_of(endless, ask("a", prompt_of(20)))) == 5


async def test_cancelling_the_reader_aborts(endless: Executor) -> None:
    started = asyncio.Event()

    async def read() -> None:
        async for _ in endless.generate(ask("a", prompt_of(20), max_tokens=ENDLESS)):
            started.set()

    reader = asyncio.create_task(read())
    await started.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert_zero(await idle_load(endless))


async def test_load_while_running(endless: Executor) -> None:
    stream = endless.generate(ask("a", prompt_of(20), max_tokens=ENDLESS))
    await next_chunk(stream)
    load = endless.load()
    while not load.iterations:  # figures of time may come a little later
        await next_chunk(stream)
        load = endless.load()
    await stream.aclose()  # type: ignore[attr-defined]
    assert (load.num_active, load.num_queued, load.queued_prefill_tokens) == (1, 0, 0)
    assert load.decode_tokens > 20
    assert 3 <= load.used_blocks["gpu"] <= load.cached_blocks["gpu"] <= 1000
    assert load.total_blocks == {"gpu": 1000, "host": 0}
    [prompt, *_] = load.iterations
    assert (prompt.new_tokens, prompt.num_decodes, prompt.count) == (20, 0, 1)
    assert prompt.ms >= 0


async def test_iterations_are_read_once(executor: Executor) -> None:
    await collect(executor, ask("a", prompt_of(20)))
    num_steps = 0
    while num_steps < 5:
        num_steps += sum(shape.count for shape in executor.load().iterations)
        await asyncio.sleep(0)
    assert num_steps == 5
    assert executor.load().iterations == []


@pytest.mark.parametrize(
    ("prompt", "error", "field"),
    [
        ([], InvalidRequest, "prompt"),
        ([1, 2, 4_000_000_000], InvalidRequest, "prompt[2]"),
        ([1] * 96, PromptTooLong, "prompt"),
    ],
)
async def test_prompts_that_cannot_run(
    prompt: list[int], error: type[InvalidRequest], field: str, executor: Executor
) -> None:
    with pytest.raises(error) as caught:
        await collect(executor, ask("a", prompt))
    assert type(caught.value) is error
    assert caught.value.field == field
    assert_zero(executor.load())
    assert executor.drain_events(0) == []
    assert len(await tokens_of(executor, ask("a", prompt_of(4)))) == 5


async def test_other_refusals(endless: Executor) -> None:
    with pytest.raises(InvalidRequest, match="dp_rank"):
        await collect(endless, ask("a", [1], dp_rank=1))
    with pytest.raises(InvalidRequest, match="logit_bias"):
        await collect(endless, ask("a", [1], logit_bias={4_000_000_000: 1.0}))
    stream = endless.generate(ask("twice", prompt_of(9), max_tokens=ENDLESS))
    await next_chunk(stream)
    with pytest.raises(InvalidRequest, match="request_id: 'twice' is already running"):
        await collect(endless, ask("twice", prompt_of(9)))
    await stream.aclose()  # type: ignore[attr-defined]


async def test_the_longest_prompt_gets_one_token(executor: Executor) -> None:
    chunks = await collect(executor, ask("a", prompt_of(95), max_tokens=9))
    assert len(joined(chunks)) == 1
    assert chunks[-1].finish_reason == "length"


async def test_one_token(executor: Executor) -> None:
    [chunk] = await collect(executor, ask("a", prompt_of(20), max_tokens=1))
    assert len(chunk.token_ids) == 1
    assert (chunk.finish_reason, chunk.cached_tokens) == ("length", 0)


async def test_stop_tokens_are_not_given_out(executor: Executor) -> None:
    tokens = await tokens_of(executor, ask("a", prompt_of(20), max_tokens=12))
    end = tokens[-1]
    stopping = ask("b", prompt_of(20), max_tokens=12, stop_token_ids=(end,))
    chunks = await collect(executor, stopping)
    assert joined(chunks) == tokens[: tokens.index(end)]
    assert (chunks[-1].finish_reason, chunks[-1].stop_token_id) == ("stop", end)


async def test_logprobs(executor: Executor) -> None:
    chunks = await collect(executor, ask("a", prompt_of(20), logprobs=3))
    for chunk in chunks:
        assert len(chunk.logprobs) == len(chunk.token_ids)
        for token, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True):
            assert len(logprob.top) == 3
            values = [value for _, value in logprob.top]
            assert values == sorted(values, reverse=True)
            assert logprob.top[0] == (token, logprob.logprob)
            assert logprob.logprob <= 0
    plain = await collect(executor, ask("b", prompt_of(20)))
    assert all(chunk.logprobs == () for chunk in plain)


async def test_several_sequences(executor: Executor) -> None:
    request = ask("a", prompt_of(20), n=3, temperature=2.0, seed=5, max_tokens=6)
    chunks = await collect(executor, request)
    ends = sorted((c.index, c.finish_reason) for c in chunks if c.finish_reason)
    assert ends == [(0, "length"), (1, "length"), (2, "length")]
    assert [len(joined(chunks, index)) for index in range(3)] == [6, 6, 6]
    assert joined(chunks, 0) != joined(chunks, 1)
    assert {c.cached_tokens for c in chunks if c.finish_reason} == {0}
    assert_zero(await idle_load(executor))


async def test_concurrent_requests_get_what_each_gets_alone(executor: Executor) -> None:
    requests = [ask(f"r{i}", prompt_of(10 + 5 * i, first=i), max_tokens=10) for i in range(6)]
    alone = [await tokens_of(executor, request) for request in requests]
    together = await asyncio.gather(*(tokens_of(executor, request) for request in requests))
    assert together == alone
    assert_zero(await idle_load(executor))


async def test_an_overflow_of_the_buffer_is_told(make: Make) -> None:
    executor = make(event_buffer_size=2)
    for i in range(5):
        await collect(executor, ask(f"r{i}", prompt_of(20, first=i)))
    while executor.load().cached_blocks["gpu"] < 15:  # three for each
        await asyncio.sleep(0.001)
    await idle_load(executor)
    events = executor.drain_events(1.0)
    assert [type(event) for event in events] == [Lost, Stored, Stored]
    assert isinstance(events[0], Lost)
    assert (events[0].first, events[0].reason) == (0, "buffer_overflow")
    assert executor.drain_events(0) == []


async def test_drain_waits_for_the_first_event(executor: Executor) -> None:
    loop = asyncio.get_running_loop()
    waiting = loop.run_in_executor(None, executor.drain_events, 60.0)
    await collect(executor, ask("a", prompt_of(20)))
    [first, *_] = await waiting
    assert isinstance(first, Stored)


async def test_close_fails_what_waits_and_what_comes(endless: Executor) -> None:
    endless.check_health()
    streams = [endless.generate(ask(f"r{i}", prompt_of(20), max_tokens=ENDLESS)) for i in range(2)]
    for stream in streams:
        await next_chunk(stream)
    endless.close()
    endless.close()
    for stream in streams:
        with pytest.raises(RequestAborted):
            await read_on(stream)
    with pytest.raises(RequestAborted):
        await collect(endless, ask("late", prompt_of(20)))
    assert_zero(endless.load())
    assert issubclass(RequestAborted, ExecutorError)


async def test_close_wakes_the_drain(executor: Executor) -> None:
    loop = asyncio.get_running_loop()
    waiting = loop.run_in_executor(None, executor.drain_events, 60.0)
    await asyncio.sleep(0)
    executor.close()
    assert await waiting == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 7},
    ],
)
async def test_a_resumed_request_goes_on_as_if_undisturbed(
    executor: Executor, options: dict[str, Any]
) -> None:
    whole = await tokens_of(executor, ask("whole", prompt_of(20), max_tokens=12, **options))
    rest = ask("rest", [*prompt_of(20), *whole[:5]], max_tokens=12, **options)
    chunks = await collect(executor, msgspec.structs.replace(rest, num_resumed=5))
    assert len(joined(chunks)) == 7
    if executor.info.name == "trtllm":
        return  # it counts penalties from the resumed prompt on and cannot wind a seed forward
    assert joined(chunks) == whole[5:]
    assert chunks[-1].finish_reason == "length"
    assert chunks[0].cached_tokens == chunks[-1].cached_tokens
    assert_zero(await idle_load(executor))


@pytest.mark.parametrize(
    ("num_resumed", "n", "max_tokens"), [(3, 1, 3), (20, 1, 30), (-1, 1, 30), (3, 2, 30)]
)
async def test_what_cannot_be_resumed(
    executor: Executor, num_resumed: int, n: int, max_tokens: int
) -> None:
    request = ask("q", prompt_of(20), n=n, max_tokens=max_tokens)
    with pytest.raises(InvalidRequest, match="num_resumed"):
        await collect(executor, msgspec.structs.replace(request, num_resumed=num_resumed))
    assert_zero(executor.load())
