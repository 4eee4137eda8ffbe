"""The fleet on Ray Serve: places, runs, retries, keeps the books.

Owns a request's attempts and its outcome record. Does not know HTTP, text or how a worker is chosen
(`serve_app.routing`), nor what it runs (the replica).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from controllers.errors import CachelaneError, ExecutorDead, ExecutorError, NotReady, Overloaded
from infra.settings import Settings
from serve_app.executors.base import ExecutorInfo, TokenChunk
from serve_app.fleet import Ask, Route
from serve_app.outcome import Outcome
from serve_app.routing import Routing
from serve_app.wire import decode_answer

logger = logging.getLogger(__name__)

# A request that has not produced a token is tried on this many replicas.
MAX_ATTEMPTS = 3
# So long the replicas may take to say that they heard it; they publish later.
ASK_TIMEOUT_S = 5.0


class RayFleet:
    """Fleet over the deployment behind `executor`; lives on the ingress's event loop."""

    def __init__(self, executor: DeploymentHandle, routing: Routing) -> None:
        self._routing = routing
        # This makes the handle's router now: it must know its replicas before the first request.
        self._stream = executor.options(stream=True, method_name="generate")
        self._broadcast = executor
        self._loop = asyncio.get_event_loop()
        routing.start(self._ask_for_snapshots)

    def configure(self, settings: Settings) -> None:
        self._routing.configure(settings)

    def info(self) -> ExecutorInfo:
        return self._routing.info()

    def explain(self, ask: Ask) -> dict[str, Any]:
        return self._routing.explain(ask)

    def describe(self) -> dict[str, Any]:
        return self._routing.describe()

    def readiness(self) -> str | None:
        return self._routing.readiness()

    def check_health(self) -> None:
        """Raises ExecutorDead if the table feed has ended."""
        self._routing.check_health()

    def close(self) -> None:
        self._routing.close()

    async def generate(self, ask: Ask, route: Route) -> AsyncIterator[TokenChunk]:
        outcome = self._routing.begin(ask, route)
        try:
            async for chunk in self._attempts(outcome):
                if outcome.on_chunk(chunk):
                    self._routing.first_token(ask.request.request_id)
                if outcome.is_complete:
                    # Before the last chunk goes out: a client's next turn may follow it at once,
                    # and must not find this one still booked on its worker.
                    self._routing.finish(outcome, "ok")
                yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            self._routing.finish(outcome, "ok" if route.is_answered else "cancelled")
            raise
        finally:
            self._routing.finish(outcome, "error")

    async def _attempts(self, outcome: Outcome) -> AsyncIterator[TokenChunk]:
        request_id, route = outcome.ask.request.request_id, outcome.route
        refusal: Overloaded | None = None
        for attempt in range(1, MAX_ATTEMPTS + 1):
            has_started = False
            try:
                async for chunk in self._one_attempt(request_id):
                    has_started = True
                    yield chunk
                return
            except Overloaded as error:
                refusal = error  # nothing ran; another worker may have room
            except NotReady as error:
                raise refusal or error from None
            except (ActorDiedError, ActorUnavailableError) as error:
                if outcome.is_complete:
                    return  # it died after the last chunk
                if has_started or attempt == MAX_ATTEMPTS:
                    raise ExecutorDead(f"worker {route.worker} died during the request") from error
                logger.warning("request %s: worker %s died, trying again", request_id, route.worker)
            self._routing.failed(request_id)
        if refusal is not None:
            raise refusal

    async def _one_attempt(self, request_id: str) -> AsyncIterator[TokenChunk]:
        answers = self._stream.remote(request_id=request_id, call=b"")
        try:
            async for data in answers:
                for chunk in decode_answer(data):
                    yield chunk
        except (ActorDiedError, ActorUnavailableError, CachelaneError):
            raise
        except BackPressureError as error:
            raise Overloaded("too many requests wait for a worker") from error
        except RayError as error:
            raise ExecutorError(f"the request failed in its replica: {type(error).__name__}") from (
                error
            )
        finally:
            answers.cancel()

    def _ask_for_snapshots(self, workers: list[str]) -> None:
        """Called by the feed's thread, which goes on at once."""
        asyncio.run_coroutine_threadsafe(self._request_snapshots(workers), self._loop)

    async def _request_snapshots(self, workers: list[str]) -> None:
        """Failing is no loss: the feed asks again for every worker that stays unknown."""
        # A broadcast is sent only when its results are waited for.
        answers = self._broadcast.broadcast("publish_snapshot", workers)
        try:
            await answers.results_async(timeout_s=ASK_TIMEOUT_S, return_exceptions=True)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("asking for snapshots: %s", error)
