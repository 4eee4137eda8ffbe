"""`cachelane simulate`: table, JSON, files, and one line for every bad input."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controllers.errors import EventError, SettingsError
from controllers.events import Iteration
from controllers.simulation.cache_store import CacheShape
from controllers.simulation.settings import Outage
from controllers.simulation.worker_log import WorkerLog
from serve_app.cli import main
from serve_app.simulate_options import (
    parse_by_worker,
    parse_duration,
    parse_outages,
    read_curve,
    read_trace,
)
from tests.batches import load
from tests.simulation_rig import sessions


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in sessions(10, 3)))
    return path


@pytest.fixture
def cachelane(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)"""
        monkeypatch.setattr(sys, "argv", ["cachelane", "simulate", *arguments])
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def test_it_prints_a_table_and_writes_json(cachelane: Any, trace: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a.json", "b.json"):
        code, out, _ = cachelane(
            str(trace), "--workers", "2", "--seed", "5", "--json", str(tmp_path / name)
        )
        assert code == 0
        assert "time to first token, ms" in out
        found.append((tmp_path / name).read_bytes())
    assert found[0] == found[1]
    figures = json.loads(found[0])
    assert {figures["trace"], figures["router"]} == {"trace.jsonl", "cachelane"}
    assert figures["settings"]["num_workers"] == 2
    assert figures["settings"]["seed"] == 5
    assert set(figures["ttft_ms"]) == set(figures["e2e_ms"]) == {"mean", "p50", "p99"}
    assert 0.0 < figures["reuse"] < 1.0
    assert figures["busiest_over_mean"] >= 1.0
    assert figures["num_requests"] == 30


def test_faults_and_limits_are_options(cachelane: Any, trace: Path) -> None:
    options = "--workers 3 --routers 2 --router dynamo:1/8/32 --event-lag 50ms --event-loss 0.02 "
    options += "--slow-worker 0=2 --worker-blocks 1-2=4000 --outage 2=3s-5s --limit 25 --jitter 0"
    code, out, _ = cachelane(str(trace), *options.split())
    assert code == 0
    assert "dynamo:1/8/32, 3 workers" in out


def test_a_policy_file_sets_routing_and_retention(
    cachelane: Any, trace: Path, tmp_path: Path
) -> None:
    policy, out_file = tmp_path / "p.yaml", tmp_path / "o.json"
    common = (str(trace), "--workers", "1", "--blocks", "400", "--json", str(out_file))
    figures = []
    for text in ("routing: {policy: round_robin}", "retention: {default_request_type: nobody}"):
        policy.write_text(text)
        code, _, err = cachelane(*common, "--policy", str(policy))
        figures.append((code, err.splitlines()[-1:] if code else []))
    assert figures[0] == (0, [])
    assert figures[1][0] == 1
    assert "retention.default_request_type" in figures[1][1][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--router nope", "router 'nope' is neither cachelane nor one of: dynamo,"),
        ("--speedup 0", "speedup is 0.0"),
        ("--block-size 48", "block size 48 does not divide 512"),
        ("--event-lag soon", "--event-lag: 'soon' is not a time"),
        ("--slow-worker 9=2", "worker 9 is none of 0 ... 7"),
        ("--slow-worker x", "--slow-worker: 'x' is not WORKER=VALUE"),
        ("--worker-blocks 0=1.5", "--worker-blocks: 1.5 blocks of worker 0"),
        ("--outage 3", "--outage: '3' is not WORKER=TIME"),
        ("--curve 1,2", "timing curve '1,2'"),
        ("--json /no/such/folder/x.json", "--json: there is no folder /no/such/folder"),
        ("--load-records /no/such/file", "cannot read /no/such/file"),
    ],
)
def test_a_bad_option_is_one_line(cachelane: Any, trace: Path, options: str, message: str) -> None:
    code, out, err = cachelane(str(trace), *options.split())
    assert (code, out) == (1, "")
    assert err.startswith(f"cachelane: {message}")
    assert err.count("\n") == 1


def test_a_bad_trace_is_one_line(cachelane: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b'{"timestamp": 0}\n' * 100)[:-20])
    for path, message in ((tmp_path, "cannot read"), (broken, "cannot read")):
        code, _, err = cachelane(str(path))
        assert (code, err.count("\n")) == (1, 1)
        assert err.startswith(f"cachelane: {message} {path}")


def test_traces_are_read_plain_and_packed(trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "trace"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    assert read_trace(packed) == read_trace(trace)
    assert len(read_trace(packed)) == 30


def test_times() -> None:
    texts = ("500ms", "1s", "2m", "1h", "2.5", "0s")
    assert [parse_duration(text, "x") for text in texts] == [0.5, 1.0, 120.0, 3600.0, 2.5, 0.0]
    for text in ("", "s", "-1s", "1 day", "1e3s"):
        with pytest.raises(SettingsError, match="x: .* is not a time"):
            parse_duration(text, "x")


def test_values_by_worker() -> None:
    assert parse_by_worker(["0=3", "2-4=1.5"], "x") == {0: 3.0, 2: 1.5, 3: 1.5, 4: 1.5}
    for text in ("", "0", "0=", "a=1", "3-1=2", "1-=x"):
        with pytest.raises(SettingsError, match="x: "):
            parse_by_worker([text], "x")
    assert parse_outages(["3=90s", "0=1m-2m"], "x") == (Outage(3, 90.0), Outage(0, 60.0, 120.0))


def test_a_curve_from_recorded_loads(tmp_path: Path) -> None:
    log, path = WorkerLog("w0", CacheShape(1000)), tmp_path / "records.jsonl"
    records = [
        log.batch([load(iterations=[Iteration(100 * (n % 9), 1, 10 * (n % 7), 5.0 + n % 9)])], 0.0)
        for n in range(100)
    ]
    path.write_bytes(b"\n".join(msgspec.json.encode(record) for record in records))
    curve = read_curve(path, 1000)
    assert curve.decode_ms(0.03) == pytest.approx(5.0, rel=0.3)
    path.write_text("{}\n")
    with pytest.raises(EventError, match="kv-events record"):
        read_curve(path, 1000)
