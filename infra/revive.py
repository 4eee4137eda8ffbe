"""Starting the embedded broker again where only it has died: what serves finds it by itself."""

from __future__ import annotations

from collections.abc import Callable

from infra.broker_ports import load_ports
from infra.local_broker import BrokerPaths
from infra.local_broker_tansu import attach_local_broker, start_local_broker
from infra.ports import LOOPBACK
from infra.run_state import RunState, StateDir


def revive_broker(
    state: StateDir, run: RunState, say: Callable[[str], None] = lambda message: None
) -> bool:
    """Whether it was dead and answers again, at its old address and with its old data.

    False for a broker of the user's. Raises BrokerError.
    """
    ports = load_ports(BrokerPaths(state.path).ports)
    is_ours = ports is not None and run.bootstrap_servers == f"{LOOPBACK}:{ports.broker}"
    if not is_ours or attach_local_broker(state.path) is not None:
        return False
    start_local_broker(state.path, say)
    return True
