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
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
)
from ray.serve.handle import DeploymentHandle

from controllers.errors import (
    CachelaneError,
    ExecutorDead,
    ExecutorError,
    NotReady,
    Overloaded,
    Overtaken,
    RequestAborted,
    WorkerFull,
)
from infra.settings import Settings
from serve_app.executors.base import ExecutorInfo, TokenChunk
from serve_app.fleet import Ask, Route
from serve_app.knock import Knock
from serve_app.outcome import Outcome
from serve_app.resume import Progress
from serve_app.routing import Routing
from serve_app.warm_start import WarmStart
from serve_app.wire import decode_answer

logger = logging.getLogger(__name__)

# What a worker says or Ray raises when the request can be run by another worker.
WORKER_FAILURES = (ActorDiedError, ActorUnavailableError, ExecutorDead, RequestAborted)
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
        self._warm_start = WarmStart(
            routing.block_size, self._run_quietly, routing.overlap, self._loop
        )
        self._knock = Knock(self._run_quietly, self._loop)
        routing.start(self._ask_for_snapshots, self._warm_start.on_new_workers)

    def configure(self, settings: Settings) -> None:
        self._routing.configure(settings)
        self._warm_start.configure(settings.autoscaling)
        self._knock.is_enabled = settings.autoscaling.may_be_zero

    def info(self) -> ExecutorInfo:
        try:
            return self._routing.info()
        except NotReady:
            self._knock.knock()
            raise

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
        self._warm_start.close()
        self._knock.close()
        self._routing.close()

    async def generate(self, ask: Ask, route: Route) -> AsyncIterator[TokenChunk]:
        outcome = self._routing.begin(ask, route)
        task = asyncio.current_task()
        assert task is not None, "an event loop runs this"
        outcome.interrupt = task.cancel
        try:
            self._warm_start.observe(ask)
            async for chunk in self._attempts(outcome):
                if outcome.on_chunk(chunk):
                    self._routing.attempts.first_token(ask.request.request_id)
                if outcome.is_complete:
                    # Before the last chunk goes out: a client's next turn may follow it at once,
                    # and must not find this one still booked on its worker.
                    self._routing.finish(outcome, "ok")
                yield chunk
        except asyncio.CancelledError:
            if outcome.refusal is not None:
                self._routing.finish(outcome, "refused")
                raise outcome.refusal from None
            self._routing.finish(outcome, "ok" if route.is_answered else "cancelled")
            raise
        except GeneratorExit:
            self._routing.finish(outcome, "ok" if route.is_answered else "cancelled")
            raise
        except Overloaded:
            self._routing.finish(outcome, "refused")
            raise
        finally:
            self._routing.finish(outcome, "error")

    async def _attempts(self, outcome: Outcome) -> AsyncIterator[TokenChunk]:
        """Refusals are not counted: each leaves a worker fewer to ask."""
        request_id, progress = outcome.ask.request.request_id, Progress(outcome.ask)
        refusal: WorkerFull | None = None
        failure: Exception | None = None
        num_failures = 0
        while num_failures < self._routing.failover.max_attempts:
            try:
                async for chunk in self._one_attempt(outcome, progress):
                    yield chunk
                return
            except WorkerFull as error:
                refusal = error  # nothing ran; another worker may have room
                self._routing.attempts.failed(request_id, is_refusal=True)
            except Overtaken:  # so often at most as the router lets it be
                self._routing.attempts.handed_back(request_id)
            except NotReady as error:
                if not progress.has_started:
                    raise refusal or error from None
                break
            except WORKER_FAILURES as error:
                failure, num_failures = error, num_failures + 1
                if outcome.is_complete:
                    return  # it died after the last chunk
                logger.warning("request %s: %s: %s", request_id, outcome.route.worker, error)
                self._routing.attempts.failed(request_id)
                if progress.has_started and not self._go_on(outcome, progress):
                    break
        if failure is None and refusal is not None:
            raise refusal
        raise ExecutorDead(f"worker {outcome.route.worker} died during the request") from failure

    def _go_on(self, outcome: Outcome, progress: Progress) -> bool:
        """Let the next attempt continue the client's stream; False if that cannot be."""
        if not (self._routing.failover.resume_streams and progress.can_resume):
            return False
        outcome.current = progress.rest(self._routing.info().block_size)
        return True

    async def _run_quietly(self, ask: Ask) -> None:
        """One try, at the worker it is pinned to; the answer is dropped."""
        outcome = self._routing.begin_quietly(ask)
        try:
            async for _ in self._one_attempt(outcome, Progress(ask)):
                pass
        except (ActorDiedError, ActorUnavailableError) as error:
            raise ExecutorDead(f"worker {ask.pinned_worker} died") from error
        finally:
            self._routing.finish_quietly(outcome)

    async def _one_attempt(self, outcome: Outcome, progress: Progress) -> AsyncIterator[TokenChunk]:
        """Pieces of the prompt as long as the router cuts it, then the request itself."""
        request_id = outcome.ask.request.request_id
        while True:
            async for chunk in self._one_call(request_id):
                if outcome.piece_tokens is None:
                    yield progress.on_chunk(chunk)
                else:
                    progress.on_piece_chunk(chunk)
            if outcome.piece_tokens is None:
                return
            self._routing.attempts.piece_ended(request_id)

    async def _one_call(self, request_id: str) -> AsyncIterator[TokenChunk]:
        answers = self._stream.remote(request_id=request_id, call=b"")
        try:
            async for data in answers:
                for chunk in decode_answer(data):
                    yield chunk
        except (ActorDiedError, ActorUnavailableError, CachelaneError):
            raise
        except BackPressureError as error:
            raise WorkerFull("too many requests wait for a worker") from error
        except DeploymentUnavailableError as error:
            raise NotReady("the executors failed to start") from error
        except RayError as error:
            raise ExecutorError(f"the request failed in its replica: {type(error).__name__}") from (
                error
            )
        finally:
            answers.cancel()

    def _ask_for_snapshots(self, workers: list[str]) -> None:
        """Called by the feed's thread, which goes on at once."""
        asyncio.run_coroutine_threadsafe(self._request_snapshots(workers), self._loop)

    async def profile(self, order: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """What each replica answers to an order that is for one of them."""
        answers = self._broadcast.broadcast("profile", order)
        found = await answers.results_async(timeout_s=timeout_s, return_exceptions=True)
        return [
            answer
            if isinstance(answer, dict)
            else {"error": f"a replica did not answer: {type(answer).__name__}"}
            for answer in found
        ]

    async def _request_snapshots(self, workers: list[str]) -> None:
        """Failing is no loss: the feed asks again for every worker that stays unknown."""
        # A broadcast is sent only when its results are waited for.
        answers = self._broadcast.broadcast("publish_snapshot", workers)
        try:
            await answers.results_async(timeout_s=ASK_TIMEOUT_S, return_exceptions=True)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("asking for snapshots: %s", error)
