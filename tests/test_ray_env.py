"""The environment of a local Ray cluster."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from infra.ports import free_ports
from infra.ray_env import MAX_RAY_DIR_BYTES, ray_dir, ray_environment
from serve_app.http_errors import error_body

HAPROXY_SH = Path(__file__).parent.parent / "infra" / "haproxy.sh"


def test_each_state_folder_has_a_short_folder_of_its_own(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    assert ray_dir(deep) != ray_dir(tmp_path)
    assert ray_dir(deep) == ray_dir(deep / ".." / deep.name)
    assert len(os.fsencode(ray_dir(deep))) <= MAX_RAY_DIR_BYTES


def test_haproxy_sockets_are_short_enough(tmp_path: Path) -> None:
    env = ray_environment(tmp_path)
    for name in ("SOCKET_PATH", "METRICS_SOCKET_PATH"):
        folder, file = os.path.split(env[f"RAY_SERVE_HAPROXY_{name}"])
        assert len(f"{folder}/{'f' * 56}/{file}") <= 97


def test_two_clusters_share_no_token(tmp_path: Path) -> None:
    first, second = ray_environment(tmp_path), ray_environment(tmp_path)
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
    assert {env["RAY_AUTH_MODE"] for env in (first, second)} == {"token"}


def test_no_port_is_given_twice(tmp_path: Path) -> None:
    env = ray_environment(tmp_path)
    ports = [value for name, value in env.items() if name.endswith("_PORT")]
    assert len(ports) == len(set(ports)) == 8


def test_values_are_what_a_process_takes(tmp_path: Path) -> None:
    assert all(isinstance(value, str) for value in ray_environment(tmp_path).values())


@pytest.mark.parametrize("ports", [{}, {"METRICS": "9101", "STATS": "8404"}])
def test_haproxy_shows_its_figures_to_this_machine_only(
    tmp_path: Path, ports: dict[str, str]
) -> None:
    """Also where nobody chose their ports, as on a cluster of several nodes."""
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        "frontend prometheus\n    bind :9101\nfrontend http\n    bind *:8000\n"
        "listen stats\n  bind *:8404\n    option splice-request\n    option splice-response\n"
    )
    binary = tmp_path / "haproxy"
    binary.write_text('#!/bin/sh\necho "$@"\n')
    binary.chmod(0o755)
    env = {
        "PATH": os.environ["PATH"],
        "HAPROXY_BINARY": str(binary),
        **{f"RAY_SERVE_HAPROXY_{name}_PORT": port for name, port in ports.items()},
    }
    command = [str(HAPROXY_SH), "-db", "-f", str(config), "-sf", "12"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"-db -f {config} -sf 12\n"
    assert config.read_text() == (
        "frontend prometheus\n    bind 127.0.0.1:9101\nfrontend http\n    bind *:8000\n"
        "listen stats\n  bind 127.0.0.1:8404\n    option splice-response\n"
    )


def test_haproxy_passes_on_that_a_client_left(tmp_path: Path) -> None:
    backend = socket.create_server(("127.0.0.1", 0))
    backend.settimeout(10)
    (port,) = free_ports(1)
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
        " option abortonclose\n option splice-request\n option splice-response\n"
        f"frontend f\n bind 127.0.0.1:{port}\n default_backend b\n"
        f"backend b\n server s 127.0.0.1:{backend.getsockname()[1]}\n"
    )
    env = {
        **{name: value for name, value in ray_environment(tmp_path).items() if "HAPROXY" in name},
        "PATH": os.environ["PATH"],
    }
    haproxy = subprocess.Popen([str(HAPROXY_SH), "-db", "-f", str(config)], env=env)
    try:
        client = _connect(port)
        client.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n")
        served, _ = backend.accept()
        with served:
            served.settimeout(10)
            _read_until(served, b"\r\n\r\n")
            client.sendall(b"body")  # apart from the head, as most clients send it
            _read_until(served, b"body")
            client.close()
            assert _is_closed(served)
    finally:
        haproxy.kill()
        haproxy.wait()
        backend.close()


def test_haproxy_that_knows_no_application_yet_says_come_again(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        "defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n"
        f"frontend f\n bind 127.0.0.1:{port}\n default_backend default_backend\n"
        "backend default_backend\n"
        "    http-request return status 404 content-type text/plain lf-string \"Path \\'%[path]\\' "
        'not found. Ping http://.../-/routes for available routes."\n'
    )
    env = {
        **{name: value for name, value in ray_environment(tmp_path).items() if "HAPROXY" in name},
        "PATH": os.environ["PATH"],
    }
    haproxy = subprocess.Popen([str(HAPROXY_SH), "-db", "-f", str(config)], env=env)
    try:
        _connect(port).close()
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == error_body(
            "no replica is known yet", "server_error", code="not_ready"
        )
    finally:
        haproxy.kill()
        haproxy.wait()


@pytest.mark.parametrize(
    ("is_dead", "status", "code", "message"),
    [
        (
            False,
            502,
            "ingress_failed",
            "the ingress process of this request ended before it answered",
        ),
        (True, 503, "not_ready", "no ingress process can be reached"),
    ],
)
def test_an_ingress_that_dies_is_told_as_any_other_error(
    tmp_path: Path, is_dead: bool, status: int, code: str, message: str
) -> None:
    """Serve would have every client read a plain 500."""
    backend = socket.create_server(("127.0.0.1", 0))
    address, (port,) = backend.getsockname()[1], free_ports(1)
    if is_dead:
        backend.close()
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        "defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n"
        + "".join(f"    errorfile {number} {tmp_path}/500.http\n" for number in (502, 503, 504))
        + f"frontend f\n bind 127.0.0.1:{port}\n default_backend b\n"
        f"backend b\n server s 127.0.0.1:{address}\n"
    )
    env = {
        **{name: value for name, value in ray_environment(tmp_path).items() if "HAPROXY" in name},
        "PATH": os.environ["PATH"],
    }
    haproxy = subprocess.Popen([str(HAPROXY_SH), "-db", "-f", str(config)], env=env)
    try:
        with _connect(port) as client:
            client.settimeout(10)
            client.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody")
            if not is_dead:
                backend.settimeout(10)
                served, _ = backend.accept()
                served.settimeout(10)
                _read_until(served, b"body")
                served.close()
            answer = http.client.HTTPResponse(client, method="POST")
            answer.begin()
            body = json.loads(answer.read())
        assert (answer.status, answer.headers["retry-after"]) == (status, "1")
        assert body == error_body(message, "server_error", code=code)
    finally:
        haproxy.kill()
        haproxy.wait()
        backend.close()


def _connect(port: int) -> socket.socket:
    """Once something listens there."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def _read_until(connection: socket.socket, end: bytes) -> None:
    data = b""
    while not data.endswith(end):
        piece = connection.recv(4096)
        assert piece, data
        data += piece
