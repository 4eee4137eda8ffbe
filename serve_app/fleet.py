"""The seam between an edge (HTTP, gRPC) and the fleet that runs requests.

An edge validates, tokenizes, plans retention and speaks a wire protocol; a fleet places the request
on a worker, runs it, retries what may be retried and keeps the books. `RayFleet` is the real one;
`LocalFleet` runs one executor in process for tests and documentation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from controllers.prompt_use import PromptUse
from controllers.retention import Spans
from serve_app.executors.base import ExecutorInfo, GenerateRequest, TokenChunk


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request, ready to be placed."""

    request: GenerateRequest
    hashes: list[int]  # of the prompt's full blocks, salted
    num_tokens: int
    request_type: str
    tier: str
    tenant: str
    pinned_worker: str | None = None
    spans: Spans = Spans(0, 0, 0)  # of the prompt, as far as they are known
    # What learned retention plans by, once the worker is known; None: `request.retention` stands.
    prompt_use: PromptUse | None = None


@dataclass
class Route:
    """Where the request went. Filled by the fleet before the first chunk, final after the last."""

    worker: str = ""
    reason: str = ""
    predicted_cached_tokens: int = 0
    best_cached_tokens: int = 0
    predicted_ttft_ms: float = 0.0
    num_attempts: int = 0
    num_candidates: int = 0
    is_answered: bool = False  # set by the edge: it has all it wants (a stop string), and closes


class Fleet(Protocol):
    """All methods are called on one event loop."""

    def info(self) -> ExecutorInfo:
        """What the workers have in common. Raises NotReady while no worker has said so."""
        ...

    def generate(self, ask: Ask, route: Route) -> AsyncIterator[TokenChunk]:
        """Place and run. Closing the iterator aborts the request in the executor.

        Raises the executor's InvalidRequest, NotReady (no worker), Overloaded, ExecutorError.
        A replica that dies before the first chunk is replaced by another attempt.
        """
        ...

    def explain(self, ask: Ask) -> dict[str, Any]:
        """The decision that `generate` would make now, by worker; nothing is reserved or run."""
        ...

    def describe(self) -> dict[str, Any]:
        """The fleet as this process sees it: workers, blocks, loads, staleness, decisions."""
        ...

    def readiness(self) -> str | None:
        """None if requests can be served, else the reason why not."""
        ...
