"""Which replicas the deployment has now, what they have in common, and when requests may come.

Replaced as a whole, so that it can be read while Serve's router thread brings the next members.
Knows nothing of caches or loads: who is not heard of yet is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from controllers.errors import NotReady
from serve_app.executors.base import ExecutorInfo
from serve_app.members import Member


class Membership:
    """`clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.by_replica: dict[str, Member] = {}
        self._clock = clock
        self._info: ExecutorInfo | None = None
        self._ready_by: float | None = None  # set when the first member is seen

    def replace(self, metadata: Mapping[str, Mapping[str, Any]], ready_timeout_s: float) -> None:
        """Replica id -> what it said of itself; `ready_timeout_s`: see `readiness`."""
        members = {uid: Member.of(said) for uid, said in metadata.items() if said}
        for member in members.values():
            self._info = member.info  # they are one deployment
        if members and self._ready_by is None:
            self._ready_by = self._clock() + ready_timeout_s
        self.by_replica = members

    def workers(self) -> list[str]:
        return [w for member in self.by_replica.values() for w in member.workers]

    def workers_of(self, replicas: Iterable[str]) -> set[str]:
        """Of those that are members."""
        members = self.by_replica
        return {w for uid in replicas if uid in members for w in members[uid].workers}

    def num_blocks(self) -> dict[str, int]:
        """GPU blocks by worker."""
        members = self.by_replica.values()
        return {w: m.info.num_blocks.get("gpu", 0) for m in members for w in m.workers}

    def info(self) -> ExecutorInfo:
        """Of any member, also while there is none for a moment, as when the only one takes in new
        settings: requests then wait for it in the router. Raises NotReady before the first one."""
        if self._info is None:
            raise NotReady("no worker is up yet")
        return self._info

    def model_name(self) -> str:
        return next((member.info.model for member in self.by_replica.values()), "")

    def readiness(self, missing: Sequence[str], may_be_zero: bool) -> str | None:
        """None when every member's blocks were known once, or when the bound on waiting is over;
        else why not. `missing`: members whose blocks are not known."""
        if not self.by_replica:
            return None if may_be_zero else "no worker is up yet"
        if missing and self._ready_by is not None and self._clock() < self._ready_by:
            return f"waiting for what {len(missing)} of {len(self.workers())} workers hold"
        self._ready_by = float("-inf")  # a worker that falls silent later takes nothing away
        return None
