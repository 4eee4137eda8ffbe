"""`cachelane tune` on a dump of the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from controllers.errors import SettingsError, SetupError
from controllers.events import encode
from controllers.tuning import FLOOR, MIN_GAIN
from infra.settings import to_settings
from serve_app.cli_app import app
from serve_app.cli_tune import record_of, tune
from tests.test_tuning import UP, B, batch, decision, mix, stored


def dump(folder: Path, num: int) -> list[str]:
    """Files of a log in which `mix` was served; a line of each is damaged."""
    events, decisions = [encode(batch(UP)), b"{"], [b"{"]
    for at, prompt in enumerate(mix(num)):
        events.append(encode(batch(stored(None, *prompt.hashes))))
        made = decision(prompt.hashes[-1], len(prompt.hashes), ts_ms=int(prompt.at_s * 1e3))
        values = json.loads(encode(made)) | {"request_type": prompt.request_type}
        decisions.append(json.dumps(values | {"request_id": str(at), "total_ms": 0.0}).encode())
    (folder / "e.jsonl").write_bytes(b"\n".join(events))
    (folder / "d.jsonl").write_bytes(b"\n".join(decisions))
    return ["tune", "--events", str(folder / "e.jsonl"), "--decisions", str(folder / "d.jsonl")]


def test_a_dump_gives_rates_and_settings_that_can_be_used(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*dump(tmp_path, 40), "--json"], catch_exceptions=False)
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (report["num_decisions"], report["num_unknown"]) == (480, 0)
    assert report["num_fitted"] == report["num_judged"] == 240
    assert [each["name"] for each in report["policies"]] == [
        "lru", "present", "proposed tiers", "learned",
    ]  # fmt: skip
    for each in report["policies"]:
        assert len(each["gains"]) == 2
        assert each["holds"] is (min(each["gains"]) >= MIN_GAIN and each["least_of_lru"] >= FLOOR)
    for each in report["policies"][1:]:
        assert to_settings(each["settings"]).retention.policy in ("static", "learned")


def test_the_table_ends_with_settings_to_copy(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, dump(tmp_path, 20), catch_exceptions=False)
    assert "Predicted hit rates of both halves" in done.stdout
    assert "Best that holds: " in done.stdout
    learned = done.stdout[done.stdout.index("# learned") :]
    assert yaml.safe_load(learned) == {"retention": {"policy": "learned"}}


def test_too_little_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="12 of 12 decisions .* at least 100 are needed"):
        CliRunner().invoke(app, dump(tmp_path, 1), catch_exceptions=False)


def test_both_files_are_needed_and_read(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="go together"):
        tune(events_file=tmp_path / "e.jsonl")
    with pytest.raises(SettingsError, match=r"cannot read .*e\.jsonl: No such file"):
        tune(events_file=tmp_path / "e.jsonl", decisions_file=tmp_path / "d.jsonl")


def test_damaged_records_are_left_out() -> None:
    record = record_of(
        [b"", b"null", encode(batch(UP, stored(None, 1)))], [b"[]", encode(decision(1, 1))]
    )
    assert [prompt.hashes for prompt in record.prompts()["r1:0"]] == [[1]]
    assert record.block_size == B
