"""The Serve deployment in front: the edges over the fleet that Ray runs. No decisions here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from infra.event_bus import KafkaBus
from infra.settings import Settings, to_settings
from serve_app import routing
from serve_app.api import build_api
from serve_app.grpc_ingress import GrpcServer
from serve_app.model_files import load_text, model_path_on_this_node
from serve_app.ray_fleet import RayFleet


class Ingress:
    """Requests in, executor calls out. `user_config` changes policies without a restart."""

    def __init__(self, settings: dict[str, Any], executor: DeploymentHandle) -> None:
        self._values = settings
        self._settings: Settings = to_settings(settings)
        self._text = load_text(model_path_on_this_node(self._settings))
        self._fleet = RayFleet(
            executor, routing.install(self._settings, KafkaBus(self._settings.kafka))
        )
        self._grpc: GrpcServer | None = None

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve at start and on every change of the policies."""
        self._settings = to_settings({**self._values, **user_config})
        self._fleet.configure(self._settings)
        if hasattr(self, "_api"):
            self._api.state.configure(self._settings)
        await self._serve_grpc()

    async def _serve_grpc(self) -> None:
        """Only now: before there are tenants and policies nobody may come in."""
        if self._grpc is not None:
            self._grpc.configure(self._settings)
        elif self._settings.grpc.enabled:
            text = self._text
            self._grpc = GrpcServer(self._fleet, text.tokenizer, text.chat, self._settings)
            await self._grpc.start()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve once, after the constructor."""
        self._api = build_api(
            self._fleet,
            self._text.tokenizer,
            self._text.chat,
            self._settings,
            has_id_header=False,  # Serve adds its own
        )
        return self._api

    async def profile(self, order: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """Called through Serve by `cachelane profile`; no edge leads here."""
        return await self._fleet.profile(order, timeout_s)

    async def check_health(self) -> None:
        self._fleet.check_health()

    async def __del__(self) -> None:
        """Called by Serve when the requests over HTTP have ended."""
        server = getattr(self, "_grpc", None)
        if server is not None:
            # Streams get the time they have over HTTP; Serve ends this process when it is over.
            await server.stop(self._settings.autoscaling.drain_timeout_s)
        fleet = getattr(self, "_fleet", None)
        if fleet is not None:
            fleet.close()
