"""The section of docs/benchmarks.md that the routing benchmark writes, and its plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.routing_checks import Basis
from bench.routing_report import replace_section, summary, tables
from bench.routing_results import Measured, Results
from bench.routing_rows import BLOCK_SIZE, GRID, NUM_BLOCKS, NUM_WORKERS
from controllers.errors import SettingsError

DOCS = Path("docs")
PAGE = DOCS / "benchmarks.md"
PLOTS = DOCS / "plots"
CAPTIONS = {
    "routing_rows.svg": "mean TTFT on every row",
    "routing_routers.svg": "mean TTFT with one to eight routers",
    "routing_ttft.svg": "distribution of TTFT",
}


def write_docs(results: Results, measured: Measured, basis: Basis) -> None:
    """Raises SettingsError if there is no figure, or the page has no place for them."""
    from bench.routing_plots import write_plots  # matplotlib is not needed for anything else

    if not tables(measured, results.peers, basis):
        raise SettingsError("nothing was measured yet")
    plots = write_plots(PLOTS, measured)
    section = render(results, measured, basis, [path.name for path in plots])
    PAGE.write_text(replace_section(PAGE.read_text("utf-8"), section), "utf-8")
    for path in (PAGE, *plots):
        print(path)


def render(results: Results, measured: Measured, basis: Basis, plots: list[str]) -> str:
    """Markdown."""
    parts = [_set_up(results.machine, measured.num_seeds)]
    parts += [f"![{CAPTIONS[name]}](plots/{name})" for name in plots]
    for table in tables(measured, results.peers, basis):
        parts.append(f"{table.title}:\n\n{table.markdown()}")
    first, *rest = summary(measured, basis).splitlines()
    parts.append("\n".join([first, *([""] if rest else []), *(f"- {line}" for line in rest)]))
    return "\n\n".join(parts)


def _set_up(machine: dict[str, Any], num_seeds: int) -> str:
    packages = machine.get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in packages if packages[name])
    return (
        f"Simulated: {NUM_WORKERS} workers of {NUM_BLOCKS:,} blocks of {BLOCK_SIZE} tokens, the"
        " timing of Dynamo's mocker, arrival gaps jittered by 1 %, means over seeds 0 to"
        f" {num_seeds - 1}.\n"
        "Decisions are those of the production classes; peers are their formulas, best of"
        " `bench/routing_best.json` (a search over"
        f" {len(GRID)} settings on every row).\n"
        "Conversation and synthetic are Mooncake's traces, weka merged coding sessions.\n"
        f"Run on {machine.get('cpu', 'an unknown CPU')}, {machine.get('num_cpus', '?')} CPUs,"
        f" Python {machine.get('python', '?')}, {versions}, at"
        f" {machine.get('taken_at', 'an unknown time')}; only the seconds depend on that."
    )
