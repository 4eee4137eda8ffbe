"""Autoscaling of one fleet as it goes on: how many replicas there shall be, and which of them go.

Owns the policy and what was seen last. Where reports come from, and how replicas start and stop,
the callers know: `serve_app.scaling_control` for Ray Serve, `controllers.simulation.scaler`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from controllers.autoscaling import Autoscaler, Observation, Verdict
from controllers.autoscaling_report import ReplicaReport
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.autoscaling_victims import coldest


class Decided(NamedTuple):
    """`target`: how many there shall be. Advice leaves it as it was."""

    target: int
    verdict: Verdict


class ScaledFleet:
    """Call `decide` about once a second."""

    def __init__(self) -> None:
        self._policy = Autoscaler()
        self._reports: Mapping[str, ReplicaReport] = {}
        self._is_coldest_first = False  # until something is known

    def decide(self, seen: Observation, settings: AutoscalingSettings, now: float) -> Decided:
        self._reports = seen.reports
        self._is_coldest_first = settings.coldest_first
        verdict = self._policy.decide(seen, settings, now)
        is_advice = settings.advisory and verdict.reason != "bounds"
        return Decided(seen.target if is_advice else verdict.target, verdict)

    def victims(self, running: Collection[str], num: int) -> list[str] | None:
        """Replicas to remove. None: whoever stops them chooses, since the settings say so or one of
        them is not known."""
        if not self._is_coldest_first or any(name not in self._reports for name in running):
            return None
        return coldest({name: self._reports[name] for name in running}, num)
