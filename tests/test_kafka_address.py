"""Broker addresses as settings write them."""

from __future__ import annotations

import socket

import pytest

from controllers.errors import BusError
from infra.kafka_address import parse_addresses, probe


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("a:1, b.example:2", [("a", 1), ("b.example", 2)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_parse(text, addresses):
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize(
    "text", ["", "localhost", ":9092", "a:1,b", "a:x", "a:0", "a:65536", "a:²"]
)
def test_parse_refuses(text):
    with pytest.raises(BusError, match=f"bootstrap_servers is {text!r}: expected host:port"):
        parse_addresses(text)


def test_probe_takes_the_first_that_answers():
    with socket.socket() as closed, socket.socket() as listener:
        closed.bind(("127.0.0.1", 0))
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        dead, live = closed.getsockname()[1], listener.getsockname()[1]
        probe(f"127.0.0.1:{dead},127.0.0.1:{live}")
        with pytest.raises(BusError, match=f"no Kafka at 127.0.0.1:{dead}: .*refused"):
            probe(f"127.0.0.1:{dead}")
