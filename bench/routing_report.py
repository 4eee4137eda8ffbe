"""Tables of the routing benchmark: as text, as Markdown, and as a section of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.routing_checks import (
    Basis,
    Check,
    Compared,
    Outcome,
    checks,
    compared,
    outcomes,
    untuned,
)
from bench.routing_results import Mean, Measured
from bench.routing_rows import (
    CLEAN,
    FAMILIES,
    GOALS,
    P99_ROWS,
    STANDARD,
    Row,
    family_of,
    label_of,
    parse_row,
)
from bench.text_table import Table
from controllers.errors import SettingsError

BEGIN, END = "<!-- bench.routing: begin -->", "<!-- bench.routing: end -->"
ROBUST_PEERS = ("dynamo:2/32/32", "dynamo:1/8/32", "llmd:3/2/2", "least_requests")
NOT_JUDGED = "not judged"
# What `bench.routing_peers` calls them -> the same formula here.
REAL_ROUTERS = {
    "default": "dynamo:1/1/0",
    "tuned": "dynamo:2/32/32",
    "cache_aware": "sglang:64/1.5/0.3",
    "round_robin": "round_robin",
}


def tables(measured: Measured, peers: Sequence[dict[str, Any]], basis: Basis) -> list[Table]:
    """Those that have a row."""
    rows = [found for row in GOALS if (found := compared(measured, row, basis)) is not None]
    names = [found.row for found in rows]
    every = [
        _clean(rows),
        _details(rows),
        _families(measured, names),
        _standard(measured, names),
        _least(measured, rows),
        _robust(list(outcomes(measured))),
        _real(measured, peers),
    ]
    return [table for table in every if table.rows]


def _clean(rows: Sequence[Compared]) -> Table:
    return Table(
        "One setting of ours against the best tuned peer of each row: TTFT mean / p50 / p99, end to"
        " end (ms), reuse, busiest over mean; changes with their targets; last, mean TTFT of an"
        " independent implementation of the policy on a simulator of its own, ours against it",
        (
            "row", "ours", "best tuned peer", "mean TTFT", "p99 TTFT", "end to end",
            "other implementation, ms",
        ),
        [
            (
                parse_row(found.row).label,
                _cell(found.ours),
                f"{label_of(found.peer)}: {_cell(found.theirs)}",
                _change(found.ttft, found.is_tuned),
                _change(found.p99, found.is_tuned and found.row in P99_ROWS),
                _change(found.e2e, found.is_tuned),
                _reference(found),
            )
            for found in rows
        ],
    )  # fmt: skip


def _reference(found: Compared) -> str:
    if found.reference is None:
        return NOT_JUDGED
    return f"{GOALS[found.row].reference_ms:.1f}: {_change(found.reference)}"


def _details(rows: Sequence[Compared]) -> Table:
    return Table(
        "What a run takes",
        ("row", "decisions", "seconds, ours", "seconds, best tuned peer"),
        [
            (
                parse_row(found.row).label,
                f"{found.ours.num_decisions:,.0f}",
                f"{found.ours.wall_s:.1f}",
                f"{found.theirs.wall_s:.1f}",
            )
            for found in rows
        ],
    )


def _families(measured: Measured, rows: Sequence[str]) -> Table:
    """Each kind of peer at its best on every row."""
    lines = [("ours", *(_ttft(measured.ours(row)) for row in rows))]
    for family, name in FAMILIES.items():
        cells = []
        for row in rows:
            own = {r: m for r, m in measured.peers(CLEAN, row).items() if family_of(r) == family}
            router = next(iter(own), None)
            weights = "" if router is None else router.partition(":")[2]
            value = _ttft(None if router is None else own[router])
            cells.append(f"{value} ({weights})" if weights else value)
        lines.append((name, *cells))
    header = ("mean TTFT, ms", *(parse_row(row).label for row in rows))
    return Table("Every formula at its best on each row (weights)", header, lines if rows else [])


def _standard(measured: Measured, rows: Sequence[str]) -> Table:
    lines = [("ours", *(_ttft(measured.ours(row)) for row in rows))]
    for router, name in STANDARD.items():
        lines.append((name, *(_ttft(measured.of(CLEAN, row, router)) for row in rows)))
    header = ("mean TTFT, ms", *(parse_row(row).label for row in rows))
    return Table("Fixed settings", header, lines if rows else [])


def _least(measured: Measured, rows: Sequence[Compared]) -> Table:
    lines = []
    for found in rows:
        peers = measured.peers(CLEAN, found.row)
        p99 = min(peers, key=lambda name: peers[name].p99)
        e2e = min(peers, key=lambda name: peers[name].e2e)
        lines.append(
            (
                parse_row(found.row).label,
                f"{peers[p99].p99:,.0f} ({label_of(p99)})",
                percent(found.ours.p99 / peers[p99].p99),
                f"{peers[e2e].e2e:,.0f} ({label_of(e2e)})",
                percent(found.ours.e2e / peers[e2e].e2e),
            )
        )
    return Table(
        "Against another peer setting for each figure",
        ("row", "lowest p99 TTFT, ms", "ours", "lowest end to end, ms", "ours"),
        lines,
    )


def _robust(found: Sequence[Outcome]) -> Table:
    return Table(
        "Mean TTFT in ms when something is wrong. Target: ours over our clean run, over the best"
        " peer in the same case, or busiest over mean",
        (
            "case", "row", "ours", "clean", "busiest over mean", *map(label_of, ROBUST_PEERS),
            "best tuned on the clean row", "target",
        ),
        [_robust_row(outcome) for outcome in found],
    )  # fmt: skip


def _robust_row(outcome: Outcome) -> tuple[str, ...]:
    ours, check = outcome.ours, outcome.check
    others = [name for name in outcome.peers if name not in ROBUST_PEERS]
    return (
        outcome.case.title,
        parse_row(outcome.row).label,
        _ttft(ours),
        "-" if outcome.base_ttft is None else f"{outcome.base_ttft:,.1f}",
        f"{ours.busiest:.2f}",
        *(_ttft(outcome.peers.get(name)) for name in ROBUST_PEERS),
        f"{label_of(others[0])}: {_ttft(outcome.peers[others[0]])}" if others else "-",
        "-" if check is None else f"{check.ratio:.3f} (<= {check.most:.2f} {_verdict(check)})",
    )


def _real(measured: Measured, peers: Sequence[dict[str, Any]]) -> Table:
    return Table(
        "The real routers of `bench.routing_peers`: Dynamo's own replay (its router, its mocked"
        " engines), and sglang-router, in which times mean nothing; beside them their formulas here"
        " and ours. TTFT mean / p99 in ms, reuse",
        ("peer", "router", "row", "theirs", "busiest over mean", "the formula here", "ours"),
        [_real_row(measured, peer) for peer in peers],
    )


def _real_row(measured: Measured, peer: dict[str, Any]) -> tuple[str, ...]:
    row, ttft = Row(peer["trace"], peer["speedup"]), peer.get("ttft_ms")
    times = "" if ttft is None else f"{ttft['mean']:,.1f} / {ttft['p99']:,.0f}, "
    formula = REAL_ROUTERS.get(peer["router"], "")
    here = (measured.of(CLEAN, row.name, formula), measured.ours(row.name))
    return (
        f"{peer['peer']} {peer['version']}",
        peer["router"],
        row.label,
        f"{times}{peer['reuse']:.3f}",
        f"{peer['busiest_over_mean']:.2f}",
        *("-" if m is None else f"{m.ttft:,.1f} / {m.p99:,.0f}, {m.reuse:.3f}" for m in here),
    )


def summary(measured: Measured, basis: Basis) -> str:
    """How many targets are met, each that is not, and what has no verdict."""
    found = checks(measured, basis)
    missed = [check for check in found if not check.is_met]
    lines = [f"{len(found) - len(missed)} of {len(found)} targets met."]
    lines += [
        f"Missed: {check.what}: {check.ratio:.3f}, at most {check.most:.3f}." for check in missed
    ]
    rows = ", ".join(parse_row(row).label for row in untuned(measured, basis.best))
    if rows:
        lines.append(f"Peers were not searched on: {rows} (--search): against them {NOT_JUDGED}.")
    if basis.is_cut:
        lines.append(f"Against the other implementation, which ran whole traces: {NOT_JUDGED}.")
    return "\n".join(lines)


def replace_section(page: str, section: str) -> str:
    """Raises SettingsError if the page lacks the two marks."""
    before, has_begin, rest = page.partition(BEGIN)
    _, has_end, after = rest.partition(END)
    if not (has_begin and has_end):
        raise SettingsError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{section.strip()}\n{END}{after}"


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _change(check: Check, is_judged: bool = True) -> str:
    if not is_judged:
        return percent(check.ratio)
    most = f"{100 * (check.most - 1):+.3g} %"
    return f"{percent(check.ratio)} (<= {most} {_verdict(check)})"


def _verdict(check: Check) -> str:
    return "met" if check.is_met else "**missed**"


def _ttft(mean: Mean | None) -> str:
    if mean is None:
        return "-"
    return f"{mean.ttft:,.1f}" if mean.ttft < 1000 else f"{mean.ttft:,.0f}"


def _cell(mean: Mean) -> str:
    return (
        f"{mean.ttft:,.1f} / {mean.p50:,.1f} / {mean.p99:,.0f}, {mean.e2e:,.0f}, "
        f"{mean.reuse:.3f}, {mean.busiest:.2f}"
    )
