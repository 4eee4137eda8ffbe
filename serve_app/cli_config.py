"""`cachelane config check`, `config serve` and `config deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from infra.deploy.fit import check_fit, doubts
from infra.deploy.render import render_all
from infra.settings import Settings, load_settings
from serve_app.executor_resources import executor_resources, num_gpus_of
from serve_app.scaling_config import (
    constructor_arguments,
    executor_policies,
    policies,
    replica_options,
)

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
    _warn(settings)
    typer.echo(yaml.safe_dump(serve_config(settings), sort_keys=False), nl=False)


@config.command()
def deploy(
    file: Annotated[Path, typer.Argument(help="Settings file (YAML).")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("deploy"),
) -> None:
    """Write the files that launch a fleet: Ray cluster, Serve, KubeRay, topics, compose."""
    settings = load_settings(file, env={})
    check_fit(settings, num_gpus_of(settings.executor))
    _warn(settings)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in render_all(settings, serve_config(settings)).items():
        (out / name).write_text(text, "utf-8")
        typer.echo(out / name)


def _warn(settings: Settings) -> None:
    for doubt in doubts(settings):
        typer.echo(f"warning: {doubt}", err=True)


def serve_config(settings: Settings) -> dict[str, Any]:
    """A Ray Serve configuration file as plain values."""
    http = settings.http
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": http.host, "port": http.port},
        "applications": [
            {
                "name": APP_NAME,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": {"settings": constructor_arguments(settings)},
                "deployments": [
                    {
                        "name": "Ingress",
                        "num_replicas": http.num_ingress,
                        "max_ongoing_requests": http.max_ongoing_requests,
                        "ray_actor_options": {"num_cpus": http.num_cpus},
                        "user_config": policies(settings),
                        "graceful_shutdown_timeout_s": settings.autoscaling.drain_timeout_s,
                    },
                    {
                        "name": "Executor",
                        **replica_options(settings),
                        "user_config": executor_policies(settings),
                        "graceful_shutdown_timeout_s": settings.autoscaling.drain_timeout_s,
                        **executor_resources(settings.executor),
                    },
                ],
            }
        ],
    }
