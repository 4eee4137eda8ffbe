"""`cachelane simulate`: table, JSON, files, and one line for every bad input."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controllers.errors import SettingsError
from controllers.events import Iteration
from controllers.simulation.cache_store import CacheShape
from controllers.simulation.settings import Outage
from controllers.simulation.trace import Row
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


def test_figures_say_how_they_were_made(cachelane: Any, trace: Path, tmp_path: Path) -> None:
    policy, out_file = tmp_path / "p.yaml", tmp_path / "o.json"
    policy.write_text("routing: {policy: round_robin}")
    options = "--workers 3 --block-size 16 --slow-worker 0=2 --worker-blocks 1-2=4000 --limit 25 "
    options += "--outage 2=3s-5s --outage 1=1h --curve 16,124,28,6,54,-26"
    common = (str(trace), "--policy", str(policy), "--json", str(out_file))
    assert cachelane(*common, *options.split())[0] == 0
    settings = json.loads(out_file.read_bytes())["settings"]
    assert (settings["block_size"], settings["limit"], settings["policy"]) == (16, 25, "p.yaml")
    assert settings["curve"] == {"prefill": [16.0, 124.0, 28.0], "decode": [6.0, 54.0, -26.0]}
    assert settings["slowness"] == {"0": 2.0}
    assert settings["blocks_of"] == {"1": 4000, "2": 4000}
    assert settings["outages"] == [
        {"worker": 2, "at_s": 3.0, "back_s": 5.0},
        {"worker": 1, "at_s": 3600.0},
    ]


def test_a_limit_is_of_the_first_in_time(cachelane: Any, trace: Path, tmp_path: Path) -> None:
    turned, figures = tmp_path / "turned.jsonl", []
    turned.write_bytes(b"\n".join(trace.read_bytes().splitlines()[::-1]))
    for path in (trace, turned):
        out_file = tmp_path / "o.json"
        assert cachelane(str(path), "--limit", "10", "--json", str(out_file))[0] == 0
        figures.append(json.loads(out_file.read_bytes()) | {"trace": ""})
    assert figures[0] == figures[1]


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


def test_a_policy_file_sets_tiers_tenants_and_bounds(cachelane: Any, tmp_path: Path) -> None:
    trace, policy, out_file = (tmp_path / name for name in ("t.jsonl", "p.yaml", "o.json"))
    tiers = ("interactive", "batch")
    rows = [
        Row(float(number), 4096, 5, list(range(8 * number, 8 * number + 8)),
            tenant=f"t{number % 3}", tier=tiers[number % 2])
        for number in range(60)
    ]  # fmt: skip
    trace.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
    policy.write_text(
        "admission: {max_waiting_requests: 8}\n"
        "executor: {max_waiting_requests: 3}\n"
        "tenants: {default: {}, t0: {limits: {max_concurrent: 2}}}\n"
        "retention: {policy: learned}\n"
    )
    common = (str(trace), "--workers", "1", "--json", str(out_file))
    code, out, _ = cachelane(*common, "--routers", "2", "--booking-lag", "5ms", "--policy",
                             str(policy))  # fmt: skip
    assert code == 0
    figures = json.loads(out_file.read_bytes())
    assert figures["settings"]["booking_lag_s"] == 0.005
    assert figures["num_requests"] == 60
    assert 40 < figures["num_refused"] < 60
    assert set(figures["tiers"]) == set(tiers)
    assert set(figures["tenants"]) == {"t0", "t1", "t2"}
    assert sum(part["num_refused"] for part in figures["tiers"].values()) == figures["num_refused"]
    assert "requests refused" in out
    assert "tier batch, " in out
    assert "tenant t0, " in out
    code, out, _ = cachelane(*common, "--router", "dynamo", "--policy", str(policy))
    assert code == 0
    assert json.loads(out_file.read_bytes())["num_refused"] == 0
    assert "refused" not in out


def test_a_policy_file_may_scale_the_fleet_unless_its_size_is_given(
    cachelane: Any, trace: Path, tmp_path: Path
) -> None:
    policy, out_file = tmp_path / "p.yaml", tmp_path / "o.json"
    policy.write_text("autoscaling: {enabled: true, min_replicas: 0, max_replicas: 3}")
    common = (str(trace), "--policy", str(policy), "--json", str(out_file), "--start-time", "2s")
    code, out, _ = cachelane(*common)
    scaled = json.loads(out_file.read_bytes())
    assert code == 0
    assert "cachelane, 0 to 3 workers" in out
    assert "worker hours" in out
    assert scaled["scaling"]["num_ups"] >= 1
    settings = scaled["settings"]
    assert (settings["start_s"], settings["min_replicas"], settings["max_replicas"]) == (2.0, 0, 3)
    assert "num_workers" not in settings
    code, out, _ = cachelane(*common, "--workers", "2")
    fixed = json.loads(out_file.read_bytes())
    assert code == 0
    assert "cachelane, 2 workers" in out
    assert "worker hours" not in out
    assert "scaling" not in fixed
    assert fixed["settings"]["num_workers"] == 2
    assert "start_s" not in fixed["settings"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--router nope", "router 'nope' is neither cachelane nor one of: dynamo,"),
        ("--router dynamo:nan/nan/nan", "router 'dynamo:nan/nan/nan': dynamo takes 3 numbers"),
        ("--speedup 0", "--speedup is 0.0"),
        ("--event-loss 1", "--event-loss is 1.0"),
        ("--max-batched-tokens 200", "--max-batched-tokens is 200: an iteration in which --max-s"),
        ("--block-size 48", "block size 48 does not divide 512"),
        ("--booking-lag soon", "--booking-lag: 'soon' is not a time"),
        ("--event-lag soon", "--event-lag: 'soon' is not a time"),
        ("--slow-worker 9=2", "--slow-worker: worker 9 is none of 0 ... 7"),
        ("--slow-worker 1=inf", "--slow-worker of worker 1 is inf, must be a number above 0"),
        ("--worker-blocks 0=-5", "--worker-blocks of worker 0 is -5, must be a number above 0"),
        ("--worker-blocks 0-999999999=5", "--worker-blocks: '0-999999999=5': workers are 0 ... 9"),
        ("--outage 1=5s-9s --outage 1=7s", "--outage: worker 1 is to die at 7 s, but is gone fro"),
        ("--slow-worker x", "--slow-worker: 'x' is not WORKER=VALUE"),
        ("--worker-blocks 0=1.5", "--worker-blocks: 1.5 blocks of worker 0"),
        ("--outage 3", "--outage: '3' is not WORKER=TIME"),
        ("--start-time never", "--start-time: 'never' is not a time"),
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
    curve = read_curve(path, 1000, "--x")
    assert curve.decode_ms(0.03) == pytest.approx(5.0, rel=0.3)
    path.write_bytes(b"\n".join(msgspec.json.encode(record) for record in records[:49]))
    with pytest.raises(SettingsError, match=r"--x: .*records.jsonl: the load records have 49 tim"):
        read_curve(path, 1000, "--x")
    path.write_text("\n{}\n")
    with pytest.raises(SettingsError, match=r"--x: .*records.jsonl line 2: kv-events record"):
        read_curve(path, 1000, "--x")
