"""With other routers: what a request says of what may come before it, and what happens when its
worker hands it back. By a real Placement, and by a routing state without Ray."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from controllers.errors import Overloaded
from controllers.gate import SHARED_START_SHARE
from controllers.handbacks import AVOIDED_S
from controllers.placement_types import Sent
from serve_app.executors.base import TokenChunk
from serve_app.fleet import Route
from serve_app.wire import decode_call
from tests.placement_rig import BLOCK, Fleet
from tests.routing_rig import Rig, ask, settings
from tests.test_other_routers import booking, record

SHARED = int(SHARED_START_SHARE * 8192)
PROMPT = list(range(100_000, 100_200))
TOKENS = list(range(100, 500))


def sent(fleet: Fleet, name: str, hashes: list[int], **fields: object) -> Sent:
    fleet.placement.submit(fleet.query(hashes, request_id=name, **fields), fleet.now)
    [result] = fleet.placement.run(fleet.table, fleet.now)
    assert isinstance(result, Sent)
    return result


def hear(fleet: Fleet, seq: int = 0, worker: str = "gone", tokens: int = 0) -> None:
    """Of another router."""
    fleet.placement.on_bookings(
        record(seq, booking(worker=worker, prefill_tokens=tokens, service_ms=tokens / 40)),
        fleet.now,
    )


def test_alone_it_stays_where_it_is_sent() -> None:
    assert sent(Fleet(2), "q", PROMPT).max_ahead_tokens is None


@pytest.mark.parametrize("fields", [{"pinned": "r0-0"}, {"pinned": "gone"}, {"is_settled": True}])
def test_so_does_one_that_must(fields: dict[str, object]) -> None:
    fleet = Fleet(2)
    hear(fleet)
    assert sent(fleet, "q", PROMPT, **fields).max_ahead_tokens is None


def test_and_one_that_has_no_choice() -> None:
    fleet = Fleet(1)
    hear(fleet)
    assert sent(fleet, "q", PROMPT).max_ahead_tokens is None
    by_hash = Fleet(2, is_known=False)
    hear(by_hash)
    assert sent(by_hash, "q", PROMPT).max_ahead_tokens is None


def test_it_lets_pass_what_is_known_and_what_makes_up_for_another_worker() -> None:
    fleet = Fleet(2)
    fleet.store("r0-0", PROMPT[:100])
    hear(fleet)
    decision = sent(fleet, "q", PROMPT)
    assert decision.placed.worker == "r0-0"
    most = decision.max_ahead_tokens
    assert most is not None
    # A half of the prompt is there: the other worker would compute that too, at its price.
    assert SHARED + 100 * BLOCK / 2 < most < SHARED + 4 * 100 * BLOCK

    fleet.placement.release("q", fleet.now)
    busy = Fleet(2)
    busy.store("r0-0", PROMPT[:100])
    hear(busy)
    hear(busy, 1, "r0-0", 1000)
    known = sent(busy, "q", PROMPT)
    assert known.placed.worker == "r0-0"
    assert known.max_ahead_tokens is not None
    assert SHARED + 1000 < known.max_ahead_tokens < most + 1000


def test_what_was_to_be_computed_is_not_expected_after_it_was_handed_back() -> None:
    fleet = Fleet(2)
    fleet.store("r0-0", PROMPT[:100])
    hear(fleet)
    assert sent(fleet, "q", PROMPT).placed.worker == "r0-0"
    fleet.placement.take_back("q", fleet.now)
    assert fleet.placement.num_reserved == 0
    again = sent(fleet, "q", PROMPT)
    assert (again.placed.worker, again.placed.predicted_cached_tokens) == ("r0-0", 100 * BLOCK)
    fleet.placement.take_back("unknown", fleet.now)
    assert fleet.placement.num_reserved == 1


def test_it_goes_elsewhere_and_only_so_often() -> None:
    rig = Rig("a", "b", routing={"max_handbacks": 2})
    rig.up("a-0", "b-0")
    rig.store("a-0", TOKENS[:200])
    route, attempts = Route(), rig.routing.attempts
    outcome = rig.routing.begin(ask("q", TOKENS), route)
    went = []
    for _ in range(2):
        went.append(rig.place("q"))
        assert attempts._query(outcome).is_settled is False
        attempts.handed_back("q")
        assert rig.routing._placement.num_reserved == 0
    went.append(rig.place("q"))
    assert went == ["a", "b", "a"]
    assert attempts._query(outcome).is_settled is True
    assert (route.num_attempts, route.predicted_cached_tokens) == (1, 200)
    rig.routing.finish(outcome, "ok")
    assert rig.routing.describe()["routing"]["handed_back"] == 2
    [decision] = rig.decisions()
    assert (decision.worker, decision.num_attempts) == ("a-0", 1)


def test_it_goes_back_if_nobody_else_may_take_it() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    rig.store("a-0", TOKENS[:200])
    route = Route()
    rig.routing.begin(ask("q", TOKENS), route)
    rig.routing.attempts.refused("q").add("b")
    assert rig.place("q") == "a"
    rig.routing.attempts.handed_back("q")
    assert rig.place("q") == "a"


def handed_back_by_a(**sections: dict[str, object]) -> Rig:
    rig = Rig("a", "b", **sections)
    rig.up("a-0", "b-0")
    rig.store("a-0", TOKENS[:200])
    rig.routing.begin(ask("q", TOKENS), Route())
    assert rig.place("q") == "a"
    rig.routing.attempts.handed_back("q")
    return rig


def test_it_goes_back_rather_than_to_one_that_has_just_failed() -> None:
    rig = handed_back_by_a()
    rig.routing._placement.suspects.fail("b-0", rig.now)
    assert rig.place("q") == "a"


def test_it_goes_back_rather_than_be_refused() -> None:
    rig = handed_back_by_a(tiers={"rules": {"interactive": {"max_ttft_ms": 500.0}}})
    late = booking(worker="b-0", prefill_tokens=1_000_000, service_ms=20_000.0)
    rig.routing._placement._on_bookings(record(0, late), rig.now)
    assert rig.place("q") == "a"

    rig.routing.attempts.handed_back("q")
    late = booking("r", worker="a-0", prefill_tokens=1_000_000, service_ms=20_000.0)
    rig.routing._placement._on_bookings(record(1, late), rig.now)
    with pytest.raises(Overloaded, match="on the best of 2 workers"):
        rig.place("q")
    assert (rig.routing._placement.num_reserved, rig.routing._placement.num_held) == (0, 0)


def test_it_goes_back_rather_than_wait_for_the_others() -> None:
    rig = handed_back_by_a()
    long = msgspec.structs.replace(ask("long", list(range(100_000))), pinned_worker="b-0")
    rig.routing.begin(long, Route())
    assert rig.place("long") == "b"

    async def placed() -> str:
        place = asyncio.ensure_future(rig.routing.attempts.place("q"))
        while not rig.routing._placement.num_held:
            await asyncio.sleep(0)
        rig.now += AVOIDED_S
        return await asyncio.wait_for(place, 10.0)

    assert asyncio.run(placed()) == "a"


def test_its_share_is_paid_and_what_it_tells_is_told_once() -> None:
    fleet = Fleet(2)
    fleet.placement.set_workers({"r0-0": 10_000, "r1-0": 5000})
    hear(fleet)
    placing, paid = fleet.placement._placing, fleet.placement._dispatcher._queue._shares._paid
    for number in range(20):
        prompt = list(range(1000 * number, 1000 * number + 150))
        name = f"q{number}"
        sent(fleet, name, prompt)
        once = dict(paid)
        fleet.placement.take_back(name, fleet.now)
        sent(fleet, name, prompt, is_again=True)
        assert paid == once
        fleet.placement.release(name, fleet.now)
    assert placing._evictions.share_again() == 0.0


def test_what_it_waited_for_who_handed_it_back_is_part_of_its_wait() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    outcome = rig.routing.begin(ask("q", TOKENS), Route())
    rig.place("q")
    rig.now += 0.25
    rig.routing.attempts.handed_back("q")
    rig.place("q")
    outcome.on_chunk(TokenChunk(token_ids=(7,), queue_ms=2.0))
    rig.routing.attempts.first_token("q")
    rig.routing.finish(outcome, "ok")
    [decision] = rig.decisions()
    assert decision.queue_ms == pytest.approx(252.0)


def test_a_piece_that_is_handed_back_is_no_new_decision() -> None:
    long = list(range(5000, 15_000))
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    route, attempts = Route(), rig.routing.attempts
    outcome = rig.routing.begin(ask("q", long), route)
    first = rig.place("q")
    attempts.piece_ended("q")
    decided = route.predicted_ttft_ms
    rig.store(f"{first}-0", long[:1000])
    assert rig.place("q") == first
    attempts.handed_back("q")
    assert rig.place("q") != first
    assert (route.num_attempts, route.predicted_ttft_ms, attempts.num_pieces) == (1, decided, 1)
    assert outcome.handbacks.num == 1
    attempts.piece_ended("q")
    assert outcome.handbacks.num == 0


def test_the_call_says_what_may_come_before_it() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    alone = rig.routing.begin(ask("alone", TOKENS), Route())
    rig.place("alone")
    assert decode_call(rig.routing.attempts.encode_call("alone")).max_ahead_tokens is None
    rig.routing.finish(alone, "ok")
    rig.routing._placement._on_bookings(record(0, booking(worker="gone")), rig.now)
    rig.routing.begin(ask("q", TOKENS), Route())
    rig.place("q")
    call = decode_call(rig.routing.attempts.encode_call("q"))
    most = call.max_ahead_tokens
    assert most is not None
    assert most >= int(SHARED_START_SHARE * settings().executor.max_batched_tokens)


@pytest.mark.parametrize("num_ingress", [1, 2])
def test_a_gate_gathers_for_requests_of_several_ingresses(num_ingress: int) -> None:
    """What replicas are made of does not tell how many there are: each call does."""
    rig = Rig("a")
    rig.up("a-0")
    rig.routing.attempts.settings = settings(http={"num_ingress": num_ingress})
    rig.routing.begin(ask("q", TOKENS), Route())
    rig.place("q")
    call = decode_call(rig.routing.attempts.encode_call("q"))
    assert call.has_peers is (num_ingress > 1)
