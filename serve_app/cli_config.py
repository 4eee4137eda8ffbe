"""`cachelane config check` and `config serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from infra.settings import POLICY_SECTIONS, Settings, load_settings, to_values

config = typer.Typer(help="Look at a settings file.", no_args_is_help=True)

IMPORT_PATH = "serve_app.app:build"
APP_NAME = "cachelane"


@config.command()
def check(file: Annotated[Path, typer.Argument(help="Settings file (YAML).")]) -> None:
    """Say OK, or name the setting that is wrong."""
    load_settings(file, env={})
    typer.echo("OK")


@config.command()
def serve(
    file: Annotated[Path | None, typer.Argument(help="Settings file (YAML).")] = None,
) -> None:
    """Print the configuration for `serve deploy` and KubeRay's serveConfigV2."""
    settings = load_settings(file)
    if settings.kafka.bootstrap_servers is None:
        typer.echo(
            "warning: kafka.bootstrap_servers is not set; a deployed service needs a Kafka that "
            "every node reaches",
            err=True,
        )
    typer.echo(yaml.safe_dump(serve_config(settings), sort_keys=False), nl=False)


def serve_config(settings: Settings) -> dict[str, Any]:
    """A Ray Serve configuration file as plain values."""
    values = to_values(settings)
    policies = {name: values.pop(name) for name in POLICY_SECTIONS}
    http = settings.http
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": http.host, "port": http.port},
        "applications": [
            {
                "name": APP_NAME,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": {"settings": values},
                "deployments": [
                    {
                        "name": "Ingress",
                        "num_replicas": http.num_ingress,
                        "max_ongoing_requests": http.max_ongoing_requests,
                        "user_config": policies,
                    },
                    {
                        "name": "Executor",
                        "num_replicas": settings.executor.num_replicas,
                        "ray_actor_options": {
                            "num_cpus": settings.executor.num_cpus,
                            "num_gpus": settings.executor.num_gpus,
                        },
                    },
                ],
            }
        ],
    }
