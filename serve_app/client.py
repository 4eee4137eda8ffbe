"""A small HTTP client for the service's own commands: JSON in and out, and one streamed chat.

Owns the translation of transport errors; callers see CachelaneError only.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any

from controllers.errors import CachelaneError
from infra.service_url import open_url

TIMEOUT_S = 10.0
STREAM_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished chat turn. Times in seconds from sending."""

    text: str
    worker: str
    reason: str
    cached_tokens: int
    prompt_tokens: int
    output_tokens: int
    first_token_s: float
    total_s: float


def get_json(url: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Raises CachelaneError if nothing answers, it refuses, or the body is not JSON."""
    with _open(urllib.request.Request(url), timeout_s) as response:
        return _json(response.read(), url)


def first_model(url: str) -> str:
    """Id of the model served at `url`."""
    models = get_json(f"{url}/v1/models")["data"]
    if not models:
        raise CachelaneError(f"{url} serves no model yet")
    return str(models[0]["id"])


def stream_chat(
    url: str,
    messages: Sequence[Mapping[str, str]],
    on_text: Callable[[str], None],
    **options: Any,
) -> Answer:
    """One streamed turn; `options` are further fields of the body. Raises CachelaneError."""
    body = {
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    sent_s = time.monotonic()
    with _open(_post(f"{url}/v1/chat/completions", body), STREAM_TIMEOUT_S) as response:
        return _read_answer(response, on_text, sent_s)


def _read_answer(response: HTTPResponse, on_text: Callable[[str], None], sent_s: float) -> Answer:
    texts: list[str] = []
    usage: dict[str, Any] = {}
    first_s: float | None = None
    for event in _events(response):
        if "error" in event:
            raise CachelaneError(event["error"].get("message", "the stream ended with an error"))
        usage = event.get("usage") or usage
        text = "".join(c["delta"].get("content") or "" for c in event.get("choices", ()))
        if text:
            first_s = first_s or time.monotonic() - sent_s
            texts.append(text)
            on_text(text)
    total_s = time.monotonic() - sent_s
    return Answer(
        text="".join(texts),
        worker=response.headers.get("X-Cachelane-Worker", ""),
        reason=response.headers.get("X-Cachelane-Reason", ""),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        prompt_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        first_token_s=total_s if first_s is None else first_s,
        total_s=total_s,
    )


def _events(response: HTTPResponse) -> Iterator[Any]:
    """JSON values of a server-sent event stream, up to [DONE]."""
    for line in response:
        name, _, data = line.decode("utf-8").strip().partition(": ")
        if name == "data" and data == "[DONE]":
            return
        if name == "data":
            yield _json(data.encode(), response.url)


def _post(url: str, body: Mapping[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )


class _Response:
    """A response as a context; transport errors, also while reading, become CachelaneErrors."""

    def __init__(self, request: urllib.request.Request, timeout_s: float) -> None:
        self._request = request
        self._timeout_s = timeout_s

    def __enter__(self) -> HTTPResponse:
        try:
            response = open_url(self._request, self._timeout_s)
        except urllib.error.HTTPError as error:
            raise CachelaneError(_refusal(error)) from error
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from error
        self._response = response
        return response

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._response.close()
        if isinstance(error, (OSError, HTTPException)):
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> CachelaneError:
        reason = getattr(error, "reason", None) or error
        return CachelaneError(f"no answer from {self._request.full_url}: {reason}")


def _open(request: urllib.request.Request, timeout_s: float) -> _Response:
    return _Response(request, timeout_s)


def _refusal(error: urllib.error.HTTPError) -> str:
    body = error.read().decode("utf-8", "replace")
    try:
        return f"{error.code}: {json.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{error.code}: {body.strip()[:300] or error.reason}"


def _json(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise CachelaneError(f"{url} did not answer in JSON: {data[:80]!r}") from error
