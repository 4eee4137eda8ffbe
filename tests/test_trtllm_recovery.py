"""The TensorRT-LLM executor on the double, when something is lost, fails half-way or ends early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from controllers.errors import RequestAborted
from controllers.events import Lost, Stored
from controllers.retention import Retention, TokenRange
from serve_app.engine.build import EngineLimits
from serve_app.executors.base import TokenChunk
from serve_app.executors.trtllm_executor import TrtllmExecutor
from tests.test_trtllm_executor import (
    ENDLESS,
    LIMITS,
    ask,
    cached_of,
    collect,
    events_until,
    has_stored,
    hashes,
    next_chunk,
    prompt_of,
)
from tests.trtllm_double import installed
from tests.trtllm_executors import NEW, OLD, make_trtllm

Make = Callable[..., TrtllmExecutor]


@pytest.fixture
def make() -> Iterator[Make]:
    """Executors on a version of the double, closed at the end."""
    with ExitStack() as stack:

        def build(version: str, limits: dict[str, Any] | None = None, **trtllm: Any) -> Any:
            stack.enter_context(installed(version=version, decode_ms=1.0, memory_blocks=4096))
            given = EngineLimits(**{**LIMITS, "max_batched_tokens": 64, **(limits or {})})
            executor = make_trtllm(Path(), given, **trtllm)
            stack.callback(executor.close)
            return executor

        yield build


def faults() -> Any:
    from tensorrt_llm.double import running

    [llm] = running()
    return llm.faults


async def idle(executor: TrtllmExecutor) -> None:
    """A test's time limit bounds the wait."""
    while executor.load().num_active + executor.load().num_queued:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("salt", [0, 7])
async def test_a_prefix_whose_event_was_lost_is_told_when_it_is_used_again(
    salt: int, version: str, make: Make
) -> None:
    executor = make(version)
    prompt = prompt_of(40)
    faults().lose_events(1)
    await collect(executor, ask("a", prompt, 9, salt=salt))
    assert cached_of(await collect(executor, ask("b", prompt, 9, salt=salt))) == 32
    events = await events_until(executor, has_stored(*hashes(prompt[:32], salt)))
    [lost] = [event for event in events if isinstance(event, Lost)]
    assert (lost.reason, lost.first) == ("engine_buffer_overflow", lost.last)
    translator = executor._ranks[0].translator
    assert translator.counts.num_learned == 4
    # What was stored below it after the loss is known with it.
    told = [h for event in events if isinstance(event, Stored) for h in event.hashes]
    assert len(told) == len(set(told))


async def test_before_1_3_concurrent_requests_do_not_break_the_events(make: Make) -> None:
    """The second starts when the first has stored the prefix, which nobody has read yet."""
    executor = make(OLD, {"max_batch_size": 1}, poll_interval_s=0.1)
    prompt = prompt_of(33)
    asked = [
        collect(executor, ask(name, prompt, 4, retention=Retention((TokenRange(0, None, given),))))
        for name, given in (("a", 90), ("b", 50))
    ]
    first, second = await asyncio.gather(*asked)
    assert (cached_of(first), cached_of(second)) == (0, 32)
    events = await events_until(executor, has_stored(*hashes(prompt[:32])))
    assert not any(isinstance(event, Lost) for event in events)
    assert executor._ranks[0].translator.counts.num_lost_events == 0


async def test_a_request_that_ends_before_it_began_leaves_nothing(make: Make) -> None:
    executor = make(NEW)
    stream = executor.generate(ask("a", prompt_of(20), ENDLESS))
    waiter = asyncio.ensure_future(next_chunk(stream))
    while not executor._runs._key_to_runs:
        await asyncio.sleep(0)
    executor.close()  # in the same turn of the loop, before the task that follows it has begun
    with pytest.raises(RequestAborted):
        await waiter
    assert (len(executor._books), executor._runs._key_to_runs) == (0, {})


async def test_an_abort_that_fails_is_bounded_as_well(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    executor = make(NEW, abort_timeout_s=0.1)
    stream = executor.generate(ask("a", prompt_of(20), ENDLESS))
    async with aclosing(stream):  # type: ignore[type-var]
        await next_chunk(stream)
        [[run]] = executor._runs._key_to_runs.values()
        faults().hang()

        def refuse() -> None:
            raise RuntimeError("busy")

        run.handle.abort = refuse  # type: ignore[method-assign]
    await idle(executor)
    assert "did not let go of a request within 0.1 s of its abort" in caplog.text
    executor.check_health()
    faults().resume()


async def test_an_engine_that_fails_while_it_shuts_down(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make(NEW)
    engine = executor._engine
    assert engine is not None
    shutdown = engine.shutdown

    def fail() -> None:
        shutdown()
        raise RuntimeError("MPI is gone")

    monkeypatch.setattr(engine, "shutdown", fail)
    with caplog.at_level(logging.ERROR):
        executor.close()
    assert "TensorRT-LLM failed while it shut down" in caplog.text
    assert "MPI is gone" in caplog.text


async def test_two_executors_in_a_process_know_their_own_requests(make: Make) -> None:
    first = make(NEW)
    second = make_trtllm(Path(), EngineLimits(**{**LIMITS, "max_batched_tokens": 64}))
    try:
        prompts = [prompt_of(40, first=at) for at in (1, 2)]
        executors = (first, second)
        chunks: list[list[TokenChunk]] = await asyncio.gather(
            *(collect(e, ask("same id", p, 9)) for e, p in zip(executors, prompts, strict=True))
        )
        assert [cached_of(found) for found in chunks] == [0, 0]
        for executor, prompt in zip(executors, prompts, strict=True):
            events = await events_until(executor, has_stored(*hashes(prompt)))
            told = {h for event in events if isinstance(event, Stored) for h in event.hashes}
            assert hashes(prompt)[0] in told
            assert executor.load().prompt_tokens == 40
        second.close()
        assert cached_of(await collect(first, ask("again", prompts[0]))) == 39 // 8 * 8
        with pytest.raises(RequestAborted):
            await collect(second, ask("late", prompts[1]))
    finally:
        second.close()
