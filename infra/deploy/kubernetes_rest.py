"""What stands beside the RayService in a Kubernetes cluster: topics, and who may reach the pods."""

from __future__ import annotations

from typing import Any

from infra.deploy.nodes import DASHBOARD_PORT, ports_of
from infra.settings import Settings
from infra.topic_specs import topic_specs

AGENT_PORT = 52365  # of Ray's dashboard agent, which the operator asks


def kafka_topics(settings: Settings) -> list[dict[str, Any]]:
    """Strimzi's KafkaTopic objects, for where applications may not create topics."""
    deploy = settings.deploy
    return [
        {
            "apiVersion": "kafka.strimzi.io/v1",
            "kind": "KafkaTopic",
            "metadata": {
                "name": topic,
                "namespace": deploy.namespace,
                "labels": {"strimzi.io/cluster": deploy.strimzi_cluster},
            },
            "spec": {
                "topicName": topic,
                "partitions": spec["num_partitions"],
                "replicas": spec["replication_factor"],
                "config": dict(spec["configs"]),
            },
        }
        for topic, spec in topic_specs(settings.kafka).items()
    ]


def network_policy(settings: Settings) -> dict[str, Any]:
    """Serve replicas take pickled calls from one another: only pods of the fleet may speak to them.

    Clients reach the service's ports; pods in a namespace with the operator's label its two.
    """
    deploy, ports = settings.deploy, ports_of(settings)
    fleet = {"matchLabels": {"app.kubernetes.io/name": deploy.name}}
    public = [ports["serve"], *([ports["serve-grpc"]] if "serve-grpc" in ports else [])]
    # Not the name: that is another one if Helm installed the operator.
    operator = {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": deploy.name, "namespace": deploy.namespace},
        "spec": {
            "podSelector": fleet,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": fleet}]},
                {"ports": [{"protocol": "TCP", "port": port} for port in public]},
                {
                    "from": [{"namespaceSelector": {}, "podSelector": operator}],
                    "ports": [
                        {"protocol": "TCP", "port": port} for port in (DASHBOARD_PORT, AGENT_PORT)
                    ],
                },
            ],
        },
    }
