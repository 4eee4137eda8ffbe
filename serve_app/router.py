"""The Serve request router: ids in, a replica out, once a worker should start the request. Every
decision is `serve_app.routing`'s, and who waits for one waits there.

Serve pickles this module by value into the caller's process, so it must hold no state of its own:
`routing.current()` is the process's one state, in an importable module. It overrides
`_choose_replica_for_request`, because the base class's loop probes replicas over the network, backs
off up to half a second and serves whoever is first in its queue; what stays is its bookkeeping of
replicas and the rejection protocol (a replica at max_ongoing_requests refuses, we are asked again).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from controllers.errors import NotReady
from serve_app import routing

# How long a request may wait for a first replica, for example while the only one is replaced.
MAX_WAIT_FOR_REPLICA_S = 5.0
# Every replica refused: the pause before asking again. Rejection means max_ongoing_requests of
# everybody's streams, so milliseconds are nothing to it.
REJECTED_PAUSE_S = 0.01


class KvAwareRouter(RequestRouter):  # type: ignore[misc]
    """Sends each request to the worker that `routing.current().attempts` names."""

    def initialize_state(self, **kwargs: Any) -> None:
        self._routing = routing.current()
        self._by_uid: dict[str, RunningReplica] = {}
        self._changed = asyncio.Event()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._by_uid = {r.replica_id.unique_id: r for r in replicas}
        self._routing.set_members({uid: r.replica_metadata for uid, r in self._by_uid.items()})
        self._changed.set()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        self._by_uid.pop(replica_id.unique_id, None)
        self._routing.set_members({uid: r.replica_metadata for uid, r in self._by_uid.items()})

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        request_id = pending_request.kwargs["request_id"]
        refused = self._routing.attempts.refused(request_id)
        if is_retry:
            await self._note_refusal(request_id, refused)
        else:
            refused.clear()
        while True:
            await self._some_replica()
            try:
                uid = await self._routing.attempts.place(request_id)
            except NotReady:
                if self._by_uid:
                    raise
                continue  # the last replica went while the request waited for a worker
            replica = self._by_uid.get(uid)
            if replica is not None:
                self._set_payload(pending_request, request_id)
                self.queue_wait_time_ms_histogram.observe(
                    (time.time() - pending_request.created_at) * 1e3
                )
                return replica

    def _set_payload(self, pending_request: PendingRequest, request_id: str) -> None:
        """The call carries the prediction, which is known only now (kwargs are sent after this)."""
        pending_request.kwargs["call"] = self._routing.attempts.encode_call(request_id)

    async def _some_replica(self) -> None:
        deadline = asyncio.get_running_loop().time() + MAX_WAIT_FOR_REPLICA_S
        while not self._by_uid:
            self._changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._changed.wait(), max(left, 0))
            except asyncio.TimeoutError:
                raise NotReady("no worker is up", MAX_WAIT_FOR_REPLICA_S) from None

    async def _note_refusal(self, request_id: str, refused: set[str]) -> None:
        refused.add(self._routing.attempts.replica_of(request_id))
        if refused >= self._by_uid.keys():
            refused.clear()
            await asyncio.sleep(REJECTED_PAUSE_S)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: Any = None
    ) -> list[list[RunningReplica]]:
        """Abstract in the base class; only `choose_replica(_reserve=False)` would reach it."""
        return [candidate_replicas]
