"""Free TCP ports and whether a port is taken. Knows nothing of who listens."""

from __future__ import annotations

import random
import socket

from controllers.errors import SetupError

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
# Below the range from which systems take ports for outgoing connections and for servers that name
# none, as a dozen of each Ray cluster do; above those of replicas (`infra.ray_env`) and brokers.
PORT_RANGE = (30_000, 32_768)

# By this process. What is given is taken seconds later, when other ports have been asked for.
_given: set[int] = set()


def free_ports(count: int, port_range: tuple[int, int] = PORT_RANGE) -> list[int]:
    """`count` ports on which nothing listens now; none is given twice. Another process may take one
    later. Raises SetupError."""
    found: list[int] = []
    for port in random.sample(range(*port_range), port_range[1] - port_range[0]):
        if len(found) == count:
            break
        if port not in _given and can_bind(port, LOOPBACK):
            found.append(port)
    if len(found) < count:
        first, end = port_range
        raise SetupError(f"no {count} free ports on {LOOPBACK} between {first} and {end}")
    _given.update(found)
    return found


def is_listening(port: int, host: str = LOOPBACK, timeout_s: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def can_bind(port: int, host: str) -> bool:
    """Whether a server could listen there. Connections still closing do not count as a listener."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True
