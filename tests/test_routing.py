from __future__ import annotations

import msgspec
import pytest

from controllers.errors import NotReady, Overloaded, RateLimited
from controllers.events import Load
from controllers.placement import PlacementSettings
from controllers.replica_meter import TierTarget
from serve_app import routing
from serve_app.executors.base import TokenChunk
from serve_app.fleet import Ask, Route
from serve_app.wire import Call, decode_call
from tests.routing_rig import INFO, Rig, ask, metadata, settings

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
    assert rig.place("q") == "b"
    assert (route.worker, route.reason, route.predicted_cached_tokens) == ("b-0", "overlap", 20)
    assert (route.best_cached_tokens, route.num_candidates, route.num_attempts) == (20, 2, 1)


def test_the_call_carries_the_request_its_rank_and_what_is_left_to_compute() -> None:
    rig = Rig("a")
    rig.up("a-0")
    rig.store("a-0", TOKENS)
    wanted = ask("q", [*TOKENS, 1, 2, 3])
    rig.routing.begin(wanted, Route())
    rig.place("q")
    target = TierTarget("interactive", 0, 2000.0, 100.0)
    assert decode_call(rig.routing.attempts.encode_call("q")) == Call(
        wanted.request, 3, 120.0, 60.0, target=target
    )


def test_what_the_model_takes_is_known_while_no_worker_is_there_for_a_moment() -> None:
    rig = Rig()
    with pytest.raises(NotReady):
        rig.routing.info()
    rig.routing.set_members({"a": metadata("a")})
    rig.routing.set_members({})
    assert rig.routing.info() == INFO
    assert rig.routing.readiness() == "no worker is up yet"


def test_a_fleet_that_may_be_zero_is_ready_without_a_worker() -> None:
    rig = Rig(autoscaling={"enabled": True, "min_replicas": 0})
    assert rig.routing.readiness() is None


def test_new_workers_are_told_once() -> None:
    rig, told = Rig("a"), list[list[str]]()
    rig.routing._on_new_workers = told.append
    for members in (("a", "b"), ("b",), ("a", "b", "c")):
        rig.routing.set_members({name: metadata(name) for name in members})
    assert told == [["b-0"], ["a-0", "c-0"]]


def test_our_own_requests_are_placed_but_in_no_books() -> None:
    rig = Rig("a")
    rig.up("a-0")
    rig.store("a-0", TOKENS)
    before = rig.routing.describe()["routing"]
    outcome = rig.routing.begin_quietly(ask("warm-1", TOKENS))
    assert rig.place("warm-1") == "a"
    assert rig.routing.describe()["routing"]["reserved"] == 1
    rig.routing.finish_quietly(outcome)
    assert rig.routing.describe()["routing"] == before
    assert rig.decisions() == []


def test_overlap_of_a_member_and_of_nobody() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("a-0", TOKENS)
    hashes = ask("q", TOKENS).hashes
    found = [rig.routing.overlap(worker, hashes) for worker in ("a-0", "b-0", "c-0")]
    assert found == [len(hashes), 0, None]


def test_a_stalled_worker_is_left_out_while_others_can_work() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    rig.publish("b-0", LOAD, msgspec.structs.replace(LOAD, is_stalled=True))
    rig.read()
    rig.routing.begin(ask("q", TOKENS), Route())
    assert rig.place("q") == "a"
    rig.now += 5.0
    assert rig.place("q") == "b"
    rig.publish("a-0", msgspec.structs.replace(LOAD, is_stalled=True))
    rig.publish("b-0", msgspec.structs.replace(LOAD, is_stalled=True))
    rig.read()
    assert rig.place("q") == "b"
    rig.routing.attempts.first_token("q")
    assert rig.place("q") == "b"


def test_a_failed_worker_is_not_tried_again_by_the_same_request() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    route = Route()
    rig.routing.begin(ask("q", TOKENS), route)
    assert rig.place("q") == "b"
    rig.routing.attempts.failed("q")
    assert rig.place("q") == "a"
    assert (route.worker, route.num_attempts) == ("a-0", 2)
    rig.routing.attempts.failed("q")
    with pytest.raises(NotReady):
        rig.place("q")


