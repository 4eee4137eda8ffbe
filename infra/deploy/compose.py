"""A compose file for one machine with Docker: a Kafka, and the service beside it."""

from __future__ import annotations

from typing import Any

from infra.settings import Settings

KAFKA_IMAGE = "apache/kafka:4.3.1"
KAFKA_PORT = 9092
CONTROLLER_PORT = 9093
SHARED_MEMORY = "512m"


def compose(settings: Settings) -> dict[str, Any]:
    """Only this machine reaches the service: the ports are published on 127.0.0.1."""
    port = settings.http.port
    return {
        "name": settings.deploy.name,
        "services": {
            "kafka": {
                "image": KAFKA_IMAGE,
                "environment": _kafka_environment(),
                "volumes": ["kafka:/var/lib/kafka/data"],
                "restart": "unless-stopped",
            },
            "cachelane": {
                "build": {"context": "../..", "dockerfile": "infra/deploy/Dockerfile.cpu"},
                "image": f"{settings.deploy.name}:cpu",
                "command": ["cachelane", "up"],
                "environment": {
                    "CACHELANE_HTTP__HOST": "0.0.0.0",
                    "CACHELANE_HTTP__PORT": str(port),
                    "CACHELANE_KAFKA__BOOTSTRAP_SERVERS": f"kafka:{KAFKA_PORT}",
                },
                "ports": [f"127.0.0.1:{port}:{port}"],
                "volumes": ["state:/home/cachelane/.cachelane"],
                "shm_size": SHARED_MEMORY,
                "depends_on": ["kafka"],
                "init": True,  # reaps what dead replicas leave behind
                "healthcheck": {
                    "test": ["CMD", "wget", "-q", "-O-", f"http://127.0.0.1:{port}/ready"],
                    "interval": "5s",
                    "start_period": "180s",
                },
                "restart": "unless-stopped",
                "stop_grace_period": "30s",
            },
        },
        "volumes": {"kafka": {}, "state": {}},
    }


def _kafka_environment() -> dict[str, str]:
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{KAFKA_PORT},CONTROLLER://:{CONTROLLER_PORT}",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://kafka:{KAFKA_PORT}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@kafka:{CONTROLLER_PORT}",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
    }
