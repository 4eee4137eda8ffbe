"""What the deployment files need to know and no process ever reads: images, sizes, names."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from infra.settings_sections import NonNegative, NotEmpty, Positive, Section

# As Kubernetes writes it; the launchers turn it into what Docker takes.
Bytes = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,8}(Mi|Gi)$")]
Name = Annotated[str, Meta(pattern=r"^[a-z]([a-z0-9-]{0,40}[a-z0-9])?$")]


class AwsSettings(Section, frozen=True):
    """Where `ray up` starts machines; the other providers are comments in the file."""

    region: NotEmpty = "us-west-2"
    head_type: NotEmpty = "m6i.2xlarge"
    worker_type: NotEmpty = "p5.48xlarge"
    ssh_user: NotEmpty = "ubuntu"


class DeploySettings(Section, frozen=True):
    """A worker node is one machine or pod with `gpus_per_node` GPUs."""

    name: Name = "cachelane"
    namespace: Name = "cachelane"
    image: NotEmpty = "cachelane:gpu"
    min_nodes: NonNegative = 1
    max_nodes: Positive = 8
    gpus_per_node: NonNegative = 8
    cpus_per_node: Positive = 48
    memory_per_node: Bytes = "400Gi"
    shared_memory: Bytes = "16Gi"
    accelerator: NotEmpty = "H100"
    idle_timeout_s: Positive = 600  # a node without work is given back after this
    redis_address: NotEmpty = "redis:6379"  # keeps the cluster's state where a head pod may move
    strimzi_cluster: Name = "kafka"
    aws: AwsSettings = AwsSettings()
