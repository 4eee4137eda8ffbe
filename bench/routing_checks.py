"""Targets of the routing benchmark, each held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.routing_plan import Best
from bench.routing_results import Mean, Measured
from bench.routing_rows import (
    CASES,
    CLEAN,
    GOALS,
    MOST_E2E,
    MOST_P99,
    P99_ROWS,
    Case,
    label_of,
    parse_row,
)


class Basis(NamedTuple):
    """What decides which figures may be judged. `best`: rows in it have tuned peers; `is_cut`: not
    whole traces were run."""

    best: Best
    is_cut: bool = False


class Check(NamedTuple):
    """`ratio`: ours over what it is held against, `most` what it may be."""

    what: str
    ratio: float
    most: float

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.most


class Compared(NamedTuple):
    """A clean row: ours beside the peer with the lowest mean TTFT. `is_tuned`: it was searched for;
    otherwise the checks against it are no verdicts."""

    row: str
    ours: Mean
    peer: str
    theirs: Mean
    is_tuned: bool
    ttft: Check
    p99: Check  # a target on P99_ROWS alone
    e2e: Check
    reference: Check | None  # None: it ran whole traces


class Outcome(NamedTuple):
    """A case on a row. `base_ttft`: our own clean one; `best`: the best peer in this case."""

    case: Case
    row: str
    ours: Mean
    base_ttft: float | None
    peers: dict[str, Mean]
    check: Check | None  # None: what it is held against was not measured


def compared(measured: Measured, row: str, basis: Basis) -> Compared | None:
    """None if ours or every peer was not measured."""
    ours, peers = measured.ours(row), measured.peers(CLEAN, row)
    if ours is None or not peers:
        return None
    goal, label = GOALS[row], parse_row(row).label
    peer, theirs = next(iter(peers.items()))
    return Compared(
        row,
        ours,
        peer,
        theirs,
        row in basis.best,
        Check(
            f"{label}, mean TTFT over the best tuned peer's",
            ours.ttft / theirs.ttft,
            goal.most_ttft,
        ),
        Check(f"{label}, p99 TTFT over the best tuned peer's", ours.p99 / theirs.p99, MOST_P99),
        Check(f"{label}, end to end over the best tuned peer's", ours.e2e / theirs.e2e, MOST_E2E),
        None
        if basis.is_cut
        else Check(
            f"{label}, mean TTFT over the other implementation's",
            ours.ttft / goal.reference_ms,
            1.0 + goal.noise,
        ),
    )


def outcomes(measured: Measured) -> Iterator[Outcome]:
    for case in CASES:
        for row in case.limits:
            ours = measured.ours(row, case.name)
            if ours is not None:
                base, peers = measured.ours(row), measured.peers(case.name, row)
                base_ttft = None if base is None else base.ttft
                check = _check(case, row, ours, base_ttft, peers)
                yield Outcome(case, row, ours, base_ttft, peers, check)


def _check(
    case: Case, row: str, ours: Mean, base_ttft: float | None, peers: dict[str, Mean]
) -> Check | None:
    what, most = f"{case.title}, {parse_row(row).label}", case.limits[row]
    if case.against == "balance":
        return Check(f"{what}, busiest over mean", ours.busiest, most)
    if case.against == "clean":
        name, against = "our clean run", base_ttft
    else:
        best = next(iter(peers), None)
        name = "" if best is None else label_of(best)
        against = None if best is None else peers[best].ttft
    return None if against is None else Check(f"{what}, over {name}", ours.ttft / against, most)


def checks(measured: Measured, basis: Basis) -> list[Check]:
    """All that have a target and a figure, and can be judged."""
    rows = [found for row in GOALS if (found := compared(measured, row, basis)) is not None]
    tuned = [found for found in rows if found.is_tuned]
    clean = [check for found in tuned for check in (found.ttft, found.e2e)]
    tails = [found.p99 for found in tuned if found.row in P99_ROWS]
    references = [found.reference for found in rows if found.reference is not None]
    cases = [outcome.check for outcome in outcomes(measured) if outcome.check is not None]
    return [*clean, *tails, *references, *cases]


def untuned(measured: Measured, best: Best) -> list[str]:
    """Rows whose peers were measured but not searched."""
    return [row for row in GOALS if measured.peers(CLEAN, row) and row not in best]
