"""Learned retention in the routing state: planned per worker, taught by requests and the log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controllers.events import Load, Removed, hexes_of
from controllers.learned_retention import Use
from controllers.promising import LOWEST_PROMISED
from controllers.prompt_use import PromptUse
from controllers.retention import Retention
from serve_app.fleet import Ask, Route
from serve_app.outcome import Outcome
from serve_app.wire import Call, decode_call
from tests.routing_rig import BLOCK_SIZE, Rig, ask

TOKENS = list(range(40))


def learned_ask(request_id: str, tokens: list[int] = TOKENS) -> Ask:
    plain = ask(request_id, tokens)
    use = PromptUse(plain.hashes, len(tokens), BLOCK_SIZE, "interactive")
    return msgspec.structs.replace(plain, prompt_use=use)


def place(rig: Rig, asked: Ask) -> tuple[Outcome, Call]:
    outcome = rig.routing.begin(asked, Route())
    rig.place(asked.request.request_id)
    return outcome, decode_call(rig.routing.attempts.encode_call(asked.request.request_id))


def use_of(rig: Rig) -> Use:
    """The only request's."""
    (plan,) = rig.routing._retention._own.plans._plans.values()
    return plan.use


def rig() -> Rig:
    made = Rig("a", "b")
    made.up("a:0", "b:0")
    return made


def test_a_request_without_learned_retention_keeps_its_own() -> None:
    r = rig()
    plain = ask("r1", TOKENS)
    assert place(r, plain)[1].request.retention == plain.request.retention == Retention()


def test_a_request_is_planned_for_the_worker_that_it_goes_to() -> None:
    r = rig()
    outcome, call = place(r, learned_ask("r1"))
    ranges = call.request.retention.ranges
    assert (ranges[0].start, ranges[-1].end) == (0, None)
    assert ranges[0].retention_priority > 35
    use = use_of(r)
    assert use.worker == outcome.route.worker


def test_pieces_that_go_to_one_worker_have_one_plan() -> None:
    r = rig()
    outcome, first = place(r, learned_ask("r1"))
    r.now += 1.0
    again = r.routing._retention.retention(outcome, r.now)
    assert again == first.request.retention
    assert [run.num_uses for run in use_of(r).path] == [1]


def test_another_attempt_is_planned_for_the_other_worker() -> None:
    r = rig()
    outcome, _ = place(r, learned_ask("r1"))
    first = outcome.route.worker
    r.routing.attempts.failed("r1")
    r.place("r1")
    r.routing.attempts.encode_call("r1")
    use = use_of(r)
    assert use.worker == outcome.route.worker != first
    assert [run.num_uses for run in use.path] == [1]


def test_what_has_ended_teaches_and_is_forgotten_as_a_request() -> None:
    r = rig()
    outcome, _ = place(r, learned_ask("r1"))
    use = use_of(r)
    outcome.cached_tokens = 8
    r.now += 3.0
    r.routing.finish(outcome, "ok")
    assert len(r.routing._retention._own.plans) == 0
    assert use.path[0].touch is not None
    assert use.path[0].touch.at == r.now


def test_the_log_tells_what_was_removed() -> None:
    r = rig()
    outcome, _ = place(r, learned_ask("r1"))
    use = use_of(r)
    worker = outcome.route.worker
    grant = use.path[0].grants[worker]
    assert grant.num_held == 10
    r.publish(worker, Removed(hashes=hexes_of(use.prompt.hashes[-4:])))
    r.read()
    assert grant.num_held == 6


def test_loads_make_it_fit() -> None:
    r = rig()
    load: dict[str, Any] = {"used_blocks": {}, "total_blocks": {"gpu": 1000}}
    beat = Load(num_active=0, num_queued=0, queued_prefill_tokens=0, decode_tokens=0, **load)
    before = r.routing._retention._own.learned.survival.index
    r.publish("a:0", beat)
    r.read()
    assert r.routing._retention._own.learned.survival.index is not before


def test_a_request_that_no_worker_took_teaches_nothing() -> None:
    r = rig()
    outcome = r.routing.begin(learned_ask("r1"), Route())
    r.routing.finish(outcome, "error")
    assert r.routing._retention._own.learned.num_blocks == 0
    assert len(r.routing._retention._own.plans) == 0


def tokens_of(number: int, num_tokens: int) -> list[int]:
    """Prompts that have no prefix in common."""
    return [number, *range(num_tokens - 1)]


def fill(r: Rig, worker: str, *, is_learned: bool = True) -> Outcome:
    """A request runs there to which all room is promised, if it is kept by what was learned."""
    tokens = tokens_of(1000, 3400)
    asked = learned_ask(worker, tokens) if is_learned else ask(worker, tokens)
    outcome, _ = place(r, msgspec.structs.replace(asked, pinned_worker=worker))
    r.routing.attempts.first_token(worker)
    room = r.routing._retention._own.learned._workers[worker].room
    assert room.left(LOWEST_PROMISED) == (0 if is_learned else 850)
    return outcome


@pytest.mark.parametrize(("full", "other"), [("a-0", "b-0"), ("b-0", "a-0")])
def test_a_request_goes_where_its_prompt_can_be_kept(full: str, other: str) -> None:
    r = Rig("a", "b")
    r.up("a-0", "b-0")
    fill(r, full)
    fill(r, other, is_learned=False)  # as much work, no promises
    asked, plain = learned_ask("r1", tokens_of(1, 120)), ask("r2", tokens_of(2, 120))
    costs = {c["worker"]: c for c in r.routing.explain(asked)["candidates"]}
    assert costs[full]["lost_ms"] > 0.0 == costs[other]["lost_ms"]
    assert costs[full]["service_ms"] == costs[other]["service_ms"]
    assert {c["lost_ms"] for c in r.routing.explain(plain)["candidates"]} == {0.0}
    assert place(r, asked)[0].route.worker == other


def test_what_the_log_says_was_removed_makes_room_again() -> None:
    r = rig()
    outcome = fill(r, "a-0")
    r.publish("a-0", Removed(hashes=hexes_of(outcome.ask.hashes)))
    r.read()
    explained = r.routing.explain(learned_ask("next", tokens_of(7, 200)))
    assert {c["lost_ms"] for c in explained["candidates"]} == {0.0}
