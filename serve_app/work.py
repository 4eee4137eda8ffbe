"""What the edge knows of a request between its body and its answer. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from controllers.blocks import TokenArray
from controllers.retention import Spans
from serve_app.executors.base import ExecutorInfo
from serve_app.fleet import Ask
from serve_app.protocol import GenerationBody
from serve_app.stop_strings import StopAutomaton
from serve_app.tenancy import Tenant


@dataclass(frozen=True)
class Caller:
    """Who asks, as the request's headers say it."""

    authorization: str | None = None
    request_type: str | None = None
    pinned_worker: str | None = None


@dataclass(frozen=True)
class Work:
    """A request that can run. Choice i of prompt p has index p * n + i."""

    request_id: str
    is_chat: bool
    model: str
    created: int  # Unix time
    asks: list[Ask]
    n: int
    stops: list[StopAutomaton]
    num_top: int | None  # log probabilities per token beside the chosen one's; None: none
    is_stream: bool
    has_usage_event: bool


@dataclass(frozen=True)
class Prompt:
    """Tokens of one prompt; `field` is where it came from, for errors."""

    tokens: TokenArray
    spans: Spans
    field: str


@dataclass(frozen=True)
class Terms:
    """What all prompts of one request share."""

    body: GenerationBody
    info: ExecutorInfo
    tenant: Tenant
    adapter: str | None
    salt: int
    request_type: str
    request_id: str
    pinned_worker: str | None
    wanted: int | None  # max_tokens as asked for
    num_top: int | None
