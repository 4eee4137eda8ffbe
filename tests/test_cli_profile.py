"""What `cachelane profile` makes of the replicas' answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from controllers.errors import CachelaneError, SetupError
from infra.ports import free_ports
from serve_app.cli_app import app_for
from serve_app.cli_profile import _answers, check_address, describe, find
from serve_app.profiling import ProfileAnswer

app = app_for([])

A = ProfileAnswer(replica="a", workers=["a-0"])
B = ProfileAnswer(replica="b", workers=["b-0", "b-1"])
DONE = ProfileAnswer(
    replica="b", workers=["b-0"], node="n1", tool="py-spy", path="/p/b.svg", num_bytes=33_736
)


def test_the_answer_that_was_meant() -> None:
    assert find([A, DONE], "b-0") is DONE


def test_an_unknown_replica_names_the_known_ones() -> None:
    with pytest.raises(CachelaneError, match=r"no replica or worker 'x'; known: a-0, b-0, b-1$"):
        find([B, A], "x")
    with pytest.raises(CachelaneError, match="known: none"):
        find([], "x")


def test_an_error_of_the_replica_is_ours() -> None:
    failed = ProfileAnswer(replica="b", workers=["b-0"], error="py-spy is not there: install it")
    with pytest.raises(CachelaneError, match="^py-spy is not there: install it$"):
        find([A, failed], "b-0")


def test_a_replica_that_could_not_be_asked() -> None:
    lost = ProfileAnswer(error="a replica did not answer: ActorDiedError")
    assert find([lost, DONE], "b-0") is DONE
    with pytest.raises(CachelaneError, match="^a replica did not answer: ActorDiedError$"):
        find([A, lost], "b-0")


def test_where_the_file_is() -> None:
    assert describe(DONE, "n1") == "/p/b.svg\npy-spy, 34 kB: open it in a browser"
    assert describe(DONE, "n2").splitlines()[0] == "/p/b.svg on node n1"


@pytest.mark.parametrize("address", ["", "head", ":6379", "head:", "head:0", "head:70000"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(SetupError, match=f"--address: {address!r} is not HOST:PORT"):
        check_address(address)


def test_an_address_where_nothing_listens_is_not_waited_for() -> None:
    [port] = free_ports(1)
    result = CliRunner().invoke(app, ["profile", "a-0", "--address", f"127.0.0.1:{port}"])
    assert isinstance(result.exception, SetupError)
    assert str(result.exception) == (
        f"--address: nothing listens at 127.0.0.1:{port}; give that of Ray's head"
    )


def test_what_the_client_process_says() -> None:
    said = 'noise of Ray\n{"answers": [{"replica": "a", "workers": ["a-0"]}]}\n'
    assert _answers(said, "") == [A]
    with pytest.raises(SetupError, match="asking the cluster failed: bad token"):
        _answers('{"error": "bad token"}', "")
    with pytest.raises(SetupError, match="asking the cluster failed: Killed"):
        _answers("", "first\nKilled\n")


@pytest.mark.parametrize(
    "arguments", [["--seconds", "0"], ["--seconds", "601"], ["--tool", "perf"], ["--seconds", "x"]]
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["profile", "a-0", *arguments]).exit_code == 2


def test_nothing_runs(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["profile", "a-0", "--state-dir", str(tmp_path)])
    assert isinstance(done.exception, SetupError)
    assert str(done.exception).startswith(f"nothing is running for {tmp_path}")
