"""The TensorRT-LLM executor on the double of the package: what the contract suite does not ask."""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from controllers.blocks import as_token_array, block_hashes
from controllers.errors import (
    ExecutorDead,
    InvalidRequest,
    PromptTooLong,
    RequestAborted,
    SettingsError,
)
from controllers.events import Event, Lost, Removed, Stored, Updated, hexes_of
from controllers.retention import Retention, TokenRange
from serve_app.engine.build import EngineLimits
from serve_app.executors import trtllm_probe
from serve_app.executors.base import GenerateRequest, SamplingParams, TokenChunk
from serve_app.executors.trtllm import open_engine
from serve_app.executors.trtllm_executor import TrtllmExecutor
from tests.trtllm_double import installed
from tests.trtllm_executors import DOUBLE_FACTS, NEW, OLD, make_trtllm, trtllm_settings

B = 8
LIMITS = {"block_size": B, "num_gpu_blocks": 64, "max_seq_len": 256, "max_batch_size": 4}
ENDLESS = 200

Make = Callable[..., TrtllmExecutor]


class Double:
    """Makes executors on a version of the double, and closes them."""

    def __init__(self, stack: ExitStack, version: str, **settings: Any) -> None:
        settings = {"memory_blocks": 4096, **settings}
        self.package = stack.enter_context(installed(version=version, **settings))
        self._stack = stack

    @property
    def faults(self) -> Any:
        """Of the one engine that runs."""
        from tensorrt_llm.double import running

        [llm] = running()
        return llm.faults

    def make(self, limits: dict[str, Any] | None = None, **trtllm: Any) -> TrtllmExecutor:
        given = EngineLimits(**{**LIMITS, "max_batched_tokens": 64, **(limits or {})})
        return self.keep(make_trtllm(Path(), given, **trtllm))

    def keep(self, executor: TrtllmExecutor) -> TrtllmExecutor:
        self._stack.callback(executor.close)
        return executor


@pytest.fixture
def double() -> Iterator[Callable[..., Double]]:
    with ExitStack() as stack:
        yield lambda version=NEW, **settings: Double(stack, version, **settings)


def ask(
    request_id: str, prompt: Sequence[int], max_tokens: int = 5, **options: Any
) -> GenerateRequest:
    names = ("retention", "salt", "dp_rank", "adapter", "tier", "tenant", "service_rank")
    extra = {name: options.pop(name) for name in names if name in options}
    sampling = {"temperature": 0.0, "ignore_eos": True, **options}
    return GenerateRequest(
        request_id=request_id,
        token_ids=array.array("I", prompt).tobytes(),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        **extra,
    )


def prompt_of(num_tokens: int, first: int = 1) -> list[int]:
    return [(first + 3 * i) % 90 for i in range(num_tokens)]


def hashes(tokens: Sequence[int], salt: int = 0) -> list[str]:
    return hexes_of(block_hashes(as_token_array(tokens), B, salt))


async def collect(executor: TrtllmExecutor, request: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in executor.generate(request)]


def cached_of(chunks: Sequence[TokenChunk]) -> int | None:
    return chunks[0].cached_tokens


def tokens_of(chunks: Sequence[TokenChunk], index: int = 0) -> list[int]:
    return [token for chunk in chunks if chunk.index == index for token in chunk.token_ids]


async def events_until(
    executor: TrtllmExecutor, is_complete: Callable[[list[Event]], bool], dp_rank: int = 0
) -> list[Event]:
    events: list[Event] = []
    while not is_complete(events):
        events += executor.drain_events(0, dp_rank)
        await asyncio.sleep(0.001)
    return events


def has_stored(*wanted: str) -> Callable[[list[Event]], bool]:
    def is_complete(events: list[Event]) -> bool:
        told = {h for event in events if isinstance(event, Stored) for h in event.hashes}
        return told.issuperset(wanted)

    return is_complete


async def next_chunk(stream: AsyncIterator[TokenChunk]) -> TokenChunk:
    return await stream.__anext__()


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            OLD,
            {
                "events": True,
                "retention": True,
                "retention_of_cached_blocks": False,
                "salt_in_events": False,
                "known_hashes": True,
                "service_ranks": False,
                "adapters": False,
            },
        ),
        (
            NEW,
            {
                "events": True,
                "retention": True,
                "retention_of_cached_blocks": True,
                "salt_in_events": True,
                "known_hashes": True,
                "service_ranks": True,
                "adapters": False,
            },
        ),
    ],
)
def test_what_a_version_gives(version: str, expected: dict[str, bool], double: Any) -> None:
    executor = double(version).make()
    info = executor.info
    assert info.features == expected
    assert (info.name, info.version, info.model) == ("trtllm", version, "double")
    assert (info.num_blocks, info.max_seq_len) == ({"gpu": 64, "host": 0}, 256)
    assert executor.drain_events(0) == []  # nothing of the probe
    assert executor.load().iterations == []
    executor.check_health()


