"""The gRPC edge: one server in each ingress process, with health and reflection.

Owns the listener. The ingress processes of a node share its port (SO_REUSEPORT): the kernel hands
each connection to one of them.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from controllers.errors import SetupError
from infra.settings import Settings
from infra.settings_sections import GrpcSettings
from serve_app.chat import Chat
from serve_app.fleet import Fleet
from serve_app.grpc_decoding import UnreadableMessages
from serve_app.grpc_health import Health
from serve_app.grpc_service import CachelaneService
from serve_app.proto import cachelane_pb2, cachelane_pb2_grpc
from serve_app.tokenizer import Tokenizer

SERVICE = cachelane_pb2.DESCRIPTOR.services_by_name["Cachelane"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

# Clients connect anew after this, so that connections spread over ingress processes that came
# later; calls that run go on over the old connection.
MAX_CONNECTION_AGE_MS = 300_000
# A client whose machine vanished is noticed, and its requests aborted, after these two together.
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000


class GrpcServer:
    """Created on the event loop that serves; `start` before anything else."""

    def __init__(
        self, fleet: Fleet, tokenizer: Tokenizer, template: Chat | None, settings: Settings
    ) -> None:
        self._settings = settings.grpc
        self._service = CachelaneService(fleet, tokenizer, template, settings)
        self._health = Health(fleet, [SERVICE])
        self._server = grpc.aio.server(
            interceptors=[UnreadableMessages(f"/{SERVICE}/")], options=_options(settings.grpc)
        )
        cachelane_pb2_grpc.add_CachelaneServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> int:
        """The port. Raises SetupError if it is taken by something else."""
        host = self._settings.host
        address = f"{f'[{host}]' if ':' in host else host}:{self._settings.port}"
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise SetupError(f"gRPC cannot listen on {address}: choose another grpc.port") from (
                error
            )
        await self._server.start()
        return int(port)

    def configure(self, settings: Settings) -> None:
        """New policies and tenants, for the next call."""
        self._service.configure(settings)

    async def stop(self, grace_s: float) -> None:
        """New calls are refused, those that run may end within `grace_s`, then they are aborted."""
        self._health.stop()
        await self._server.stop(grace_s)


def _options(settings: GrpcSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        # How long an answer may be is said by its request; HTTP has no second limit either.
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 1),
        ("grpc.max_connection_age_ms", MAX_CONNECTION_AGE_MS),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
