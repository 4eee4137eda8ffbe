"""Settings -> Serve application. The only place with deployment options.

What changes without restarting a GPU replica travels in `user_config`: POLICY_SECTIONS in that of
the ingress, autoscaling in that of the executor as well. Everything else is a constructor
argument, and changing it rolls replicas.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from infra.settings import Settings, to_settings, to_values
from serve_app.executor_resources import executor_resources
from serve_app.ingress import Ingress
from serve_app.replica import ExecutorReplica
from serve_app.scaling_config import (
    constructor_arguments,
    executor_policies,
    policies,
    replica_options,
)

APP_NAME = "cachelane"
ROUTER_CLASS = "serve_app.router:KvAwareRouter"

# The gate in the replica bounds what waits; Serve's own limit must not refuse before it does.
MAX_ONGOING_PER_REPLICA = 10_000
HEALTH_PERIOD_S = 2.0
HEALTH_TIMEOUT_S = 5.0

# A line for every request costs more than routing it.
QUIET = LoggingConfig(enable_access_log=False)


def build(args: dict[str, Any]) -> Application:
    """The Serve application, for import_path; `args` = {"settings": plain values}."""
    settings = to_settings(args.get("settings", {}))
    arguments = constructor_arguments(settings)
    values = {name: arguments[name] for name in arguments if name not in ("http", "grpc")}
    executor = fixed(executor_deployment(settings), values).bind(values)
    return fixed(ingress_deployment(settings), arguments).bind(arguments, executor)


def fixed(deployment: Any, arguments: dict[str, Any]) -> Any:
    """The deployment with a version of its own: deploying it anew replaces replicas only if their
    constructor's arguments or the installed package changed. Without one, `serve.run` makes up a
    version and replaces all of them; a configuration file has its own way of telling."""
    data = json.dumps([version("cachelane"), arguments], sort_keys=True).encode()
    # Not public, as Serve's other ways of deploying need no version.
    return deployment.options(_internal=True, version=hashlib.sha256(data).hexdigest()[:16])


def executor_deployment(settings: Settings) -> Any:
    """One replica is one executor."""
    options = settings.executor
    return serve.deployment(ExecutorReplica).options(
        name="Executor",
        **replica_options(settings),
        user_config=executor_policies(settings),
        max_ongoing_requests=MAX_ONGOING_PER_REPLICA,
        **executor_resources(options),
        logging_config=QUIET,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=settings.autoscaling.drain_timeout_s,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER_CLASS),
    )


def ingress_deployment(settings: Settings) -> Any:
    """HTTP edge with the table and the router in its process."""
    return serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress",
        num_replicas=settings.http.num_ingress,
        max_ongoing_requests=settings.http.max_ongoing_requests,
        ray_actor_options={"num_cpus": settings.http.num_cpus},
        user_config=policies(settings),
        logging_config=QUIET,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=settings.autoscaling.drain_timeout_s,
    )


def deploy(settings: Settings, address: str) -> None:
    """Connect to the Ray cluster at `address`, start Serve and run the application until it is up.

    Raises what Ray raises when a replica cannot start; the application is left for inspection.
    """
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={
                "host": settings.http.host,
                "port": settings.http.port,
                "request_timeout_s": settings.http.request_timeout_s,
            },
        )
        serve.run(build({"settings": to_values(settings)}), name=APP_NAME, route_prefix="/")
    finally:
        ray.shutdown()