def test_arguments_that_a_version_lacks_are_named(
    double: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    double(OLD)
    from tensorrt_llm.llmapi import TorchLlmArgs

    monkeypatch.delitem(TorchLlmArgs.model_fields, "max_input_len")
    with caplog.at_level(logging.WARNING):
        settings = trtllm_settings(EngineLimits(**LIMITS))
        open_engine(settings, Path("m"), DOUBLE_FACTS, (257,)).shutdown()
    assert "TensorRT-LLM 1.2.1 has no LLM.max_input_len: left out" in caplog.text


def ignoring(limits: EngineLimits, **trtllm: Any) -> TrtllmExecutor:
    """An engine with the V2 manager behind settings that ask for retention."""
    settings = trtllm_settings(limits, **trtllm)
    other = trtllm_settings(limits, enable_retention=False)
    return TrtllmExecutor(
        settings, DOUBLE_FACTS, lambda: open_engine(other, Path("m"), DOUBLE_FACTS, ()), eos_ids=()
    )


async def test_an_engine_that_ignores_retention_is_found_out(
    double: Any, caplog: pytest.LogCaptureFixture
) -> None:
    on = double(NEW)
    executor = on.keep(ignoring(EngineLimits(**LIMITS)))
    assert not executor.info.features["retention"]
    assert executor.info.features["events"]
    assert "TensorRT-LLM ignores retention" in caplog.text
    await collect(executor, ask("a", prompt_of(20)))
    await events_until(executor, has_stored(*hashes(prompt_of(16))))


def test_required_retention(double: Any) -> None:
    double(NEW)
    with pytest.raises(SettingsError, match="require_retention: TensorRT-LLM did not keep a block"):
        ignoring(EngineLimits(**LIMITS), require_retention=True)
    from tensorrt_llm.double import running

    assert running() == []


def test_an_engine_that_does_not_start(double: Any) -> None:
    on = double(NEW, fail_start="CUDA out of memory")
    with pytest.raises(SettingsError, match="TensorRT-LLM did not start: CUDA out of memory"):
        on.make()


def test_an_engine_that_does_not_answer_its_first_request(double: Any) -> None:
    first = 259 - 1  # of the probe's prompt
    on = double(NEW, hang_on=(first,))
    with pytest.raises(ExecutorDead, match="did not answer its first request within 0.2 s"):
        on.make(start_timeout_s=0.2, close_timeout_s=0.2)


@pytest.mark.parametrize("is_proxy", [False, True])
async def test_death_fails_everything_that_waits(is_proxy: bool, double: Any) -> None:
    """Behind a proxy the engine itself tells nobody."""
    on = double(NEW, is_proxy=is_proxy, decode_ms=1.0)
    executor = on.make(hang_timeout_s=60.0)
    streams = [executor.generate(ask(f"r{i}", prompt_of(20), ENDLESS)) for i in range(3)]
    for stream in streams:
        await next_chunk(stream)
    on.faults.die("CUDA error: an illegal memory access was encountered")
    for stream in streams:
        with pytest.raises(ExecutorDead):
            async for _ in stream:
                pass
    with pytest.raises(ExecutorDead):
        executor.check_health()
    with pytest.raises(ExecutorDead):
        await collect(executor, ask("late", prompt_of(20)))
    assert executor.load().num_active == 0
    assert executor.drain_events(60.0) is not None  # does not wait any more


async def test_an_idle_engine_that_dies_is_noticed(double: Any) -> None:
    on = double(NEW)
    executor = on.make()
    on.faults.die()
    await until_dead(executor)


async def until_dead(executor: TrtllmExecutor) -> None:
    """A test's time limit bounds the wait."""
    with contextlib.suppress(ExecutorDead):
        while True:
            executor.check_health()
            await asyncio.sleep(0.01)


async def test_an_engine_that_hangs_is_dead(double: Any) -> None:
    on = double(NEW, decode_ms=1.0)
    executor = on.make(close_timeout_s=1.0)
    stream = executor.generate(ask("a", prompt_of(20), ENDLESS))
    await next_chunk(stream)
    on.faults.hang()
    executor._thread._hang_timeout_s = 0.3  # only now: before, a busy machine would be a hang
    with pytest.raises(ExecutorDead, match="has not said anything for|has not answered a call"):
        async for _ in stream:
            pass
    with pytest.raises(ExecutorDead):
        executor.check_health()
    on.faults.resume()


async def test_a_prompt_that_the_engine_finds_too_long(double: Any) -> None:
    executor = double(OLD).make(enable_chunked_prefill=False)
    with pytest.raises(PromptTooLong, match="should not exceed max_num_tokens") as caught:
        await collect(executor, ask("a", prompt_of(100)))
    assert caught.value.code == "context_length_exceeded"
    executor.check_health()
    assert len(tokens_of(await collect(executor, ask("a", prompt_of(20))))) == 5
    assert executor.load().num_active == 0


async def test_a_loss_is_told_at_its_place(double: Any) -> None:
    on = double(NEW)
    executor = on.make({"num_gpu_blocks": 12})
    first, second, third = (prompt_of(40, first=at) for at in (1, 2, 3))
    await collect(executor, ask("a", first, 1))
    await events_until(executor, has_stored(*hashes(first)))
    on.faults.lose_events(1)
    await collect(executor, ask("b", second, 1))  # its first event is never seen
    await collect(executor, ask("c", third, 1))
    events = await events_until(executor, has_stored(*hashes(third)))
    lost = [event for event in events if isinstance(event, Lost)]
    assert len(lost) == 1
    assert (lost[0].reason, lost[0].first) == ("engine_buffer_overflow", lost[0].last)
    assert events.index(lost[0]) < len(events) - 1
    executor.check_health()


async def test_ranks_are_apart(double: Any) -> None:
    executor = double(NEW).make(
        tensor_parallel_size=2, enable_attention_dp=True, orchestrator="mpi"
    )
    assert executor.info.num_dp_ranks == 2
    for rank, first in ((0, 1), (1, 2)):
        prompt = prompt_of(20, first=first)
        await collect(executor, ask(f"r{rank}", prompt, dp_rank=rank))
        await events_until(executor, has_stored(*hashes(prompt[:16])), dp_rank=rank)
    assert cached_of(await collect(executor, ask("x", prompt_of(20, first=1), dp_rank=1))) == 0
    assert cached_of(await collect(executor, ask("y", prompt_of(20, first=1), dp_rank=0))) == 16
    loads = [executor.load(rank) for rank in (0, 1)]
    assert [(load.hit_tokens, load.prompt_tokens) for load in loads] == [(16, 40), (0, 40)]
    with pytest.raises(InvalidRequest, match="dp_rank: is 2, this executor's last rank is 1"):
        await collect(executor, ask("z", prompt_of(20), dp_rank=2))


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_salts_and_adapters_have_hashes_of_their_own(
    version: str, double: Any, tmp_path: Path
) -> None:
    """One prompt in four namespaces, told apart in both schemas."""
    executor = double(version).make(loras={"sql": str(tmp_path), "law": str(tmp_path)})
    assert executor.info.features["adapters"]
    prompt = prompt_of(20)
    namespaces: list[dict[str, Any]] = [
        {},
        {"salt": 7},
        {"salt": 8, "adapter": "sql"},
        {"salt": 9, "adapter": "law"},
    ]
    for at, options in enumerate(namespaces):
        assert cached_of(await collect(executor, ask(str(at), prompt, **options))) == 0
    wanted = [h for o in namespaces for h in hashes(prompt[:16], o.get("salt", 0))]
    await events_until(executor, has_stored(*wanted))
    for at, options in enumerate(namespaces):
        assert cached_of(await collect(executor, ask(str(at), prompt, **options))) == 16
    with pytest.raises(InvalidRequest, match="model: this executor has no adapter 'poem'"):
        await collect(executor, ask("x", prompt, adapter="poem", salt=3))


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_another_retention_for_cached_blocks(version: str, double: Any) -> None:
    """1.2 would lose the events; there, blocks keep what they were stored with."""
    executor = double(version).make()
    prompt = prompt_of(33)
    for name, priority in (("a", 50), ("b", 90)):
        retention = Retention((TokenRange(0, None, priority),), priority)
        await collect(executor, ask(name, prompt, 16, retention=retention))
        while executor.load().cached_blocks["gpu"] < 6:  # known to be cached
            await asyncio.sleep(0.001)
    await collect(executor, ask("last", prompt_of(20, first=5)))
    events = await events_until(executor, has_stored(*hashes(prompt_of(16, first=5))))
    updated = [event for event in events if isinstance(event, Updated)]
    assert not any(isinstance(event, Lost) for event in events)
    if version == OLD:
        assert updated == []
    else:
        assert [(e.old_retention_priority, e.retention_priority) for e in updated] == [(50, 90)]
        assert updated[0].hashes[:4] == hashes(prompt[:32])


async def test_copies_of_a_greedy_sequence_are_not_computed(double: Any) -> None:
    executor = double(NEW).make()
    chunks = await collect(executor, ask("a", prompt_of(20), n=3))
    alone = tokens_of(await collect(executor, ask("b", prompt_of(20))))
    assert [tokens_of(chunks, index) for index in range(3)] == [alone] * 3
    assert {c.finish_reason for c in chunks if c.index == 2} == {None, "length"}
    assert [c.queue_ms is not None for c in chunks[:3]] == [True, False, False]


async def test_siblings_share_the_prompt_and_have_seeds(double: Any) -> None:
    executor = double(NEW).make()
    options = {"temperature": 2.0, "n": 3}
    first = await collect(executor, ask("a", prompt_of(33), seed=5, **options))
    again = await collect(executor, ask("b", prompt_of(33), seed=6, temperature=2.0))
    assert tokens_of(first, 1) == tokens_of(again)
    load = executor.load()
    assert (load.prompt_tokens, load.hit_tokens) == (66, 32)


@pytest.mark.parametrize("has_end_id", [True, False])
async def test_the_models_own_end(has_end_id: bool, double: Any) -> None:
    executor = double(NEW, eos_after=3, has_end_id_in_output=has_end_id).make()
    chunks = await collect(executor, ask("a", prompt_of(20), 9, ignore_eos=False))
    assert len(tokens_of(chunks)) == 3
    assert (chunks[-1].finish_reason, chunks[-1].stop_token_id) == ("stop", 257)
    chunks = await collect(executor, ask("b", prompt_of(20), 9))
    assert len(tokens_of(chunks)) == 9


async def test_a_request_that_is_left_is_let_go_of(double: Any) -> None:
    executor = double(NEW, decode_ms=1.0).make()
    streams = [executor.generate(ask(f"r{i}", prompt_of(20), ENDLESS)) for i in range(6)]
    for stream in streams[:4]:
        await next_chunk(stream)
    tasks = [asyncio.create_task(next_chunk(stream)) for stream in streams[4:]]
    while executor.load().num_queued < 2:
        await asyncio.sleep(0)
    load = executor.load()
    assert (load.num_active, load.num_queued) == (4, 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    while executor.load().num_active + executor.load().num_queued:
        await asyncio.sleep(0.001)
    executor.check_health()


async def test_impossible_figures_are_clamped(double: Any) -> None:
    on = double(NEW, has_impossible_stats=True, decode_ms=1.0)
    executor = on.make()
    async with aclosing(executor.generate(ask("a", prompt_of(20), ENDLESS))) as stream:  # type: ignore[type-var]
        iterations = []
        while not iterations:
            await next_chunk(stream)
            load = executor.load()
            iterations = load.iterations
            assert 0 <= load.used_blocks["gpu"] <= load.cached_blocks["gpu"] <= 64


async def test_empty_items_between_events(double: Any) -> None:
    executor = double(NEW, falsy_event_every=1).make()
    await collect(executor, ask("a", prompt_of(20)))
    await events_until(executor, has_stored(*hashes(prompt_of(16))))


async def test_windows(double: Any) -> None:
    """Only the largest window's blocks are told."""
    executor = double(NEW).make(max_attention_window=[64, 256])
    prompt = prompt_of(40)
    await collect(executor, ask("a", prompt, 9))
    events = await events_until(executor, has_stored(*hashes(prompt)))
    told = [h for event in events if isinstance(event, Stored) for h in event.hashes]
    assert len(told) == len(set(told))
    assert not any(isinstance(event, (Lost, Removed)) for event in events)


async def test_close_is_bounded_when_the_engine_does_not_shut_down(
    double: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executor = double(NEW).make(close_timeout_s=0.2)
    engine = executor._engine
    assert engine is not None
    shutdown, is_asked = engine.shutdown, threading.Event()
    monkeypatch.setattr(engine, "shutdown", is_asked.wait)
    executor.close()
    assert "TensorRT-LLM did not shut down within 0.1 s" in caplog.text
    with pytest.raises(RequestAborted):
        await collect(executor, ask("a", prompt_of(20)))
    is_asked.set()
    shutdown()


async def test_an_engine_without_getters_serves_all_the_same(
    double: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with an orchestrator that does not pass them on."""

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError

    on = double(NEW)
    monkeypatch.setattr(trtllm_probe, "EVENTS_TIMEOUT_S", 0.05)
    monkeypatch.setattr(on.package.LLM, "get_kv_cache_events", missing)
    monkeypatch.setattr(on.package.LLM, "get_stats", missing)
    executor = on.make()
    assert not executor.info.features["events"]
    assert "TensorRT-LLM tells nothing of its cache" in caplog.text
    assert len(tokens_of(await collect(executor, ask("a", prompt_of(20))))) == 5
    assert executor.info.num_blocks == {"gpu": 64, "host": 0}
    executor.check_health()
