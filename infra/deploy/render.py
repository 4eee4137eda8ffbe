"""Settings -> every file that launches a fleet. The committed files are these, of `cachelane.yaml`
in this folder; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from infra.deploy.compose import compose
from infra.deploy.kuberay import ray_service
from infra.deploy.kubernetes_rest import kafka_topics, network_policy
from infra.deploy.ray_cluster import render_ray_cluster
from infra.settings import Settings

NOTE = "# Written by `cachelane config deploy`: change the settings, not this file.\n"


def render_all(settings: Settings, serve_config: dict[str, Any]) -> dict[str, str]:
    """File name -> text. `serve_config`: the Serve configuration of the same settings."""
    return {
        "ray_cluster.yaml": render_ray_cluster(settings),
        "serve.yaml": _yaml(serve_config),
        "rayservice.yaml": _yaml(ray_service(settings, serve_config)),
        "kafka-topics.yaml": _yaml(*kafka_topics(settings)),
        "network-policy.yaml": _yaml(network_policy(settings)),
        "compose.yaml": _yaml(compose(settings)),
    }


def _yaml(*documents: dict[str, Any]) -> str:
    return NOTE + yaml.dump_all(
        _plain(documents), Dumper=_BlockText, sort_keys=False, width=100, explicit_start=False
    )


def _plain(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(document) for document in documents]


class _BlockText(yaml.SafeDumper):
    """Texts of several lines as blocks, equal parts written out: for people to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_BlockText.add_representer(str, _text)
