"""The ports of a local broker: found free, and kept over restarts so that clients find it again."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from controllers.errors import BrokerError
from infra.ports import LOOPBACK, can_bind

# Below the range from which systems take ports for outgoing connections: a client that retries a
# dead port of that range can end up connected to itself, and then holds the port.
PORT_RANGE = (20_000, 30_000)


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    broker: int
    controller: int


def load_ports(path: Path) -> BrokerPorts | None:
    """The ports of the last start; None if there was none or the file is damaged."""
    try:
        data = json.loads(path.read_text("utf-8"))
        return BrokerPorts(int(data["broker"]), int(data["controller"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def choose_ports(path: Path, port: int | None = None) -> BrokerPorts:
    """Last time's ports where they are free, else free ones; remembered in `path`.

    Raises BrokerError if `port` is given and taken.
    """
    if port is not None and not can_bind(port, LOOPBACK):
        raise BrokerError(f"port {port} of {LOOPBACK} is in use: choose another for Kafka")
    last = load_ports(path)
    broker = port or _free_port(last.broker if last else None)
    controller = _free_port(last.controller if last else None, taken=broker)
    path.write_text(json.dumps({"broker": broker, "controller": controller}) + "\n", "utf-8")
    return BrokerPorts(broker, controller)


def _free_port(preferred: int | None, taken: int | None = None) -> int:
    candidates = [preferred] if preferred is not None else []
    candidates += random.sample(range(*PORT_RANGE), 100)
    for port in candidates:
        if port != taken and can_bind(port, LOOPBACK):
            return port
    raise BrokerError(
        f"no free port found on {LOOPBACK} between {PORT_RANGE[0]} and {PORT_RANGE[1]}"
    )
