from __future__ import annotations

import msgspec
import pytest

from controllers.errors import NotReady
from controllers.events import Load
from controllers.placement import PlacementSettings
from serve_app import routing
from serve_app.executors.base import TokenChunk
from serve_app.fleet import Route
from serve_app.wire import Call, decode_call
from tests.routing_rig import INFO, Rig, ask, settings

TOKENS = list(range(100, 120))  # 5 blocks
LOAD = Load(
    num_active=0,
    num_queued=0,
    queued_prefill_tokens=0,
    decode_tokens=0,
    used_blocks={"gpu": 0},
    total_blocks={"gpu": 1000},
)


def test_a_prefix_pulls_its_next_turn_to_its_worker() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    route = Route()
    rig.routing.begin(ask("q", [*TOKENS, 1, 2, 3]), route)
    assert rig.routing.place("q") == "b"
    assert (route.worker, route.reason, route.predicted_cached_tokens) == ("b-0", "overlap", 20)
    assert (route.best_cached_tokens, route.num_candidates, route.num_attempts) == (20, 2, 1)


def test_the_call_carries_the_request_its_rank_and_what_is_left_to_compute() -> None:
    rig = Rig("a")
    rig.up("a-0")
    rig.store("a-0", TOKENS)
    wanted = ask("q", [*TOKENS, 1, 2, 3])
    rig.routing.begin(wanted, Route())
    rig.routing.place("q")
    assert decode_call(rig.routing.encode_call("q")) == Call(wanted.request, 3, 120.0, 60.0)


def test_a_stalled_worker_is_left_out_while_others_can_work() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    rig.publish("b-0", LOAD, msgspec.structs.replace(LOAD, is_stalled=True))
    rig.read()
    rig.routing.begin(ask("q", TOKENS), Route())
    assert rig.routing.place("q") == "a"
    rig.now += 5.0
    assert rig.routing.place("q") == "b"
    rig.publish("a-0", msgspec.structs.replace(LOAD, is_stalled=True))
    rig.publish("b-0", msgspec.structs.replace(LOAD, is_stalled=True))
    rig.read()
    assert rig.routing.place("q") == "b"
    rig.routing.first_token("q")
    assert rig.routing.place("q") == "b"


def test_a_failed_worker_is_not_tried_again_by_the_same_request() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    route = Route()
    rig.routing.begin(ask("q", TOKENS), route)
    assert rig.routing.place("q") == "b"
    rig.routing.failed("q")
    assert rig.routing.place("q") == "a"
    assert (route.worker, route.num_attempts) == ("a-0", 2)
    rig.routing.failed("q")
    with pytest.raises(NotReady):
        rig.routing.place("q")


def test_a_refusing_replica_is_left_out() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    rig.routing.begin(ask("q", TOKENS), Route())
    assert rig.routing.place("q", {"b"}) == "a"
    assert rig.routing.replica_of("q") == "a"


def test_an_ended_request_leaves_one_record_and_no_reservation() -> None:
    rig = Rig("a")
    rig.up("a-0")
    outcome = rig.routing.begin(ask("q", TOKENS, n=2), Route())
    rig.routing.place("q")
    rig.now += 0.5
    assert outcome.on_chunk(TokenChunk(token_ids=(1,), cached_tokens=4, queue_ms=1.5)) is True
    rig.routing.first_token("q")
    assert outcome.on_chunk(TokenChunk(token_ids=(2, 3), finish_reason="length")) is False
    assert outcome.is_complete is False
    outcome.on_chunk(TokenChunk(index=1, finish_reason="stop"))
    assert outcome.is_complete is True
    rig.now += 0.5
    rig.routing.finish(outcome, "ok")
    rig.routing.finish(outcome, "error")
    (record,) = rig.decisions()
    assert (record.request_id, record.worker, record.reason, record.status) == (
        "q",
        "a-0",
        "cold",
        "ok",
    )
    assert (record.prompt_tokens, record.prompt_blocks, record.cached_tokens) == (20, 5, 4)
    assert (record.ttft_ms, record.queue_ms, record.total_ms) == (500.0, 1.5, 1000.0)
    assert (record.output_tokens, record.num_attempts, record.model) == (3, 1, "m")
    described = rig.routing.describe()
    assert described["routing"]["decisions"] == {"cold": 1}
    assert described["routing"]["outcomes"] == {"ok": 1}
    assert rig.routing._placement.num_reserved == 0


