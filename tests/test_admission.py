from __future__ import annotations

import pytest

from controllers.admission import Admission, AdmissionSettings, bounds_of
from controllers.errors import Overloaded, RateLimited
from controllers.fair_queue import Bounds
from controllers.rate_limits import TenantLimits
from controllers.waiting import Waiting


def names(items: list[Waiting]) -> list[str]:
    return [item.request_id for item in items]


def admission(limits: dict[str, TenantLimits] | None = None, **settings: float) -> Admission:
    return Admission(AdmissionSettings(**settings), limits or {})  # type: ignore[arg-type]


def test_a_full_router_lets_better_ranks_in_for_the_youngest_of_the_worst() -> None:
    inside = admission(max_waiting_requests=3)
    for name, rank in (("a", 1), ("old", 2), ("new", 2)):
        assert inside.enter(Waiting(name, 10, 0.0, rank)) == []
    assert names(inside.enter(Waiting("chat", 10, 0.0, 0))) == ["new"]
    with pytest.raises(Overloaded, match="none of them gives way to rank 2") as caught:
        inside.enter(Waiting("late", 10, 0.0, 2))
    assert not isinstance(caught.value, RateLimited)
    assert (inside.num_waiting, inside.num_inside) == (3, 4)
    inside.leave("new", has_run=False, now=0.0)
    assert inside.num_inside == 3


def test_a_first_token_makes_room_and_tells_how_long_to_wait() -> None:
    inside = admission(max_waiting_requests=40)
    for i in range(40):
        inside.enter(Waiting(f"r{i}", 10, 0.0))
    for i in range(20):
        inside.started(f"r{i}", None, now=i / 2)
        inside.enter(Waiting(f"s{i}", 10, i / 2))
    with pytest.raises(Overloaded) as caught:
        inside.enter(Waiting("one more", 10, 10.0))
    assert caught.value.retry_after_s == pytest.approx(20.0, rel=0.2)  # 40 wait, 2 a second start
    assert (inside.num_waiting, inside.num_inside) == (40, 60)


def test_tokens_bound_what_waits_too() -> None:
    inside = admission(max_waiting_tokens=1000)
    inside.enter(Waiting("huge", 5000, 0.0, rank=1))
    with pytest.raises(Overloaded):
        inside.enter(Waiting("small", 1, 0.0, rank=1))
    assert names(inside.enter(Waiting("better", 900, 0.0, rank=0))) == ["huge"]
    assert inside.enter(Waiting("hit", 0, 0.0, rank=1)) == []


def test_a_refused_request_costs_its_tenant_nothing() -> None:
    limits = {"a": TenantLimits(max_uncached_tokens_per_s=100)}
    inside = admission(limits, max_waiting_requests=1, burst_s=1.0)
    inside.enter(Waiting("first", 10, 0.0, tenant="b"))
    with pytest.raises(Overloaded):
        inside.enter(Waiting("x", 100, 0.0, rank=1, tenant="a"))
    inside.leave("first", has_run=True, now=0.0)
    inside.enter(Waiting("x", 100, 0.0, rank=1, tenant="a"))
    inside.leave("x", has_run=False, now=0.0)  # it gave way before it ran
    inside.enter(Waiting("y", 100, 0.0, rank=1, tenant="a"))
    with pytest.raises(RateLimited, match="'a' is over 100 uncached tokens per second"):
        inside.enter(Waiting("z", 1, 0.0, rank=1, tenant="a"))


def test_tokens_that_were_cached_after_all_are_given_back_once() -> None:
    limits = {"a": TenantLimits(max_uncached_tokens_per_s=100)}
    inside = admission(limits, burst_s=1.0)
    inside.enter(Waiting("x", 100, 0.0, tenant="a"))
    for _ in range(2):
        inside.started("x", 40, 0.0)
    inside.enter(Waiting("y", 60, 0.0, tenant="a"))
    with pytest.raises(RateLimited):
        inside.enter(Waiting("z", 1, 0.0, tenant="a"))


def test_tokens_are_asked_for_only_where_they_matter() -> None:
    limits = {"a": TenantLimits(max_uncached_tokens_per_s=100), "b": TenantLimits(weight=3.0)}
    inside = admission(limits)
    assert [inside.needs_tokens(name, 0.0) for name in "abc"] == [True, False, False]
    assert [inside.weight_of(name) for name in "abc"] == [1.0, 3.0, 1.0]
    assert admission(max_waiting_tokens=5).needs_tokens("c", 0.0)


def test_new_settings_send_nobody_away() -> None:
    inside = admission()
    for name in "abc":
        inside.enter(Waiting(name, 10, 0.0))
    limits = {"default": TenantLimits(max_concurrent=4)}
    inside.configure(AdmissionSettings(max_waiting_requests=2), limits, 0.0, 1)
    with pytest.raises(Overloaded):
        inside.enter(Waiting("d", 10, 0.0))
    for name in "ab":
        inside.started(name, None, 0.0)
    inside.enter(Waiting("d", 10, 0.0))
    with pytest.raises(RateLimited, match="may have 4 requests at a time"):
        inside.enter(Waiting("e", 10, 0.0))


def test_unknown_and_repeated_endings_change_nothing() -> None:
    inside = admission({"default": TenantLimits(max_concurrent=1)})
    inside.enter(Waiting("a", 10, 0.0))
    for name in ("a", "a", "nobody"):
        inside.leave(name, has_run=True, now=0.0)
        inside.started(name, 5, 0.0)
    assert (inside.num_inside, inside.num_waiting) == (0, 0)
    inside.enter(Waiting("b", 10, 0.0))


def test_an_ingress_lets_no_more_wait_than_its_share_of_the_gates_would() -> None:
    settings = AdmissionSettings(max_waiting_requests=50, max_waiting_tokens=9000)
    few = bounds_of(settings, Bounds(9, 3000), share=2.5)
    assert (few.max_waiting_requests, few.max_waiting_tokens) == (25, 7500)
    many = bounds_of(settings, Bounds(9), share=8.0)
    assert (many.max_waiting_requests, many.max_waiting_tokens) == (50, 9000)
    untold = bounds_of(AdmissionSettings(burst_s=2.0), Bounds(999, 3000), share=0.5)
    assert untold == AdmissionSettings(
        max_waiting_requests=500, max_waiting_tokens=1500, burst_s=2.0
    )
