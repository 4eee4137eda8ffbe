from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controllers.errors import ExecutorDead, RequestAborted
from serve_app.engine.build import EngineLimits
from serve_app.engine.scheduler import Scheduled
from serve_app.engine.scripted_model import Timing
from serve_app.engine.sequence import Sequence
from serve_app.executors.scripted import Faults, ScriptedExecutor
from serve_app.tokenizer import ByteTokenizer
from tests.engine_fixture import request

LIMITS = EngineLimits(block_size=8, num_gpu_blocks=64)
PROMPT = list(b"what is a block?")
MARKER = request("m", list(b"boom")).token_ids


def make(**options: Any) -> ScriptedExecutor:
    return ScriptedExecutor(LIMITS, **options)


async def tokens_of(executor: ScriptedExecutor, request_id: str, **options: Any) -> list[int]:
    asked = request(request_id, options.pop("prompt", PROMPT), **options)
    return [token async for chunk in executor.generate(asked) for token in chunk.token_ids]


async def test_replies_are_readable() -> None:
    text = ByteTokenizer().decode(await tokens_of(make(), "a", max_tokens=60))
    assert len(text) == 60
    assert text.isprintable()
    assert " the " in text or " it " in text


async def test_it_may_end_by_itself() -> None:
    executor = make(eos_after=7)
    asked = request("a", PROMPT, max_tokens=60)
    chunks = [chunk async for chunk in executor.generate(asked)]
    assert sum(len(chunk.token_ids) for chunk in chunks) == 7
    assert (chunks[-1].finish_reason, chunks[-1].stop_token_id) == ("stop", 257)
    assert len(await tokens_of(executor, "b", max_tokens=60, ignore_eos=True)) == 60
    assert len(await tokens_of(executor, "c", max_tokens=60, min_tokens=9)) == 9


def test_duration_of_a_step() -> None:
    timing = Timing(prefill_ms=2.0, prefill_ms_per_token=0.5, decode_ms=3.0)
    prompt = Sequence(request("a", PROMPT), block_size=8)
    decoding = Sequence(request("b", PROMPT), block_size=8)
    decoding.tokens.append(1)
    decoding.num_computed = len(PROMPT)
    decode = Scheduled(decoding, 1, True)
    assert timing.duration_s([decode, decode]) == 0.003
    assert timing.duration_s([decode, Scheduled(prompt, 10, False)]) == 0.007


async def test_pretended_time_passes_slower_after_a_marker() -> None:
    faults = Faults(slow_on=MARKER, slow_factor=4.0)
    executor = make(timing=Timing(prefill_ms=4.0, decode_ms=2.0), faults=faults)
    for prompt, factor in ((PROMPT, 1), (list(b"now boom"), 4), (PROMPT, 4)):
        await asyncio.sleep(0.001)  # so that it has noticed that nothing runs
        started_at = asyncio.get_running_loop().time()
        assert len(await tokens_of(executor, "a", prompt=prompt, max_tokens=5)) == 5
        took_ms = (asyncio.get_running_loop().time() - started_at) * 1000
        assert took_ms > factor * (4.0 + 4 * 2.0) - 1  # timers fire early by the clock's resolution


async def test_an_abort_while_time_passes_waits_for_the_step() -> None:
    executor = make(timing=Timing(prefill_ms=50.0, decode_ms=1.0))
    reader = asyncio.create_task(tokens_of(executor, "a"))
    while not executor.load().num_active:
        await asyncio.sleep(0)
    executor.abort("a")
    with pytest.raises(RequestAborted):
        await reader
    assert await tokens_of(executor, "a", prompt=[1, 2, 3]) != []
    assert executor.load().used_blocks == {"gpu": 0, "host": 0}


async def test_death_fails_everybody() -> None:
    executor = make(faults=Faults(die_on=MARKER), timing=Timing(decode_ms=5.0))
    other = asyncio.create_task(tokens_of(executor, "other", max_tokens=1000, prompt=[1]))
    while not executor.load().num_active:
        await asyncio.sleep(0)
    executor.check_health()
    with pytest.raises(ExecutorDead, match="told to by a prompt"):
        await tokens_of(executor, "killer", prompt=list(b"now boom"))
    with pytest.raises(ExecutorDead):
        await other
    with pytest.raises(ExecutorDead):
        await tokens_of(executor, "late")
    with pytest.raises(ExecutorDead):
        executor.check_health()
    executor.close()
    with pytest.raises(ExecutorDead):
        executor.check_health()


async def test_a_hang_is_found() -> None:
    executor = make(faults=Faults(hang_on=MARKER), hang_timeout_s=0.0)
    executor.check_health()
    reader = asyncio.create_task(tokens_of(executor, "a", prompt=list(b"boom")))
    while not executor.load().num_active:
        await asyncio.sleep(0)
    with pytest.raises(ExecutorDead, match="a step has been running"):
        executor.check_health()
    assert not reader.done()
    executor.close()
    with pytest.raises(RequestAborted):
        await reader
