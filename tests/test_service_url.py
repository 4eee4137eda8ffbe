from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra.ports import free_ports
from infra.service_url import grpc_address_of, not_ready_reason, url_of
from infra.settings import environment, to_settings


class Handler(BaseHTTPRequestHandler):
    """Ready at /yes/ready, not ready elsewhere."""

    def do_GET(self) -> None:
        is_ready = self.path == "/yes/ready"
        self.send_response(200 if is_ready else 503)
        self.end_headers()
        self.wfile.write(b"{}" if is_ready else b"loading")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_readiness_is_the_services_word(url: str) -> None:
    assert not_ready_reason(f"{url}/yes") is None
    assert not_ready_reason(f"{url}/no") == "503 loading"


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nobody,) = free_ports(1)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{nobody}")
    assert not_ready_reason(f"{url}/yes") is None


def test_nobody_there_is_a_reason() -> None:
    (nobody,) = free_ports(1)
    assert "refused" in (not_ready_reason(f"http://127.0.0.1:{nobody}") or "")


def test_child_processes_reach_this_machine_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "example.org")
    env = environment(A="b")
    assert (env["A"], env["no_proxy"], env["NO_PROXY"]) == (
        "b",
        "127.0.0.1,localhost,::1",
        "example.org,127.0.0.1,localhost,::1",
    )


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("node", "node")]
)
def test_the_url_is_one_that_a_client_here_can_use(host: str, shown: str) -> None:
    settings = to_settings({"http": {"host": host, "port": 8000}})
    assert url_of(settings) == f"http://{shown}:8000"


@pytest.mark.parametrize(
    ("grpc", "address"),
    [
        ({}, ""),
        ({"enabled": True}, "127.0.0.1:8001"),
        ({"enabled": True, "host": "0.0.0.0", "port": 9}, "127.0.0.1:9"),
        ({"enabled": True, "host": "10.1.2.3"}, "10.1.2.3:8001"),
    ],
)
def test_the_address_of_grpc(grpc: dict[str, object], address: str) -> None:
    assert grpc_address_of(to_settings({"grpc": grpc})) == address
