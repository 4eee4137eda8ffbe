"""One trace through the real sglang-router, over mock workers that cache blocks and answer.

Runs in an interpreter of its own that has sglang-router and aiohttp; needs nothing of ours. Prints
one JSON line. Every trace block of a prompt becomes 16 characters, so that equal prefixes are equal
texts. A worker serves four requests at a time, each for a fixed time and so much for every block
that it lacks, with a leaf-first LRU of whole blocks. A fixed number of clients keep asking.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

BLOCK_CHARS = 16
SLOTS = 4  # requests that a worker serves together
BASE_S, BLOCK_S = 0.001, 0.0005
START_S = 60.0
ROUTER_OPTIONS = ("--log-level", "warn", "--max-concurrent-requests", "4096")
ALIVE = ("/health", "/health_generate", "/flush_cache")
INFO = ("/get_model_info", "/model_info", "/get_server_info", "/server_info")
MODEL = {
    "model_path": "mock", "served_model_name": "mock", "tokenizer_path": "mock", "version": "0.5",
    "is_generation": True, "dp_size": 1, "max_total_num_tokens": 1_000_000, "internal_states": [{}],
}  # fmt: skip


class Worker:
    """Counts what it was asked for and what of it was cached, in blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_asked = 0
        self.num_hits = 0
        self._num_blocks = num_blocks
        self._cached: OrderedDict[str, None] = OrderedDict()  # least recently used first
        self._slots = asyncio.Semaphore(SLOTS)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        for path in ALIVE:
            app.router.add_get(path, self._alive)
        for path in INFO:
            app.router.add_get(path, self._info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/generate", self._generate)
        return app

    async def _alive(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(MODEL)

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": "mock", "object": "model", "owned_by": "sglang", "root": "mock"}
        return web.json_response({"object": "list", "data": [model]})

    async def _generate(self, request: web.Request) -> web.Response:
        text = (await request.json())["text"]
        blocks = [text[i : i + BLOCK_CHARS] for i in range(0, len(text), BLOCK_CHARS)]
        async with self._slots:
            num_hits = self._use(blocks)
            await asyncio.sleep(BASE_S + BLOCK_S * (len(blocks) - num_hits))
        reason = {"finish_reason": {"type": "stop"}, "id": "mock", "completion_tokens": 1}
        return web.json_response({"text": "ok", "meta_info": reason})

    def _use(self, blocks: Sequence[str]) -> int:
        """Leading blocks that were cached. Parents are more recent than their children."""
        cached = self._cached
        num_hits = next((i for i, b in enumerate(blocks) if b not in cached), len(blocks))
        for block in reversed(blocks[: self._num_blocks]):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > self._num_blocks:
            cached.popitem(last=False)
        self.num_asked += len(blocks)
        self.num_hits += num_hits
        return num_hits


def text_of(hash_ids: Sequence[int]) -> str:
    """Digits reversed: other ids differ from their first character on."""
    return "".join(f"{hash_id:0{BLOCK_CHARS}x}"[::-1] for hash_id in hash_ids)


@asynccontextmanager
async def serving(workers: Sequence[Worker]) -> AsyncIterator[list[str]]:
    """Their addresses, on free ports."""
    async with AsyncExitStack() as stack:
        urls = []
        for worker in workers:
            runner = web.AppRunner(worker.app(), access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            port = _free_port()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            urls.append(f"http://127.0.0.1:{port}")
        yield urls


@contextmanager
def routing(policy: Sequence[str], urls: Sequence[str]) -> Iterator[str]:
    """The router's address; it may not be up yet."""
    port, metrics_port = _free_port(), _free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(metrics_port), *ROUTER_OPTIONS]
    command += ["--policy", *policy, "--worker-urls", *urls]
    # It would look for the mock model's tokenizer.
    closed = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": f"http://127.0.0.1:{_free_port()}"}
    router = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, env={**os.environ, **closed}
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        router.terminate()
        try:
            router.wait(10)
        except subprocess.TimeoutExpired:
            router.kill()
            router.wait()


async def replay(args: argparse.Namespace) -> dict[str, Any]:
    workers = [Worker(args.blocks) for _ in range(args.workers)]
    prompts = [json.loads(line)["hash_ids"] for line in Path(args.trace).read_text().splitlines()]
    timeout, connector = ClientTimeout(total=120), TCPConnector(limit=0)
    async with serving(workers) as urls, AsyncExitStack() as stack:
        router = stack.enter_context(routing(args.policy.split(), urls))
        session = ClientSession(router, connector=connector, timeout=timeout)
        await stack.enter_async_context(session)
        await _up(session, len(workers))
        started = time.monotonic()
        queue = iter(prompts)
        await asyncio.gather(*(_client(session, queue) for _ in range(args.clients)))
    return figures(workers, len(prompts), time.monotonic() - started)


async def _client(session: ClientSession, prompts: Iterator[Sequence[int]]) -> None:
    for hash_ids in prompts:
        body = {"text": text_of(hash_ids), "sampling_params": {"max_new_tokens": 1}}
        async with session.post("/generate", json=body) as response:
            await response.read()
            response.raise_for_status()


async def _up(session: ClientSession, num_workers: int) -> None:
    """Has found all workers healthy."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(ClientError):
            async with session.get("/readiness") as answer:
                if answer.ok and (await answer.json())["healthy_workers"] == num_workers:
                    return
        await asyncio.sleep(0.2)
    raise SystemExit(f"sglang-router is not ready after {START_S:.0f} s")


def figures(workers: Sequence[Worker], num_requests: int, elapsed_s: float) -> dict[str, Any]:
    num_asked = sum(worker.num_asked for worker in workers)
    computed = [worker.num_asked - worker.num_hits for worker in workers]
    return {
        "num_requests": num_requests,
        "reuse": 1.0 - sum(computed) / max(1, num_asked),
        "busiest_over_mean": max(computed) * len(workers) / max(1, sum(computed)),
        "requests_per_s": num_requests / elapsed_s,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", help="Mooncake JSON lines, not compressed")
    parser.add_argument("--policy", required=True, help="cache_aware, with options if wanted")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True, help="trace blocks of a worker")
    parser.add_argument("--clients", type=int, required=True)
    # The router asks each worker whether it speaks gRPC, which aiohttp would report as an error.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    found = asyncio.run(replay(parser.parse_args()))
    print(json.dumps({"version": version("sglang-router"), **found}))


if __name__ == "__main__":
    main()
