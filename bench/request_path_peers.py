"""What our request path is compared with: programs that stream four tokens and do nothing else.

`python -m bench.request_path_peers plain PORT`: FastAPI on uvicorn. `deploy_default(address)`: an
ingress and a downstream generator on Ray Serve with Serve's default router, in a running cluster.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import ray
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig
from starlette.applications import Starlette
from starlette.routing import Route

NUM_TOKENS = 4
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
QUIET = LoggingConfig(enable_access_log=False)
PATH = "/v1/chat/completions"


def plain_app() -> FastAPI:
    app = FastAPI()

    @app.post(PATH)
    async def chat(request: Request) -> StreamingResponse:
        await request.json()
        return StreamingResponse(_events(), media_type="text/event-stream")

    return app


async def _events() -> AsyncIterator[bytes]:
    for _ in range(NUM_TOKENS):
        yield EVENT
    yield b"data: [DONE]\n\n"


class Tokens:
    """Downstream deployment."""

    async def generate(self, body: bytes) -> AsyncIterator[bytes]:
        for _ in range(NUM_TOKENS):
            yield EVENT


class PlainIngress:
    """HTTP in, a handle call out."""

    def __init__(self, tokens: DeploymentHandle) -> None:
        self._tokens = tokens.options(stream=True, method_name="generate")

    def __serve_build_asgi_app__(self) -> Starlette:
        # With or without the route prefix.
        return Starlette(routes=[Route("/{path:path}", self._chat, methods=["POST"])])

    async def _chat(self, request: Request) -> StreamingResponse:
        body = await request.body()
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: bytes) -> AsyncIterator[bytes]:
        async for event in self._tokens.remote(body):
            yield event
        yield b"data: [DONE]\n\n"


def deploy_default(address: str, num_replicas: int, route_prefix: str) -> None:
    """The application next to ours in the cluster at `address`, behind the same HAProxy."""
    options = {"ray_actor_options": {"num_cpus": 0}, "logging_config": QUIET}
    tokens = serve.deployment(Tokens).options(
        num_replicas=num_replicas,
        max_ongoing_requests=1000,
        request_router_config=RequestRouterConfig(),
        **options,
    )
    ingress = serve.deployment(serve.ingress()(PlainIngress)).options(
        max_ongoing_requests=1000, **options
    )
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        serve.run(ingress.bind(tokens.bind()), name="plain", route_prefix=route_prefix)
    finally:
        ray.shutdown()


def main() -> None:
    """plain PORT | serve ADDRESS REPLICAS PREFIX."""
    if sys.argv[1] == "plain":
        uvicorn.run(plain_app(), host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
    else:
        deploy_default(sys.argv[2], int(sys.argv[3]), sys.argv[4])


if __name__ == "__main__":
    main()
