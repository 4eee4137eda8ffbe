"""`cachelane tune` on a dump of the log."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from controllers.errors import SettingsError, SetupError
from controllers.record_codec import encode
from controllers.tuning import FLOOR, MIN_GAIN
from infra.settings import to_settings
from serve_app.cli_app import app_for
from serve_app.cli_tune import tune
from serve_app.tune_log import Source, read_log
from tests.test_tuning import UP, B, batch, decision, mix, stored

app = app_for([])


def dump(folder: Path, num: int, num_blocks: int = 100, request_type: str = "") -> list[str]:
    """Files of a log in which `mix` was served; a line of each is damaged."""
    up = msgspec.structs.replace(UP, num_blocks={"gpu": num_blocks})
    events, decisions = [encode(batch(up)), b"{"], [b"{"]
    for at, prompt in enumerate(mix(num)):
        events.append(encode(batch(stored(None, *prompt.hashes))))
        made = decision(prompt.hashes[-1], len(prompt.hashes), ts_ms=int(prompt.at_s * 1e3))
        values = json.loads(encode(made)) | {"request_type": request_type or prompt.request_type}
        decisions.append(json.dumps(values | {"request_id": str(at), "total_ms": 0.0}).encode())
    (folder / "e.jsonl").write_bytes(b"\n".join(events))
    (folder / "d.jsonl").write_bytes(b"\n".join(decisions))
    return command(folder / "e.jsonl", folder / "d.jsonl")


def command(events: Path, decisions: Path) -> list[str]:
    return ["tune", "--events", str(events), "--decisions", str(decisions)]


def test_a_dump_gives_rates_and_settings_that_can_be_used(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*dump(tmp_path, 40), "--json"], catch_exceptions=False)
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (report["num_decisions"], report["num_unknown"]) == (480, 0)
    assert (report["num_skipped_events"], report["num_skipped_decisions"]) == (1, 1)
    assert report["why_no_proposal"] is None
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


def test_the_table_is_whole_at_any_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "documents-of-a-customer-with-a-rather-long-name-" * 2
    done = CliRunner().invoke(app, dump(tmp_path, 20, request_type=name), catch_exceptions=False)
    table = done.stdout[: done.stdout.index("└")]
    assert "…" not in done.stdout
    assert all(policy in table for policy in ("lru", "present", "proposed tiers", "learned"))
    first_column = "".join(line[1:].split("│")[0].strip() for line in table.splitlines())
    assert name in first_column.replace(" ", "")
    assert max(map(len, table.splitlines())) <= 80


def test_skipped_records_are_counted_by_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, dump(tmp_path, 20), catch_exceptions=False)
    assert (
        f"Unreadable and skipped: 1 of 242 records of {tmp_path}/e.jsonl.\n"
        f"Unreadable and skipped: 1 of 241 records of {tmp_path}/d.jsonl.\n"
    ) in done.stdout


def test_without_cache_pressure_nothing_is_proposed(tmp_path: Path) -> None:
    options = dump(tmp_path, 20, num_blocks=10_000)
    done = CliRunner().invoke(app, options, catch_exceptions=False)
    assert "No proposal: there was no cache pressure." in done.stdout
    assert "Best that holds" not in done.stdout
    assert "# " not in done.stdout
    done = CliRunner().invoke(app, [*options, "--json"], catch_exceptions=False)
    report = json.loads(done.stdout)
    assert report["why_no_proposal"].startswith("there was no cache pressure")
    assert [each["settings"] for each in report["policies"]] == [None] * 4


def test_gzip_is_read_and_damage_to_it_told(tmp_path: Path) -> None:
    dump(tmp_path, 20)
    zipped = [tmp_path / "e.gz", tmp_path / "d.gz"]
    for plain, file in zip(("e.jsonl", "d.jsonl"), zipped, strict=True):
        file.write_bytes(gzip.compress((tmp_path / plain).read_bytes()))
    done = CliRunner().invoke(app, command(*zipped), catch_exceptions=False)
    assert done.exit_code == 0
    zipped[0].write_bytes(zipped[0].read_bytes()[:-20])
    with pytest.raises(SettingsError, match=r"cannot read .*e\.gz: Compressed file ended"):
        CliRunner().invoke(app, command(*zipped), catch_exceptions=False)


@pytest.mark.parametrize(
    ("events", "decisions", "message"),
    [
        (b"", b"{}", "e is empty: there are no events to read"),
        (b"EVENT", b"\n\n", "d is empty: there are no decisions to read"),
        (b"\xff\x00\n{}", b"{}", "e: none of 2 records can be read as events"),
        (b"EVENT", b"\xff\n7\n", "d: none of 2 records can be read as decisions"),
        (b"EVENT", b"EVENT", "d has events instead of decisions"),
        (b"DECISION", b"x", "e has decisions instead of events"),
        (b"DECISION", b"EVENT", "e has decisions and {}/d has events: they are swapped"),
    ],
)
def test_files_of_which_nothing_can_be_used(
    tmp_path: Path, events: bytes, decisions: bytes, message: str
) -> None:
    records = {b"EVENT": encode(batch(UP)), b"DECISION": encode(decision(1, 1))}
    files = [tmp_path / "e", tmp_path / "d"]
    for file, content in zip(files, (events, decisions), strict=True):
        file.write_bytes(records.get(content, content))
    with pytest.raises(SetupError) as caught:
        CliRunner().invoke(app, command(*files), catch_exceptions=False)
    assert str(caught.value) == f"{tmp_path}/{message.format(tmp_path)}"


def test_damaged_records_are_left_out() -> None:
    log = read_log(
        Source("e", [b"", b"null", encode(batch(UP, stored(None, 1)))]),
        Source("d", [b"[]", encode(decision(1, 1))]),
    )
    assert [prompt.hashes for prompt in log.record.prompts()["r1:0"]] == [[1]]
    assert log.record.block_size == B
    assert log.skipped == ["1 of 2 records of e", "1 of 2 records of d"]
