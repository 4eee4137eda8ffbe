"""The short-lived process that carries an order of a capture into a cluster:
`python -m serve_app.profile_client`.

A process of its own, because Ray reads its environment, and the cluster's token in it, when it is
imported. It asks an ingress through Serve, which asks the replicas.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import ray
from ray import serve

from serve_app.app import APP_NAME
from serve_app.deploy import summary

INGRESS = "Ingress"


def main() -> int:
    """Reads {"address", "order", "timeout_s"}; prints {"answers": [...]} or {"error": text}."""
    request = json.loads(sys.stdin.readline())
    try:
        print(json.dumps({"answers": asyncio.run(ask(**request))}), flush=True)
    except Exception as error:
        print(json.dumps({"error": summary(error)}), flush=True)
        return 1
    return 0


async def ask(address: str, order: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
    """Answers of all replicas; raises what Ray raises."""
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        ingress = serve.get_deployment_handle(INGRESS, APP_NAME)
        # Handles of this cluster want an event loop, as its settings for throughput say.
        answers: list[dict[str, Any]] = await ingress.profile.remote(order, timeout_s)
        return answers
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
