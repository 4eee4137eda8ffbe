"""Addresses of Kafka brokers as settings write them, and whether anything listens there."""

from __future__ import annotations

import socket

from controllers.errors import BusError
from infra.ports import MAX_PORT

PROBE_TIMEOUT_S = 1.0


def probe(bootstrap_servers: str) -> None:
    """Raise BusError quickly where nothing listens, instead of after the client's own timeout."""
    problem: OSError | None = None
    for address in parse_addresses(bootstrap_servers):
        try:
            socket.create_connection(address, PROBE_TIMEOUT_S).close()
        except OSError as error:
            problem = error
        else:
            return
    raise BusError(f"no Kafka at {bootstrap_servers}: {problem}") from problem


def parse_addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """Split `host:port,host:port`; IPv6 hosts in brackets. Raises BusError."""
    addresses = []
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
            raise BusError(
                f"kafka.bootstrap_servers is {bootstrap_servers!r}: expected host:port, "
                "several separated by commas"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses
