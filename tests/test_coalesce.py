from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from serve_app.coalesce import coalesce


class Source:
    """Gives what `push` was told; remembers whether it was closed."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[int | Exception | None] = asyncio.Queue()
        self.is_closed = False

    async def items(self) -> AsyncIterator[int]:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.is_closed = True

    def push(self, *items: int | Exception | None) -> None:
        for item in items:
            self.queue.put_nowait(item)


async def collect(stream: AsyncIterator[list[int]]) -> list[list[int]]:
    return [batch async for batch in stream]


async def test_first_item_at_once_and_the_rest_together() -> None:
    source = Source()
    stream = coalesce(source.items(), 3600)
    source.push(1)
    assert await anext(stream) == [1]
    source.push(2, 3, None)
    assert await collect(stream) == [[2, 3]]
    assert source.is_closed


async def test_without_an_interval_nothing_waits_and_nothing_is_lost() -> None:
    source = Source()
    source.push(*range(50), None)
    batches = await collect(coalesce(source.items(), 0))
    assert [x for batch in batches for x in batch] == list(range(50))


async def test_an_empty_source_gives_nothing() -> None:
    source = Source()
    source.push(None)
    assert await collect(coalesce(source.items(), 1)) == []


async def test_an_error_comes_after_the_items_before_it() -> None:
    source = Source()
    source.push(1, 2, ValueError("broken"))
    seen: list[int] = []

    async def consume() -> None:
        async for batch in coalesce(source.items(), 0):
            seen.extend(batch)

    with pytest.raises(ValueError, match="broken"):
        await consume()
    assert seen == [1, 2]
    assert source.is_closed


async def test_closing_closes_the_source() -> None:
    source = Source()
    stream = coalesce(source.items(), 0)
    source.push(1)
    assert await anext(stream) == [1]
    await stream.aclose()  # type: ignore[attr-defined]
    assert source.is_closed


async def test_cancelling_the_consumer_closes_the_source() -> None:
    source = Source()
    task = asyncio.ensure_future(collect(coalesce(source.items(), 0)))
    source.push(1)
    while source.queue.qsize():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.is_closed


async def test_an_error_that_comes_when_nobody_reads_any_more_is_no_ones_surprise() -> None:
    told: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    source = Source()
    stream = coalesce(source.items(), 3600)
    source.push(1)
    assert await anext(stream) == [1]
    source.push(ValueError("late"))
    while not source.is_closed:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await stream.aclose()  # type: ignore[attr-defined]
    del stream
    gc.collect()
    assert told == []
