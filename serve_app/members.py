"""A replica of the deployment, as it described itself when it became ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from serve_app.executors.base import ExecutorInfo


class Member(msgspec.Struct, frozen=True):
    """`workers` are its worker ids by dp_rank; `epoch` that of its engine."""

    workers: list[str]
    epoch: int
    info: ExecutorInfo

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Member:
        return msgspec.convert(dict(said), cls)


def worker_name(replica: str, dp_rank: int) -> str:
    """The worker id: unique over all replicas and restarts, because Serve's replica id is."""
    return f"{replica}-{dp_rank}"


def replica_of(worker: str) -> str:
    """Inverse of worker_name."""
    return worker.rsplit("-", 1)[0]


def dp_rank_of(worker: str) -> int:
    """Inverse of worker_name."""
    return int(worker.rsplit("-", 1)[1])
