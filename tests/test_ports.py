"""Ports that are given out, and whether a port is taken."""

from __future__ import annotations

import socket

import pytest

from controllers.errors import SetupError
from infra.broker_ports import PORT_RANGE as BROKER_PORTS
from infra.ports import LOOPBACK, PORT_RANGE, can_bind, free_ports, is_listening
from infra.ray_env import FIRST_REPLICA_PORT, MAX_CLUSTERS, PORTS_PER_CLUSTER


def test_free_ports_are_free_and_none_is_given_twice() -> None:
    ports = free_ports(20) + free_ports(20) + free_ports(20)
    assert len(set(ports)) == 60
    assert all(PORT_RANGE[0] <= port < PORT_RANGE[1] for port in ports)
    assert not any(is_listening(port) for port in ports[:3])


def test_what_nobody_may_choose_twice_is_chosen_from_ranges_apart() -> None:
    """Nor from those of systems, which begin with 32,768 on Linux."""
    replicas = (FIRST_REPLICA_PORT, FIRST_REPLICA_PORT + MAX_CLUSTERS * PORTS_PER_CLUSTER)
    assert max(replicas[1], BROKER_PORTS[1]) <= PORT_RANGE[0] < PORT_RANGE[1] <= 32_768


def test_a_port_that_is_taken_is_not_given() -> None:
    (free,) = free_ports(1)
    with socket.create_server((LOOPBACK, free)):
        assert is_listening(free)
        assert not can_bind(free, LOOPBACK)
        with pytest.raises(SetupError, match=f"no 1 free ports on 127.0.0.1 between {free} and "):
            free_ports(1, (free, free + 1))


def test_more_than_there_are_cannot_be_given() -> None:
    (free,) = free_ports(1)
    with pytest.raises(SetupError, match="no 2 free ports"):
        free_ports(2, (free, free + 1))
