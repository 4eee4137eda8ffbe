"""Every lack of this machine is one line that says what to do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from controllers.errors import SetupError
from infra import preflight
from infra.ports import free_ports


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_names_who_uses_it_and_another(taken_port: int) -> None:
    with pytest.raises(SetupError) as caught:
        preflight.check_port("127.0.0.1", taken_port)
    message = str(caught.value)
    assert f"HTTP port {taken_port} of 127.0.0.1 is in use by " in message
    assert f"(pid {os.getpid()})" in message
    advised = int(message.rpartition("HTTP_PORT=")[2])
    preflight.check_port("127.0.0.1", advised)


def test_a_grpc_port_in_use_is_called_that(taken_port: int) -> None:
    with pytest.raises(SetupError) as caught:
        preflight.check_port("127.0.0.1", taken_port, "gRPC", "CACHELANE_GRPC__PORT", "grpc.port")
    message = str(caught.value)
    assert message.startswith(f"gRPC port {taken_port} of 127.0.0.1 is in use by ")
    assert "or choose another port with grpc.port, for example CACHELANE_GRPC__PORT=" in message


def test_a_free_port_and_any_port_pass() -> None:
    preflight.check_port("127.0.0.1", free_ports(1)[0])
    preflight.check_port("127.0.0.1", 0)


def test_a_folder_with_a_space() -> None:
    preflight.check_interpreter("/home/x/.venv/bin/python")
    with pytest.raises(SetupError, match="'/a b/bin/python'.* move this folder"):
        preflight.check_interpreter("/a b/bin/python")


def test_too_little_disk(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as caught:
        preflight.check_disk(tmp_path / "not" / "yet", 10**18)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} has ")
    assert message.endswith("free some space, or choose another disk with --state-dir")
    assert list(tmp_path.iterdir()) == []


def test_too_little_shared_memory(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="in a container: --shm-size"):
        preflight.check_shared_memory(tmp_path, 10**18)
    preflight.check_shared_memory(tmp_path / "missing", 10**18)


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not exist: MODEL= wants a GGUF file"):
        preflight.check_model(str(tmp_path / "no.gguf"))


def test_no_model_and_a_good_one_pass(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    preflight.check_model(str(tmp_path / "m.gguf"))
    preflight.check_model(str(tmp_path))  # a folder with a tokenizer
    preflight.check_model(None)


def test_a_kafka_that_does_not_answer() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(SetupError) as caught:
        preflight.check_kafka(address)
    message = str(caught.value)
    assert message.startswith(f"no Kafka at {address}: ")
    assert message.endswith("correct KAFKA=host:port, or leave that out for the embedded one")


def test_a_kafka_that_is_no_address() -> None:
    with pytest.raises(SetupError, match="expected host:port"):
        preflight.check_kafka("kafka")


def test_a_kafka_that_listens_and_none_pass(taken_port: int) -> None:
    preflight.check_kafka(f"127.0.0.1:{taken_port}")
    preflight.check_kafka(None)


def test_nsys_must_be_there_if_replicas_start_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    preflight.check_profiling("off")
    with pytest.raises(SetupError, match="no nsys is on PATH: install Nsight Systems, or set it"):
        preflight.check_profiling("nsys")
    (tmp_path / "nsys").touch(0o755)
    preflight.check_profiling("nsys")
