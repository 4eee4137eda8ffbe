"""grpc.health.v1 over the fleet's readiness. Whether a process lives is Serve's to watch."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2 as pb

from serve_app.fleet import Fleet

Context: TypeAlias = Any  # grpc.aio.ServicerContext; grpcio has no types
WATCH_S = 0.25

Status = pb.HealthCheckResponse.ServingStatus


class Health:
    """Every service named in `services`, and "", serves while requests can be served."""

    def __init__(self, fleet: Fleet, services: list[str]) -> None:
        self._fleet = fleet
        self._services = {"", *services}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Nothing serves any more; whoever watches is told and let go."""
        self._stopping.set()

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> Any:
        if request.service not in self._services:
            message = f"service {request.service[:100]!r} is none of {sorted(self._services)}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return pb.HealthCheckResponse(status=self._status())

    async def List(self, _: Any, __: Context) -> Any:
        found = pb.HealthCheckResponse(status=self._status())
        return pb.HealthListResponse(statuses=dict.fromkeys(self._services, found))

    async def Watch(self, request: pb.HealthCheckRequest, context: Context) -> None:
        """Says the status now, and again whenever it changes."""
        is_known = request.service in self._services
        last = None
        while True:
            status = self._status() if is_known else Status.SERVICE_UNKNOWN
            if status != last:
                await context.write(pb.HealthCheckResponse(status=status))
                last = status
            if self._stopping.is_set():
                return
            await self._pause()

    def _status(self) -> Any:
        is_ready = not self._stopping.is_set() and self._fleet.readiness() is None
        return Status.SERVING if is_ready else Status.NOT_SERVING

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), WATCH_S)
        except asyncio.TimeoutError:
            return
