"""Workers of a fleet compared with one another by what they publish."""

from __future__ import annotations

from controllers.events import Cleared, EventBatch
from controllers.record_codec import encode
from infra.doctor.finding import Finding
from infra.doctor.fleet import Heard, check_workers, workers_of
from infra.event_bus_base import Record

NOW_S = 1_000_000.0


def heard(worker: str, ahead_s: float = -0.01, block_size: int = 32, model: str = "m") -> Heard:
    batch = EventBatch(
        schema=1,
        worker=worker,
        replica=worker[:-2],
        dp_rank=0,
        model=model,
        epoch=1,
        seq=0,
        ts_ms=round((NOW_S + ahead_s) * 1e3),
        block_size=block_size,
        events=[Cleared()],
    )
    return Heard(Record(0, 0, 0, worker.encode(), encode(batch)), NOW_S)


def levels(*found: Heard) -> dict[str, str]:
    return {f.id: f.level for f in check_workers(workers_of(found), 32)}


def test_workers_that_agree() -> None:
    assert check_workers(workers_of([heard("a-0"), heard("b-0", -0.02)]), 32) == [
        Finding("fleet.workers", "ok", "2 workers publish"),
        Finding("fleet.block_size", "ok", "every worker has 32 tokens a block"),
        Finding("fleet.model", "ok", "every worker serves m"),
        Finding("fleet.clocks", "ok", "the clock of b-0 is 0.020 s behind ours"),
    ]


def test_silence_is_a_warning() -> None:
    assert levels() == {"fleet.workers": "warning"}
    junk = Heard(Record(0, 0, 0, b"a-0", b"{}"), NOW_S)
    assert levels(junk) == {"fleet.workers": "warning"}


def test_another_block_size_is_an_error_naming_who_has_it() -> None:
    found = check_workers(workers_of([heard("a-0"), heard("b-0", block_size=64)]), 32)
    (error,) = [f for f in found if f.level == "error"]
    assert error.id == "fleet.block_size"
    assert error.found == "tokens a block, 32 in the settings: 32: a-0; 64: b-0"
    assert levels(heard("a-0", block_size=64))["fleet.block_size"] == "error"


def test_two_models_in_one_log_are_an_error() -> None:
    assert levels(heard("a-0"), heard("b-0", model="n"))["fleet.model"] == "error"


def test_a_worker_whose_clock_is_wrong() -> None:
    assert levels(heard("a-0"), heard("b-0", 30.0))["fleet.clocks"] == "warning"
    assert levels(heard("a-0"), heard("b-0", -30.0))["fleet.clocks"] == "warning"


def test_a_record_that_waited_says_nothing_of_the_clock() -> None:
    assert levels(heard("a-0", -5.0), heard("a-0", -0.01))["fleet.clocks"] == "ok"
