"""Free TCP ports and whether a port is taken. Knows nothing of who listens."""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """`count` different ports on which nothing listens now. Another process may take one later."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((host, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


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
