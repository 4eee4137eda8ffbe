"""Which cells a run needs, and what the search among the peers' settings found."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from bench.routing_cells import Cell
from bench.routing_results import Mean, Measured
from bench.routing_rows import CASES, CLEAN, GRID, OURS, STANDARD, Row, family_of, parse_row
from controllers.errors import SettingsError

NUM_TOP = 3  # run again with all seeds, beside the best of each family and figure
SEARCH_SEED = 0


class Found(msgspec.Struct, frozen=True):
    """The search's winners on one row, with one seed: `ttft` lowest mean first, `family` lowest
    mean TTFT of each kind of peer, `e2e` and `p99` lowest of all. Values in ms."""

    ttft: dict[str, float]
    family: dict[str, float]
    e2e: dict[str, float]
    p99: dict[str, float]

    @property
    def routers(self) -> tuple[str, ...]:
        return tuple({**self.ttft, **self.family, **self.e2e, **self.p99})

    @property
    def best(self) -> str:
        return next(iter(self.ttft))


Best: TypeAlias = dict[str, Found]  # by row name


def read_best(path: Path) -> Best:
    """Nothing if there is no file. Raises SettingsError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Best) if path.exists() else {}
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsError(f"{path} has no best settings of peers: {error}") from error


def write_best(path: Path, best: Best) -> None:
    path.write_text(json.dumps(msgspec.to_builtins(best), indent=1) + "\n", "utf-8")


def find_best(measured: Measured, row: str) -> Found:
    """Of one searched row. Raises SettingsError if nothing was measured there."""
    peers = {name: mean for name, mean in measured.peers(CLEAN, row).items() if name in GRID}
    if not peers:
        raise SettingsError(f"no setting of a peer was measured on {row}")
    family: dict[str, float] = {}
    for name, mean in peers.items():
        if family_of(name) not in {family_of(known) for known in family}:
            family[name] = round(mean.ttft, 1)
    top = {name: round(mean.ttft, 1) for name, mean in list(peers.items())[:NUM_TOP]}
    return Found(top, family, _least(peers, lambda m: m.e2e), _least(peers, lambda m: m.p99))


def _least(peers: dict[str, Mean], of: Callable[[Mean], float]) -> dict[str, float]:
    name = min(peers, key=lambda name: of(peers[name]))
    return {name: round(of(peers[name]), 1)}


def search_cells(rows: Iterable[Row]) -> Iterator[Cell]:
    for row in rows:
        for router in GRID:
            yield Cell(CLEAN, row.name, router, SEARCH_SEED)


def clean_cells(rows: Iterable[Row], num_seeds: int, best: Best) -> Iterator[Cell]:
    """Ours, the winners of the search and the peers as they come."""
    for row in rows:
        tuned = best[row.name].routers if row.name in best else ()
        for router in dict.fromkeys((OURS, *tuned, *STANDARD)):
            yield from _with_seeds(CLEAN, row.name, router, num_seeds)


def case_cells(
    rows: Iterable[Row], num_seeds: int, best: Best, names: Collection[str] = ()
) -> Iterator[Cell]:
    """The cases of these names, or all, on the rows that they name, and what they are compared
    with."""
    wanted = {row.name for row in rows}
    for case in (case for case in CASES if not names or case.name in names):
        for row in (row for row in case.limits if row in wanted):
            tuned = (best[row].best,) if case.with_tuned and row in best else ()
            for router in dict.fromkeys((OURS, *case.peers, *tuned)):
                yield from _with_seeds(case.name, row, router, num_seeds)
                if case.against == "clean":
                    yield from _with_seeds(CLEAN, row, router, num_seeds)


def case_rows() -> tuple[Row, ...]:
    """All rows that cases name."""
    return tuple(parse_row(row) for row in dict.fromkeys(r for case in CASES for r in case.limits))


def _with_seeds(case: str, row: str, router: str, num_seeds: int) -> Iterator[Cell]:
    for seed in range(num_seeds):
        yield Cell(case, row, router, seed)