def test_a_refusing_replica_is_left_out() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    rig.routing.begin(ask("q", TOKENS), Route())
    rig.routing.attempts.refused("q").add("b")
    assert rig.place("q") == "a"
    assert rig.routing.attempts.replica_of("q") == "a"


def test_an_ended_request_leaves_one_record_and_no_reservation() -> None:
    rig = Rig("a")
    rig.up("a-0")
    outcome = rig.routing.begin(ask("q", TOKENS, n=2), Route())
    rig.place("q")
    rig.now += 0.5
    assert outcome.on_chunk(TokenChunk(token_ids=(1,), cached_tokens=4, queue_ms=1.5)) is True
    rig.routing.attempts.first_token("q")
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
    assert rig.place("q") == "b"
    rig.routing.set_members({"a": _said(rig, "a")})
    rig.routing.begin(ask("r", TOKENS), Route())
    assert rig.place("r") == "a"
    workers = rig.routing.describe()["workers"]
    assert [(w["worker"], w["resident_blocks"]) for w in workers] == [("a-0", {})]


def _said(rig: Rig, uid: str) -> dict[str, object]:
    member = rig.routing._members.by_replica[uid]
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
        picks.append(rig.place(f"q{i}"))
        rig.routing.finish(outcome, "ok")
    assert sorted(picks) == ["a", "a", "b", "b"]
    rig.routing.configure(settings(routing={"policy": PlacementSettings().policy}))
    rig.routing.begin(ask("q", TOKENS), Route())
    assert rig.place("q") == "b"


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
        rig.place(wanted)
        rig.routing.finish(outcome, "ok")
        assert (route.worker, route.reason) == expected


def limited(**limits: float) -> dict[str, dict[str, object]]:
    return {"default": {"limits": limits}}


def test_a_tenant_over_its_limit_is_refused_and_leaves_nothing() -> None:
    rig = Rig("a", tenants=limited(max_concurrent=1))
    rig.up("a-0")
    outcome = rig.routing.begin(ask("q", TOKENS), Route())
    with pytest.raises(RateLimited, match="'default' may have 1 requests at a time"):
        rig.routing.begin(ask("r", TOKENS), Route())
    described = rig.routing.describe()["routing"]
    assert (described["in_flight"], described["waiting"]) == (1, 1)
    assert described["rate_limited_by_tenant"] == {"default": 1}
    rig.routing.finish(outcome, "ok")
    assert rig.routing.describe()["routing"]["waiting"] == 0
    rig.routing.begin(ask("r", TOKENS), Route())


def test_only_tokens_that_nobody_holds_count_against_a_tenant() -> None:
    rig = Rig("a", tenants=limited(max_uncached_tokens_per_s=8), admission={"burst_s": 1.0})
    rig.up("a-0")
    rig.store("a-0", TOKENS)
    for name in "qrs":
        outcome = rig.routing.begin(ask(name, [*TOKENS, 1, 2]), Route())  # 2 of 22 are new
        rig.place(name)
        outcome.on_chunk(TokenChunk(token_ids=(1,), cached_tokens=20))
        rig.routing.attempts.first_token(name)
    with pytest.raises(RateLimited, match="over 8 uncached tokens per second") as caught:
        rig.routing.begin(ask("t", [*TOKENS, 1, 2, 3, 4]), Route())
    assert caught.value.retry_after_s == pytest.approx(0.25)


def ranked(request_id: str, rank: int, tier: str) -> Ask:
    given = ask(request_id, TOKENS)
    request = msgspec.structs.replace(given.request, service_rank=rank)
    return msgspec.structs.replace(given, request=request, tier=tier)


