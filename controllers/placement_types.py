"""What goes into and comes out of placement, and what it needs of a routing table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from controllers.errors import CachelaneError
from controllers.prompt_use import PromptUse

Seconds = Annotated[float, Meta(gt=0)]
Weight = Annotated[float, Meta(ge=0)]


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Preferences of placement. Nothing here needs tuning to the hardware: what
    iterations cost is fitted from the workers' own timings."""

    policy: Literal["kv_aware", "random", "round_robin", "least_requests"] = "kv_aware"
    beta: Weight = 0.01  # ms of first-token time that one ms of somebody's decode delay counts as
    theta: Weight = 1.0  # weight of what work on a busy worker costs the requests after it
    route_ttl_s: Seconds = 5.0  # so long the blocks of a sent request are expected on its worker
    reservation_ttl_s: Seconds = 900.0  # a reservation that nobody releases ends after this
    host_onboard_ms_per_block: Weight = 0.2  # to bring a cached block back to the first medium
    # Tokens computed behind a shared prefix, as a multiple of its length, before an idle worker
    # gets a copy of it; 0: requests stay with the prefix until its worker is busy.
    prefix_copy_ratio: Weight = 1.0
    # Late binding: a request waits in the router until the worker it should go to can start it.
    hold: bool = True
    # Long prefills go out in pieces of so many full iterations, which others may pass; 0: whole.
    slice_iterations: Annotated[int, Meta(ge=0, le=1000)] = 4
    # Of what is lost later where there is no room to keep a prompt, with learned retention; 0: the
    # room of workers does not matter. Far below 1, since the room that a prompt takes elsewhere
    # will be missing there.
    loss_weight: Weight = 0.1
    # With several routers, so many times a worker may hand a request back because what others sent
    # in the same moment comes first there; 0: it stays where it was sent.
    max_handbacks: Annotated[int, Meta(ge=0, le=100)] = 2


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A request to place. `hashes` are those of the prompt's full blocks, front first."""

    request_id: str
    hashes: Sequence[int]
    num_tokens: int
    request_type: str = "interactive"
    rank: int = 0  # what waits for worse ones does not keep it waiting
    tenant: str = "default"
    weight: float = 1.0  # of the tenant's share
    max_ttft_ms: float | None = None  # it goes only where its first token is predicted in time
    expected_output_tokens: int | None = None  # None: as many as its request type had on average
    pinned: str | None = None  # worker that takes it as long as it is a candidate
    is_whole: bool = False  # it goes out in one piece, however long it is
    is_again: bool = False  # handed back: its share is paid, and what it tells is known
    is_settled: bool = False  # its worker must not hand it back
    prompt_use: PromptUse | None = None  # what is kept of it depends on the worker's room


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A decision.

    `reason`: overlap (the worker has a prefix of the prompt), predicted (a request just sent there
    will leave it), load (cost decided without any overlap there), cold (no worker holds anything
    yet), stale (nothing is known of the worker's cache), pinned, policy (random or round robin).
    """

    worker: str
    reason: str
    predicted_cached_tokens: int
    best_cached_tokens: int  # the most that any candidate offered
    predicted_ttft_ms: float
    num_candidates: int
    predicted_service_ms: float  # of what is sent now: the worker's time


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waited goes to a worker now. `num_tokens`: so many leading tokens of its
    prompt as a piece, at whose end the request waits again; None: all of it. `max_ahead_tokens`:
    with more to prefill before it there, it is to be handed back; None: never."""

    request_id: str
    placed: Placed
    num_tokens: int | None = None
    max_ahead_tokens: int | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waited cannot be sent: NotReady or Overloaded."""

    request_id: str
    error: CachelaneError


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One worker in an explanation."""

    worker: str
    overlap_blocks: int  # known from events
    predicted_blocks: int  # with those expected of requests sent just now
    is_stale: bool
    num_requests: float  # own, those other routers tell of, the running mean of the rest
    busy: float  # share of the last 20 s booked
    backlog_ms: float
    start_ms: float
    service_ms: float
    lost_ms: float  # to compute later what there is no room to keep there
    cost_ms: float


class Losses(Protocol):
    """What requests would cost later, for want of room to keep their prompts."""

    def lost_tokens(self, prompt: PromptUse, now: float) -> Mapping[str, float]:
        """Of the prompt, by worker: expected to be computed again. Others would lose nothing."""
        ...


class OverlapView(Protocol):
    """Leading blocks of a prompt on a worker; blocks off the gpu have to be brought back first."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_gpu(self) -> int: ...


class WorkerView(Protocol):
    """What the table knows of a worker."""

    @property
    def epoch(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...


class TableView(Protocol):
    """What placement needs of a routing table."""

    @property
    def block_size(self) -> int: ...

    @property
    def workers(self) -> Mapping[str, WorkerView]: ...

    def overlap(self, hashes: Sequence[int]) -> Mapping[str, OverlapView]:
        """By worker; stale ones are absent, and those that lack the first block may be."""
        ...

    def is_stale(self, worker: str) -> bool:
        """True if what the worker holds is not known; also for unknown workers."""
        ...
