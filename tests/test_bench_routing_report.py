"""Targets and tables of the routing benchmark, on figures made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.routing_cells import Cell
from bench.routing_checks import Basis, Check, checks, compared, outcomes, untuned
from bench.routing_docs import render
from bench.routing_plan import Found
from bench.routing_report import BEGIN, END, replace_section, summary, tables
from bench.routing_results import Measured, Results
from bench.routing_rows import OURS
from bench.text_table import Table
from controllers.errors import SettingsError
from tests.bench_routing_rig import figures

ROW = "conversation:4"
TUNED, LLMD = "dynamo:2/32/32", "llmd:3/2/2"
FOUND = {TUNED: 250.0}
SEARCHED = Basis({ROW: Found(FOUND, FOUND, FOUND, FOUND)})


def measured(**changes: float) -> Measured:
    """`clean` etc.: mean TTFT of ours; peers have 250 and 300 in every case."""
    ours = {"clean": 215.0, "routers-8": 240.0, "slow": 260.0, "shared-prompt": 216.0} | changes
    cells = {}
    for case, ttft in ours.items():
        row = "weka:2" if case == "slow" else ROW
        cells[Cell(case, row, OURS, 0).key] = figures(ttft, p99=101.0, e2e=1030.0, busiest=1.3)
        cells[Cell(case, row, TUNED, 0).key] = figures(250.0)
        cells[Cell(case, row, LLMD, 0).key] = figures(300.0, p99=80.0)
    return Measured(cells, 1)


def test_a_clean_row_against_the_best_peer() -> None:
    found = compared(measured(), ROW, SEARCHED)
    assert found is not None
    assert (found.peer, found.theirs.ttft, found.ours.ttft) == (TUNED, 250.0, 215.0)
    assert found.ttft == Check(
        "conversation 4x, mean TTFT over the best tuned peer's", 215.0 / 250.0, 0.89
    )
    assert found.ttft.is_met
    assert (found.e2e.ratio, found.e2e.is_met) == (1.03, False)
    assert (found.p99.ratio, found.p99.is_met) == (1.01, True)
    assert found.reference is not None
    assert found.reference.is_met
    assert compared(measured(), "weka:1", SEARCHED) is None


def test_what_a_case_is_held_against() -> None:
    found = {outcome.case.name: outcome for outcome in outcomes(measured())}
    assert list(found) == ["routers-8", "slow", "shared-prompt"]
    assert found["routers-8"].check == Check(
        "8 routers, conversation 4x, over our clean run", 240.0 / 215.0, 1.12
    )
    assert found["slow"].check == Check(
        "one worker 3x slower, weka 2x, over Dynamo 2/32/32", 260.0 / 250.0, 1.0
    )
    assert found["shared-prompt"].check == Check(
        "8k system prompt shared by all, conversation 4x, busiest over mean", 1.3, 1.25
    )


def test_a_case_without_its_clean_run_has_no_verdict() -> None:
    cells = {Cell("lag", ROW, OURS, 0).key: figures(1.0)}
    (only,) = outcomes(Measured(cells, 1))
    assert (only.check, only.base_ttft, only.peers) == (None, None, {})
    assert checks(Measured(cells, 1), SEARCHED) == []
    (table,) = tables(Measured(cells, 1), [], SEARCHED)
    assert table.rows[0][-1] == "-"


def test_the_summary_names_every_miss() -> None:
    assert summary(measured(), SEARCHED).splitlines() == [
        "4 of 7 targets met.",
        "Missed: conversation 4x, end to end over the best tuned peer's: 1.030, at most 1.020.",
        "Missed: one worker 3x slower, weka 2x, over Dynamo 2/32/32: 1.040, at most 1.000.",
        "Missed: 8k system prompt shared by all, conversation 4x, busiest over mean: 1.300,"
        " at most 1.250.",
    ]


def test_peers_that_were_not_searched_are_no_measure() -> None:
    basis = Basis({})
    assert untuned(measured(), basis.best) == [ROW]
    assert [check.what for check in checks(measured(), basis)] == [
        "conversation 4x, mean TTFT over the other implementation's",
        "8 routers, conversation 4x, over our clean run",
        "one worker 3x slower, weka 2x, over Dynamo 2/32/32",
        "8k system prompt shared by all, conversation 4x, busiest over mean",
    ]
    assert tables(measured(), [], basis)[0].rows[0][3:] == (
        "-14.0 %", "+1.0 %", "+3.0 %", "215.6: -0.3 % (<= +0.5 % met)",
    )  # fmt: skip
    assert summary(measured(), basis).splitlines()[-1] == (
        "Peers were not searched on: conversation 4x (--search): against them not judged."
    )


def test_cut_traces_are_not_held_against_whole_ones() -> None:
    basis = SEARCHED._replace(is_cut=True)
    found = compared(measured(), ROW, basis)
    assert found is not None
    assert found.reference is None
    assert [check.what for check in checks(measured(), basis)[:3]] == [
        "conversation 4x, mean TTFT over the best tuned peer's",
        "conversation 4x, end to end over the best tuned peer's",
        "conversation 4x, p99 TTFT over the best tuned peer's",
    ]
    assert tables(measured(), [], basis)[0].rows[0][-1] == "not judged"
    lines = summary(measured(), basis).splitlines()
    assert lines[0] == "3 of 6 targets met."
    assert lines[-1] == "Against the other implementation, which ran whole traces: not judged."


def test_tables_hold_ours_beside_the_peers() -> None:
    clean, details, families, standard, least, robust = tables(measured(), [], SEARCHED)
    assert clean.rows == [
        (
            "conversation 4x",
            "215.0 / 107.5 / 101, 1,030, 0.500, 1.30",
            "Dynamo 2/32/32: 250.0 / 125.0 / 100, 1,000, 0.500, 1.10",
            "-14.0 % (<= -11 % met)",
            "+1.0 % (<= +2 % met)",
            "+3.0 % (<= +2 % **missed**)",
            "215.6: -0.3 % (<= +0.5 % met)",
        )
    ]
    assert details.rows == [("conversation 4x", "10", "3.0", "3.0")]
    assert families.rows[:3] == [
        ("ours", "215.0"),
        ("Dynamo", "250.0 (2/32/32)"),
        ("llm-d", "300.0 (3/2/2)"),
    ]
    assert standard.rows[0] == ("ours", "215.0")
    assert ("llm-d 3/2/2", "300.0") in standard.rows
    assert ("SGLang", "-") in standard.rows
    assert least.rows == [
        ("conversation 4x", "80 (llm-d 3/2/2)", "+26.2 %", "1,000 (Dynamo 2/32/32)", "+3.0 %")
    ]
    assert robust.rows[0] == (
        "8 routers", "conversation 4x", "240.0", "215.0", "1.30", "250.0", "-", "300.0", "-", "-",
        "1.116 (<= 1.12 met)",
    )  # fmt: skip


def test_real_routers_beside_their_formulas_and_ours() -> None:
    dynamo = {
        "peer": "dynamo replay", "version": "1.6.1", "router": "tuned", "trace": "conversation",
        "speedup": 4.0, "ttft_ms": {"mean": 255.0, "p50": 1.0, "p99": 1700.0}, "reuse": 0.31,
        "busiest_over_mean": 1.25,
    }  # fmt: skip
    sglang = {
        "peer": "sglang-router", "version": "0.3.2", "router": "cache_aware", "trace": "weka",
        "speedup": 1.0, "reuse": 0.9, "busiest_over_mean": 1.5,
    }  # fmt: skip
    assert tables(measured(), [dynamo, sglang], SEARCHED)[-1].rows == [
        (
            "dynamo replay 1.6.1", "tuned", "conversation 4x", "255.0 / 1,700, 0.310", "1.25",
            "250.0 / 100, 0.500", "215.0 / 101, 0.500",
        ),
        ("sglang-router 0.3.2", "cache_aware", "weka 1x", "0.900", "1.50", "-", "-"),
    ]  # fmt: skip


def test_a_table_as_markdown_and_as_text() -> None:
    table = Table("Title", ("a", "long name"), [("1", "2"), ("wide cell", "3")])
    assert table.markdown() == "| a | long name |\n| --- | --- |\n| 1 | 2 |\n| wide cell | 3 |"
    assert table.text() == (
        "Title\n\na          long name\n---------  ---------\n1          2\nwide cell  3\n"
    )


def test_only_the_section_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    new = replace_section(page, "\nnew\n")
    assert new == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert replace_section(new, "new") == new
    for broken in ("before", f"before {BEGIN}", f"{END} {BEGIN}"):
        with pytest.raises(SettingsError, match="begin"):
            replace_section(broken, "new")


def test_the_section_says_where_the_figures_are_from(tmp_path: Path) -> None:
    results = Results(tmp_path / "routing.json")
    results.machine = {
        "cpu": "Some CPU", "num_cpus": 16, "python": "3.12.1", "taken_at": "2026-01-01",
        "packages": {"numpy": "2.0", "ray": None},
    }  # fmt: skip
    text = render(results, measured(), SEARCHED, ["routing_rows.svg"])
    assert "Some CPU, 16 CPUs, Python 3.12.1, numpy 2.0, at 2026-01-01" in text
    assert "![mean TTFT on every row](plots/routing_rows.svg)" in text
    assert "\n4 of 7 targets met.\n\n- Missed: conversation 4x, end to end" in text