def test_in_a_full_router_the_worst_rank_gives_way() -> None:
    rig = Rig("a", admission={"max_waiting_requests": 2})
    rig.up("a-0")
    interrupted: list[str] = []
    batch = rig.routing.begin(ranked("batch", 2, "batch"), Route())
    batch.interrupt = lambda: interrupted.append("batch")
    rig.routing.begin(ranked("chat", 0, "interactive"), Route())
    rig.routing.begin(ranked("chat 2", 0, "interactive"), Route())
    assert interrupted == ["batch"]
    assert str(batch.refusal) == "too many requests wait, others come first"
    rig.routing.finish(batch, "refused")
    with pytest.raises(Overloaded, match="none of them gives way to rank 2"):
        rig.routing.begin(ranked("more", 2, "batch"), Route())
    described = rig.routing.describe()["routing"]
    assert described["refused_by_tier"] == {"batch": 2}
    assert (described["in_flight"], described["waiting"]) == (2, 2)


def test_the_call_says_how_long_its_tier_lets_it_wait_and_what_its_tenant_weighs() -> None:
    tiers = {"rules": {"interactive": {"rank": 0, "max_ttft_ms": 800.0}}}
    rig = Rig("a", tiers=tiers, tenants=limited(weight=2.5))
    rig.up("a-0")
    rig.routing.begin(ask("q", TOKENS), Route())
    rig.now += 0.3
    rig.place("q")
    call = decode_call(rig.routing.attempts.encode_call("q"))
    assert call.tenant_weight == 2.5
    assert call.max_wait_s == pytest.approx(0.5)


def test_what_cannot_be_in_time_is_refused_before_it_is_sent() -> None:
    tiers = {"rules": {"interactive": {"rank": 0, "max_ttft_ms": 1.0}}}
    rig = Rig("a", tiers=tiers)
    rig.up("a-0")
    rig.routing.begin(ask("q", TOKENS), Route())
    rig.place("q")  # an idle worker takes it
    rig.routing.begin(ask("r", TOKENS), Route())
    with pytest.raises(Overloaded, match="on the best of 1 workers; 1 ms are allowed"):
        rig.place("r")
    assert rig.routing._placement.num_reserved == 1


def test_new_limits_hold_for_what_runs() -> None:
    rig = Rig("a")
    rig.up("a-0")
    rig.routing.begin(ask("q", TOKENS), Route())
    rig.routing.configure(settings(tenants=limited(max_concurrent=1)))
    with pytest.raises(RateLimited):
        rig.routing.begin(ask("r", TOKENS), Route())


def test_a_full_gate_is_not_asked_again_by_the_next_of_its_kind() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("b-0", TOKENS)
    rig.routing.begin(ranked("q", 2, "batch"), Route())
    assert rig.place("q") == "b"
    rig.routing.attempts.failed("q", is_refusal=True)
    rig.routing.begin(ranked("r", 2, "batch"), Route())
    assert rig.place("r") == "a"
    rig.routing.attempts.failed("r", is_refusal=True)
    rig.routing.begin(ranked("s", 2, "batch"), Route())
    with pytest.raises(Overloaded, match="every worker has as much waiting as it may"):
        rig.place("s")
    rig.routing.begin(ranked("chat", 0, "interactive"), Route())
    assert rig.place("chat") in {"a", "b"}
    rig.now += 0.2
    assert rig.place("s") in {"a", "b"}


def test_several_ingresses_share_a_limit_as_many_as_there_are_now() -> None:
    rig = Rig("a", http={"num_ingress": 2}, tenants=limited(max_concurrent=2))
    rig.up("a-0")
    rig.routing.begin(ask("q", TOKENS), Route())
    with pytest.raises(RateLimited, match="may have 2 requests at a time"):
        rig.routing.begin(ask("r", TOKENS), Route())
    rig.routing.configure(settings(http={"num_ingress": 1}, tenants=limited(max_concurrent=2)))
    rig.routing.begin(ask("r", TOKENS), Route())


def test_decision_records_that_the_log_did_not_take_are_counted() -> None:
    rig = Rig("a")
    rig.up("a-0")
    assert rig.routing.describe()["routing"]["decision_records_lost"] == 0
    rig.bus.lose_next(1)
    call = rig.routing.begin(ranked("one", 0, "interactive"), Route())
    rig.routing.finish(call, "cancelled")
    assert rig.routing.describe()["routing"]["decision_records_lost"] == 1
