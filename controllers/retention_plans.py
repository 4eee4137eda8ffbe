"""Requests under learned retention, from their first worker to their end, each with its plan.

A plan is made when a request's worker is known, as promises are bounded by the room on that worker;
pieces of a prompt that go to one worker are parts of one plan. Knows no lock, clock or bus.
"""

from __future__ import annotations

from typing import NamedTuple

from controllers.learned_retention import LearnedRetention, Use
from controllers.prompt_use import PromptUse
from controllers.retention import Retention


class Plan(NamedTuple):
    """For the worker that the request was sent to last. `is_first`: it was sent nowhere before."""

    use: Use
    worker: str
    retention: Retention
    is_first: bool


class RetentionPlans:
    """By request id. What `make` and `end` need of `learned` the caller serialises."""

    def __init__(self, learned: LearnedRetention) -> None:
        self._learned = learned
        self._plans: dict[str, Plan] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def current(self, request_id: str, worker: str) -> Retention | None:
        """What was planned for this worker, if it was the last one."""
        plan = self._plans.get(request_id)
        return plan.retention if plan is not None and plan.worker == worker else None

    def make(self, request_id: str, prompt: PromptUse, worker: str, now: float) -> Plan:
        """The request goes to this worker now; after a failure, to the next one."""
        before = self._plans.get(request_id)
        use = self._learned.use(prompt, now) if before is None else before.use
        retention = self._learned.promise(use, worker, now)
        plan = self._plans[request_id] = Plan(use, worker, retention, before is None)
        return plan

    def end(self, request_id: str, num_cached_blocks: int | None, now: float) -> Plan | None:
        """It has ended. Of a request that came to no worker there is nothing to learn: None."""
        plan = self._plans.pop(request_id, None)
        if plan is not None:
            self._learned.finished(plan.use, num_cached_blocks, now)
        return plan
