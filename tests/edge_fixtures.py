"""An executor whose every chunk a test decides, and clients for the HTTP edge in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from controllers.blocks import as_token_array, block_hashes
from controllers.errors import CachelaneError
from controllers.events import Event, Load, Stored, hexes_of
from infra.settings import Settings, to_settings
from serve_app.api import build_api
from serve_app.chat import Chat
from serve_app.executors.base import ExecutorInfo, GenerateRequest, TokenChunk, TokenLogprob
from serve_app.local_fleet import LocalFleet
from serve_app.tokenizer import ByteTokenizer

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MODEL = "test-model"
BLOCK_SIZE = 8
MAX_SEQ_LEN = 512
TEXT = "Straße, 東京, naïve 🙂: the quick brown fox. "


def make_info(max_seq_len: int = MAX_SEQ_LEN) -> ExecutorInfo:
    return ExecutorInfo(
        name="planned",
        version="0",
        model=MODEL,
        block_size=BLOCK_SIZE,
        num_blocks={"gpu": 100},
        max_seq_len=max_seq_len,
        max_batch_size=16,
        max_batched_tokens=512,
    )


@dataclass
class PlannedExecutor:
    """Sequence i answers `text` rotated by i bytes, over and over, until max_tokens.

    `end_after`: the model's own end after that many tokens. `hold_after`: wait there for ever.
    `fail_after` with `error`: raise there. Token counts are per sequence.
    """

    text: str = TEXT
    chunk_size: int = 1
    end_after: int | None = None
    hold_after: int | None = None
    fail_after: int | None = None
    error: Exception | None = None
    delay_s: float | None = None  # between chunks; None: no pause at all
    info: ExecutorInfo = field(default_factory=make_info)
    num_running: int = 0
    requests: list[GenerateRequest] = field(default_factory=list)
    num_completed: int = 0

    def __post_init__(self) -> None:
        self._events: list[Event] = []
        self._resident: set[int] = set()
        self.held = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        self.requests.append(request)
        self.num_running += 1
        try:
            async for chunk in self._chunks(request):
                yield chunk
            self.num_completed += 1
        finally:
            self.num_running -= 1

    async def _chunks(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        cached = self._store(request)
        length = min(request.sampling.max_tokens, self.end_after or 10**9)
        position = 0
        while position < length:
            await self._obstacle(position)
            stop = min(position + self.chunk_size, length)
            for index in range(request.sampling.n):
                yield self._chunk(request, index, position, stop, length, cached)
            if self.delay_s is not None:
                await asyncio.sleep(self.delay_s)
            position = stop

    async def _obstacle(self, position: int) -> None:
        if self.fail_after is not None and position >= self.fail_after:
            raise self.error or CachelaneError("planned")
        if self.hold_after is not None and position >= self.hold_after:
            self.held.set()
            await asyncio.Event().wait()

    def _chunk(
        self, request: GenerateRequest, index: int, start: int, stop: int, length: int, cached: int
    ) -> TokenChunk:
        sampling, data = request.sampling, self.text.encode()
        ids = tuple(data[(index + i) % len(data)] for i in range(start, stop))
        is_last = stop == length
        own_end = is_last and length < sampling.max_tokens
        return TokenChunk(
            token_ids=ids,
            index=index,
            logprobs=() if sampling.logprobs is None else tuple(map(self._logprob, ids)),
            finish_reason=("stop" if own_end else "length") if is_last else None,
            stop_token_id=257 if own_end else None,
            cached_tokens=cached if start == 0 or is_last else None,
        )

    def _logprob(self, token_id: int) -> TokenLogprob:
        tops = tuple((256 + i if i else token_id, -0.5 - i) for i in range(3))
        return TokenLogprob(-0.5, tops)

    def _store(self, request: GenerateRequest) -> int:
        """Tokens of the prompt that were already there."""
        tokens = as_token_array(request.token_ids)
        hashes = block_hashes(tokens, self.info.block_size, request.salt)
        count = next((i for i, h in enumerate(hashes) if h not in self._resident), len(hashes))
        new = hashes[count:]
        if new:
            size = [self.info.block_size] * len(new)
            self._events.append(Stored(parent=None, hashes=hexes_of(new), num_tokens=size,
                                       retention_priority=[35] * len(new)))  # fmt: skip
        self._resident.update(new)
        return min(count * self.info.block_size, len(tokens) - 1)

    def abort(self, request_id: str) -> None: ...

    def drain_events(self, timeout_s: float) -> list[Event]:
        events, self._events = self._events, []
        return events

    def load(self) -> Load:
        return Load(num_active=self.num_running, num_queued=0, queued_prefill_tokens=0,
                    decode_tokens=0, used_blocks={}, total_blocks={"gpu": 100})  # fmt: skip

    def check_health(self) -> None: ...

    def close(self) -> None: ...


class TestEdge:
    """The API over one executor, with httpx clients in this process."""

    __test__ = False

    def __init__(
        self, executor: Any = None, settings: dict[str, Any] | None = None, fleet: Any = None
    ) -> None:
        self.executor = executor or PlannedExecutor()
        self.tokenizer = ByteTokenizer()
        self.settings: Settings = to_settings(settings or {})
        self.fleet = fleet or LocalFleet(self.executor)
        self.app: FastAPI = build_api(
            self.fleet, self.tokenizer, Chat(self.tokenizer), self.settings
        )

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://edge")

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        async with self.client() as client:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            given = {"content-type": "application/json", **headers}
            return await client.post(path, content=content, headers=given)

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
        return await self.post("/v1/chat/completions", body)

    async def completion(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4, **fields})


def events_of(response: httpx.Response) -> list[Any]:
    """The SSE events of a stream, decoded; the end mark stays a string."""
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


class RawClient:
    """Calls the application as a server would, and can leave at any time."""

    def __init__(self, app: Callable[..., Any], path: str, body: Any) -> None:
        self.sent: list[Any] = []
        self.news = asyncio.Event()
        self._body = json.dumps(body).encode()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": self._body, "more_body": False})
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
            "server": ("edge", 80), "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"},
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._inbox.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        self.news.set()

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})


def error_of(response: httpx.Response) -> tuple[int, str | None, str | None]:
    """(status, param, code) of an error in OpenAI's shape."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    return response.status_code, body["error"]["param"], body["error"]["code"]


def texts_of(events: list[Any]) -> dict[int, str]:
    """Joined text by choice, of chat or completion events."""
    texts: dict[int, str] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            piece = choice.get("text", choice.get("delta", {}).get("content", ""))
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return texts
