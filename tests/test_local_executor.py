from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from controllers.errors import ExecutorDead, RequestAborted, SettingsError
from infra.settings import to_settings
from serve_app.engine.batch import Batch, FloatArray, KvPool
from serve_app.engine.build import EngineLimits
from serve_app.engine.model_numpy import NumpyModel
from serve_app.executors.base import GenerateRequest, TokenChunk
from serve_app.executors.factory import create_executor
from serve_app.executors.local import LocalExecutor
from serve_app.executors.scripted import ScriptedExecutor
from tests.engine_fixture import prompt_of, request, tiny_model

LIMITS = EngineLimits(block_size=8, num_gpu_blocks=32, max_batch_size=4, max_batched_tokens=32)


class HeldModel:
    """The tiny model; the first `num_free` passes run, later ones wait for `go`, or fail."""

    def __init__(self, model: NumpyModel, num_free: int) -> None:
        self._model = model
        self._num_free = num_free
        self.is_held = threading.Event()
        self.go = threading.Event()
        self.has_crashed = False

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def max_seq_len(self) -> int:
        return self._model.max_seq_len

    @property
    def attention_window(self) -> int | None:
        return self._model.attention_window

    @property
    def pool(self) -> KvPool:
        return self._model.pool

    def forward(self, batch: Batch) -> FloatArray:
        self._num_free -= 1
        if self._num_free < 0:
            self.is_held.set()
            assert self.go.wait(60)
            if self.has_crashed:
                raise RuntimeError("the GPU fell off the bus")
        return self._model.forward(batch)


def make(
    directory: Path, num_free: int, hang_timeout_s: float = 60.0
) -> tuple[LocalExecutor, HeldModel]:
    held = HeldModel(tiny_model(directory, LIMITS), num_free)
    executor = LocalExecutor(
        held, LIMITS, eos_ids=(), model_name="tiny", hang_timeout_s=hang_timeout_s
    )
    return executor, held


async def collect(executor: LocalExecutor, asked: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in executor.generate(asked)]


async def until_held(held: HeldModel) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, held.is_held.wait, 60)


async def test_a_crash_fails_everybody(tmp_path: Path) -> None:
    executor, held = make(tmp_path, num_free=2)
    readers = [asyncio.create_task(collect(executor, request(n, prompt_of(9)))) for n in "ab"]
    await until_held(held)
    executor.check_health()
    held.has_crashed = True
    held.go.set()
    for reader in readers:
        with pytest.raises(ExecutorDead, match="the GPU fell off the bus"):
            await reader
    with pytest.raises(ExecutorDead, match="the GPU fell off the bus"):
        executor.check_health()
    with pytest.raises(ExecutorDead):
        await collect(executor, request("c", prompt_of(9)))
    executor.close()


async def test_a_hang_is_found_and_close_ends_it(tmp_path: Path) -> None:
    executor, held = make(tmp_path, num_free=0, hang_timeout_s=0.0)
    executor.check_health()
    reader = asyncio.create_task(collect(executor, request("a", prompt_of(9))))
    await until_held(held)
    with pytest.raises(ExecutorDead, match="a step has been running"):
        executor.check_health()
    held.go.set()
    await asyncio.get_running_loop().run_in_executor(None, executor.close)
    with pytest.raises(RequestAborted):
        await reader
    executor.check_health()


async def test_a_request_that_the_engine_does_not_know_yet_is_queued(tmp_path: Path) -> None:
    executor, held = make(tmp_path, num_free=0)
    first = asyncio.create_task(collect(executor, request("a", prompt_of(9))))
    await until_held(held)
    second = asyncio.create_task(collect(executor, request("b", prompt_of(9))))
    while executor.load().num_queued < 1:
        await asyncio.sleep(0)
    load = executor.load()
    assert (load.num_active, load.num_queued) == (1, 1)
    held.go.set()
    chunks = await asyncio.gather(first, second)
    assert [sum(len(c.token_ids) for c in answer) for answer in chunks] == [12, 12]
    executor.close()


async def test_an_aborted_id_may_come_again_at_once(tmp_path: Path) -> None:
    executor, held = make(tmp_path, num_free=1)
    stream = executor.generate(request("a", prompt_of(9), max_tokens=100))
    await stream.__anext__()
    await until_held(held)
    await stream.aclose()  # type: ignore[attr-defined]
    again = asyncio.create_task(collect(executor, request("a", prompt_of(9, seed=4), max_tokens=3)))
    await asyncio.sleep(0)
    held.go.set()
    tokens = [token for chunk in await again for token in chunk.token_ids]
    fresh, _ = make(tmp_path, num_free=1000)
    expected = await collect(fresh, request("x", prompt_of(9, seed=4), max_tokens=3))
    assert tokens == [token for chunk in expected for token in chunk.token_ids]
    executor.close()
    fresh.close()


def test_the_factory_follows_the_settings() -> None:
    wanted = {"kind": "scripted", "block_size": 16, "num_gpu_blocks": 99, "max_batch_size": 3}
    settings = to_settings({"executor": wanted, "model": {"name": "fake"}})
    executor = create_executor(settings, None)
    assert isinstance(executor, ScriptedExecutor)
    info = executor.info
    assert (info.name, info.model, info.block_size) == ("scripted", "fake", 16)
    assert (info.num_blocks, info.max_batch_size) == ({"gpu": 99, "host": 0}, 3)
    with pytest.raises(SettingsError, match="model.path"):
        create_executor(to_settings({"executor": {"kind": "local"}}), None)
