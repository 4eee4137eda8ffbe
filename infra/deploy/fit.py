"""Settings that no cluster could run: found before the files are written, one line each.

Knows the shape of a node and what a replica takes of it; no provider.
"""

from __future__ import annotations

from collections.abc import Mapping

from controllers.errors import SettingsError
from infra.deploy.nodes import OBJECT_MANAGER_PORT, ports_of
from infra.settings import Settings

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_fit(settings: Settings, num_gpus: float) -> None:
    """`num_gpus` of one executor. Raises SettingsError."""
    _check_ports({**ports_of(settings), "object manager": OBJECT_MANAGER_PORT})
    deploy = settings.deploy
    if deploy.min_nodes > deploy.max_nodes:
        raise SettingsError(
            f"deploy.max_nodes: {deploy.max_nodes} must be at least deploy.min_nodes, "
            f"{deploy.min_nodes}"
        )
    # An executor over several nodes has a part on each.
    if num_gpus > deploy.gpus_per_node * deploy.max_nodes:
        raise SettingsError(
            f"deploy.gpus_per_node: {deploy.gpus_per_node} on each of {deploy.max_nodes} nodes are "
            f"too few for an executor that takes {num_gpus:g}"
        )
    if max(settings.executor.num_cpus, settings.http.num_cpus) > deploy.cpus_per_node:
        raise SettingsError(
            f"deploy.cpus_per_node: {deploy.cpus_per_node} is less than executor.num_cpus, "
            f"{settings.executor.num_cpus:g}, or http.num_cpus, {settings.http.num_cpus:g}"
        )


def doubts(settings: Settings) -> list[str]:
    """What is allowed, and hardly meant where there are several machines."""
    edges = {"http.host": settings.http.host}
    if settings.grpc.enabled:
        edges["grpc.host"] = settings.grpc.host
    found = [
        f"{name} is {host}: only its own machine reaches it; 0.0.0.0 is for all"
        for name, host in edges.items()
        if host in LOOPBACK
    ]
    if settings.kafka.bootstrap_servers is None:
        found.append(
            "kafka.bootstrap_servers is not set; a deployed service needs a Kafka that every node "
            "reaches"
        )
    return found


def _check_ports(ports: Mapping[str, int]) -> None:
    owner: dict[int, str] = {}
    for name, port in ports.items():
        if port in owner:
            raise SettingsError(f"port {port} of a node is for {owner[port]} and for {name}")
        owner[port] = name
