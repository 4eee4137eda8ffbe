"""The HTTP edge: routes, and what each answers. Everything of a request's path is `generation`'s.

The endpoints of the request path are plain ASGI applications in FastAPI's router: no validation or
response machinery runs twice, and a client that leaves is noticed while its request runs. Their
OpenAPI description is written by `openapi`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route as HttpRoute

from controllers.errors import CachelaneError
from infra.settings import Settings
from serve_app.asgi import ClientGone, Receive, Scope, Send, send_json
from serve_app.chat import Chat
from serve_app.envelope import json_bytes
from serve_app.executors.base import ExecutorInfo
from serve_app.fleet import Fleet
from serve_app.generation import Generation, Prepare, prepared
from serve_app.http_errors import error_body, problem_of
from serve_app.openapi import describe_api
from serve_app.prepare import Preparer
from serve_app.responses import ModelCard
from serve_app.tokenizer import Tokenizer
from serve_app.work import Caller, Work

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def build_api(
    fleet: Fleet,
    tokenizer: Tokenizer,
    template: Chat | None,
    settings: Settings,
    *,
    has_id_header: bool = True,
) -> FastAPI:
    """The application. `app.state.configure(settings)` changes policies and tenants in place.

    `has_id_header` False: X-Request-Id is left to the server in front (Ray Serve adds its own).
    """
    edge = _Edge(fleet, tokenizer, template, settings)
    max_bytes = settings.http.max_body_bytes
    app = _Api(title="Cachelane", docs_url="/docs", redoc_url=None)
    for path, prepare in (
        ("/v1/chat/completions", edge.chat),
        ("/v1/completions", edge.completion),
    ):
        endpoint = Generation(fleet, tokenizer, prepare, max_bytes, has_id_header)
        app.router.routes.append(HttpRoute(path, endpoint, methods=["POST"]))
        app.generations[path] = endpoint
    explain = _Explain(fleet, edge.either, max_bytes)
    app.router.routes.append(HttpRoute("/fleet/route", explain, methods=["POST"]))
    _add_reads(app, edge)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(CachelaneError, _on_error)
    app.add_exception_handler(Exception, _on_error)
    app.state.configure = edge.configure
    app.openapi = lambda: describe_api(app)  # type: ignore[method-assign]
    return app


class _Api(FastAPI):
    """`generations`: path -> what is called without the middlewares around the router, which take a
    fifth of the edge's time; it handles its own errors and needs none of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.generations: dict[str, Generation] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.generations.get(scope.get("path", ""))
        if endpoint is None or scope.get("method") != "POST":
            await super().__call__(scope, receive, send)
        else:
            await endpoint(scope, receive, send)


class _Edge:
    """What the routes share. A request keeps the settings that it began with."""

    def __init__(
        self, fleet: Fleet, tokenizer: Tokenizer, template: Chat | None, settings: Settings
    ) -> None:
        self.fleet = fleet
        self._tokenizer = tokenizer
        self._template = template
        self._started = int(time.time())
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        self._preparer = Preparer(self._tokenizer, self._template, settings)

    def chat(self, data: bytes, caller: Caller, info: ExecutorInfo) -> Work:
        return self._preparer.chat(data, caller, info)

    def completion(self, data: bytes, caller: Caller, info: ExecutorInfo) -> Work:
        return self._preparer.completion(data, caller, info)

    def either(self, data: bytes, caller: Caller, info: ExecutorInfo) -> Work:
        return self._preparer.either(data, caller, info)

    def models(self) -> list[ModelCard]:
        """The model, then its adapters. Raises NotReady."""
        info, models = self.fleet.info(), self._preparer.models
        return [self._card(name, info) for name in models.names(info)]

    def model(self, asked: str) -> ModelCard:
        """Raises UnknownModel or NotReady."""
        info = self.fleet.info()
        self._preparer.models.adapter(asked, info)
        return self._card(asked, info)

    def _card(self, name: str, info: ExecutorInfo) -> ModelCard:
        base = self._preparer.models.base(info)
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "cachelane",
            "max_model_len": info.max_seq_len,
            "parent": None if name == base else base,
        }


class _Explain:
    """POST /fleet/route: the decision for each prompt of a body, without running it."""

    def __init__(self, fleet: Fleet, prepare: Prepare, max_body_bytes: int) -> None:
        self._fleet = fleet
        self._prepare = prepare
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            work = await prepared(self._prepare, self._fleet, scope, receive, self._max_body_bytes)
            decisions = [self._fleet.explain(ask) for ask in work.asks]
        except ClientGone:
            return
        except Exception as error:
            problem = problem_of(error, "/fleet/route")
            await send_json(send, problem.status, problem.body, problem.headers)
        else:
            await send_json(send, 200, {"object": "list", "data": decisions})


def _add_reads(app: FastAPI, edge: _Edge) -> None:
    routes: dict[str, Callable[..., object]] = {
        "/v1/models": lambda: {"object": "list", "data": edge.models()},
        "/health": lambda: {"status": "ok"},
        "/fleet": edge.fleet.describe,
    }
    for path, answer in routes.items():
        app.add_route(path, _read(answer), methods=["GET"])
    app.add_route("/ready", _ready(edge), methods=["GET"])
    app.add_route("/v1/models/{model_id:path}", _model(edge), methods=["GET"])


def _read(answer: Callable[[], object]) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return _json(200, answer())

    return endpoint


def _ready(edge: _Edge) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        reason = edge.fleet.readiness()
        if reason is None:
            return _json(200, {"status": "ready"})
        return _json(503, {"status": "not ready", "reason": reason}, {"retry-after": "1"})

    return endpoint


def _model(edge: _Edge) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return _json(200, edge.model(request.path_params["model_id"]))

    return endpoint


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown path, wrong method: Starlette raises them, the body is ours."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    body = error_body(message, "invalid_request_error", code=f"http_{error.status_code}")
    return _json(error.status_code, body, dict(error.headers or {}))


async def _on_error(request: Request, error: Exception) -> Response:
    problem = problem_of(error, request.url.path)
    headers = {name.decode(): value.decode() for name, value in problem.headers}
    return _json(problem.status, problem.body, headers)


def _json(status: int, body: object, headers: dict[str, str] | None = None) -> Response:
    return Response(json_bytes(body), status, headers, "application/json")
