"""The `openai` package, unchanged, against the edge behind a real HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import openai
import pytest
import uvicorn

from serve_app.engine.build import EngineLimits
from serve_app.executors.scripted import ScriptedExecutor
from tests.edge_fixtures import MODEL, PlannedExecutor, TestEdge

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


@contextlib.asynccontextmanager
async def served(edge: TestEdge) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of `edge` on a port of this machine."""
    config = uvicorn.Config(edge.app, lifespan="off", ws="none", log_level="warning")
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            yield client
        server.should_exit = True
        await task


async def test_chat_in_one_piece_and_streamed() -> None:
    async with served(TestEdge()) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=12, n=2, logprobs=True, top_logprobs=1
        )
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=12, n=2, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        texts, usage = {0: "", 1: ""}, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    assert {c.index: c.message.content for c in answer.choices} == texts
    assert answer.usage is not None
    assert usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (usage.total_tokens, usage.completion_tokens) == (45, 24)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content) == 12


async def test_completions_models_and_our_extensions() -> None:
    executor = ScriptedExecutor(EngineLimits(block_size=8, num_gpu_blocks=64))
    async with served(TestEdge(executor)) as client:
        (model,) = (await client.models.list()).data
        assert (await client.models.retrieve(model.id)).id == model.id
        raw = await client.completions.with_raw_response.create(
            model=model.id,
            prompt=["x" * 20, "y"],
            max_tokens=5,
            extra_body={
                "request_type": "agent",
                "retention": [{"start": 0, "end": None, "retention_priority": 50}],
                "top_k": 3,
                "min_p": 0.1,
                "ignore_eos": True,
            },
        )
        assert raw.headers["x-cachelane-reason"] == "cold,cold"
        answer = raw.parse()
        assert [len(choice.text) > 0 for choice in answer.choices] == [True, True]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 10
    executor.close()


async def test_errors_are_the_packages_own() -> None:
    async with served(TestEdge()) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=0)
        assert bad.value.param == "max_tokens"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-4", messages=MESSAGES)
        assert unknown.value.code == "model_not_found"


async def test_an_error_in_mid_stream_reaches_the_caller() -> None:
    edge = TestEdge(PlannedExecutor(fail_after=2, error=ValueError("secret"), delay_s=0))
    async with served(edge) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=5, stream=True
        )
        with pytest.raises(openai.APIError, match="internal error"):
            async for _ in stream:
                pass


async def test_closing_a_stream_aborts_it() -> None:
    executor = PlannedExecutor(hold_after=2)
    async with served(TestEdge(executor)) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=5, stream=True
        )
        await anext(aiter(stream))
        assert executor.num_running == 1
        await stream.close()
        async with asyncio.timeout(5) if hasattr(asyncio, "timeout") else contextlib.nullcontext():
            while executor.num_running:
                await asyncio.sleep(0.001)
    assert executor.num_completed == 0