def test_a_member_that_left_loses_its_blocks_and_its_requests() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    rig.routing.begin(ask("q", TOKENS), Route())
    assert rig.routing.place("q") == "b"
    rig.routing.set_members({"a": _said(rig, "a")})
    rig.routing.begin(ask("r", TOKENS), Route())
    assert rig.routing.place("r") == "a"
    workers = rig.routing.describe()["workers"]
    assert [(w["worker"], w["resident_blocks"]) for w in workers] == [("a-0", {})]


def _said(rig: Rig, uid: str) -> dict[str, object]:
    member = rig.routing._members[uid]
    info = {name: getattr(member.info, name) for name in INFO.__struct_fields__}
    return {"workers": member.workers, "epoch": member.epoch, "info": info}


def test_without_members_nothing_is_ready() -> None:
    rig = Rig()
    assert rig.routing.readiness() == "no worker is up yet"
    with pytest.raises(NotReady):
        rig.routing.info()
    with pytest.raises(NotReady):
        rig.routing.explain(ask("q", TOKENS))


def test_it_is_ready_when_every_member_is_known_or_the_bound_has_passed() -> None:
    rig = Rig("a", "b")
    assert rig.routing.readiness() == "waiting for what 2 of 2 workers hold"
    rig.up("a-0")
    assert rig.routing.readiness() == "waiting for what 1 of 2 workers hold"
    rig.up("b-0")
    assert rig.routing.readiness() is None
    rig.now += 5.0  # both fall silent
    rig.read()
    assert rig.routing._feed.missing() == ["a-0", "b-0"]
    assert rig.routing.readiness() is None

    late = Rig("a", events={"ready_timeout_s": 3.0})
    late.now += 2.9
    assert late.routing.readiness() is not None
    late.now += 0.2
    assert late.routing.readiness() is None
    assert late.routing.info() == INFO


def test_explain_reserves_nothing_and_names_every_candidate() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    explained = rig.routing.explain(ask("q", TOKENS))
    assert (explained["worker"], explained["reason"]) == ("b-0", "overlap")
    assert {c["worker"]: c["overlap_blocks"] for c in explained["candidates"]} == {
        "a-0": 0,
        "b-0": 5,
    }
    assert rig.routing._placement.num_reserved == 0
    assert rig.decisions() == []


def test_a_new_policy_takes_effect_and_keeps_what_is_known() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    rig.routing.configure(settings(routing={"policy": "round_robin"}))
    picks = []
    for i in range(4):
        outcome = rig.routing.begin(ask(f"q{i}", TOKENS), Route())
        picks.append(rig.routing.place(f"q{i}"))
        rig.routing.finish(outcome, "ok")
    assert sorted(picks) == ["a", "a", "b", "b"]
    rig.routing.configure(settings(routing={"policy": PlacementSettings().policy}))
    rig.routing.begin(ask("q", TOKENS), Route())
    assert rig.routing.place("q") == "b"


def test_describe_tells_blocks_by_class_and_an_unheard_member() -> None:
    rig = Rig("a", "b")
    rig.up("a-0")
    rig.store("a-0", TOKENS)
    described = rig.routing.describe()
    assert (described["model"], described["block_size"], described["ready"]) == ("m", 4, False)
    a, b = described["workers"]
    assert (a["resident_blocks"], a["resident_blocks_by_retention_priority"]) == (
        {"gpu": 5},
        {"35": 5},
    )
    assert (a["stale"], a["stale_reason"]) == (False, None)
    assert (b["stale"], b["stale_reason"], b["num_blocks"]) == (
        True,
        "not heard of yet",
        {"gpu": 1000},
    )


def test_the_processs_state_exists_only_after_it_was_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "_current", [])
    with pytest.raises(RuntimeError, match="no routing state"):
        routing.current()
    rig = Rig("a")
    installed = routing.install(settings(), rig.bus)
    assert routing.current() is installed
    installed.close()


def test_a_pinned_worker_is_taken_while_it_is_there() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    for wanted, expected in (("gone-0", ("b-0", "overlap")), ("a-0", ("a-0", "pinned"))):
        route = Route()
        pinned = msgspec.structs.replace(ask(wanted, TOKENS), pinned_worker=wanted)
        outcome = rig.routing.begin(pinned, route)
        rig.routing.place(wanted)
        rig.routing.finish(outcome, "ok")
        assert (route.worker, route.reason) == expected
