"""Exceptions -> HTTP status, headers and a body in OpenAI's error shape. Never a traceback."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

from controllers.errors import (
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    NotReady,
    Overloaded,
    RateLimited,
    RequestAborted,
    UnknownModel,
)
from serve_app.responses import ErrorBody

BODY_TOO_LARGE = "body_too_large"
INVALID_API_KEY = "invalid_api_key"

_STATUS_BY_CODE = {BODY_TOO_LARGE: 413, INVALID_API_KEY: 401}

_log = logging.getLogger(__name__)


class HttpProblem(NamedTuple):
    """`headers` are those that the status asks for."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: ErrorBody


def problem_of(error: BaseException, request_id: str) -> HttpProblem:
    """What the client is told. Errors nobody expected are logged here, with the request's id."""
    if isinstance(error, InvalidRequest):
        return _invalid(error)
    if isinstance(error, NotReady):
        return _retry_later(503, "not_ready", str(error), error.retry_after_s)
    if isinstance(error, RateLimited):
        return _retry_later(429, "rate_limit_exceeded", str(error), error.retry_after_s)
    if isinstance(error, Overloaded):
        return _retry_later(503, "overloaded", str(error), error.retry_after_s)
    if isinstance(error, ExecutorDead | RequestAborted):
        return _retry_later(503, "worker_failed", str(error), 1.0)
    if isinstance(error, ExecutorError):
        _log.warning("request %s failed: %s", request_id, error)
        return HttpProblem(500, [], error_body(str(error), "server_error", code="worker_failed"))
    _log.error("request %s failed", request_id, exc_info=error)
    message = f"internal error; the server's log has it under {request_id}"
    return HttpProblem(500, [], error_body(message, "server_error", code="internal_error"))


def error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> ErrorBody:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _invalid(error: InvalidRequest) -> HttpProblem:
    code = error.code
    if isinstance(error, UnknownModel):
        status, code = 404, code or "model_not_found"
    else:
        status = _STATUS_BY_CODE.get(code or "", 400)
    headers = [(b"www-authenticate", b"Bearer")] if status == 401 else []
    body = error_body(str(error), "invalid_request_error", error.field or None, code)
    return HttpProblem(status, headers, body)


def _retry_later(status: int, code: str, message: str, after_s: float) -> HttpProblem:
    kind = "rate_limit_error" if status == 429 else "server_error"
    headers = [(b"retry-after", str(max(1, math.ceil(after_s))).encode())]
    return HttpProblem(status, headers, error_body(message, kind, code=code))
