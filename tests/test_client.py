"""The commands' HTTP client against a real server that answers what a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from controllers.errors import CachelaneError
from infra.ports import free_ports
from infra.service_url import not_ready_reason
from serve_app.client import Answer, first_model, get_json, stream_chat

HEADERS = {"X-Cachelane-Worker": "a7f3-0", "X-Cachelane-Reason": "overlap"}
USAGE = {
    "prompt_tokens": 96,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 64},
}


class Service:
    """Answers every request with `status`, `headers` and `body`; keeps what was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"{}"
        self.asked: list[tuple[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                service.asked.append((self.path, body))
                self.send_response(service.status)
                for name, value in service.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(service.body)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def sse(*events: Any) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def delta(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def test_json(service: Service) -> None:
    service.body = b'{"data": [{"id": "m"}]}'
    assert get_json(f"{service.url}/v1/models") == {"data": [{"id": "m"}]}
    assert first_model(service.url) == "m"


def test_no_model_yet(service: Service) -> None:
    service.body = b'{"data": []}'
    with pytest.raises(CachelaneError, match="serves no model yet"):
        first_model(service.url)


def test_a_streamed_turn(service: Service) -> None:
    service.headers = HEADERS
    service.body = sse(delta("Good "), delta("day"), {"choices": [], "usage": USAGE}, "[DONE]")
    shown: list[str] = []
    messages = [{"role": "user", "content": "Hi"}]
    answer = stream_chat(service.url, messages, shown.append, model="m", max_tokens=2)
    assert shown == ["Good ", "day"]
    assert 0 < answer.first_token_s <= answer.total_s
    assert answer == Answer(
        text="Good day",
        worker="a7f3-0",
        reason="overlap",
        cached_tokens=64,
        prompt_tokens=96,
        output_tokens=2,
        first_token_s=answer.first_token_s,
        total_s=answer.total_s,
    )
    assert service.asked == [
        (
            "/v1/chat/completions",
            {
                "messages": messages,
                "stream": True,
                "stream_options": {"include_usage": True},
                "model": "m",
                "max_tokens": 2,
            },
        )
    ]


def test_an_error_within_the_stream(service: Service) -> None:
    service.body = sse(delta("Go"), {"error": {"message": "the worker died"}})
    with pytest.raises(CachelaneError, match="^the worker died$"):
        stream_chat(service.url, [], lambda text: None)


def test_a_refusal_says_what_the_service_said(service: Service) -> None:
    service.status = 404
    service.body = b'{"error": {"message": "no model \\"x\\" here"}}'
    with pytest.raises(CachelaneError, match='^404: no model "x" here$'):
        get_json(service.url)


def test_a_refusal_without_json(service: Service) -> None:
    service.status = 500
    service.body = b"oops\n"
    with pytest.raises(CachelaneError, match="^500: oops$"):
        get_json(service.url)


def test_an_answer_that_is_not_json(service: Service) -> None:
    service.body = b"<html>"
    with pytest.raises(CachelaneError, match="did not answer in JSON: b'<html>'"):
        get_json(service.url)


def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(CachelaneError, match=f"^no answer from {url}/fleet: .*refused"):
        get_json(f"{url}/fleet")
    assert "refused" in (not_ready_reason(url) or "")


def test_readiness(service: Service) -> None:
    assert not_ready_reason(service.url) is None
    service.status, service.body = 503, b"no worker is up yet\n"
    assert not_ready_reason(service.url) == "503 no worker is up yet"
