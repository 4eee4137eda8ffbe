from __future__ import annotations

import pytest

from controllers.errors import RateLimited
from controllers.rate_limits import CONCURRENCY_RETRY_S, RateLimits, TenantLimits, TokenBucket


def refused(limits: RateLimits, tenant: str, tokens: float, now: float) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        limits.meter(tenant, now).check(tenant, tokens, now)
    return caught.value


def enter(limits: RateLimits, tenant: str, tokens: float, now: float) -> None:
    meter = limits.meter(tenant, now)
    meter.check(tenant, tokens, now)
    meter.enter(tokens, now)


def test_a_bucket_fills_up_to_its_burst() -> None:
    bucket = TokenBucket(rate=2.0, burst=4.0, now=10.0)
    bucket.take(3.0, 10.0)
    assert bucket.level(11.0) == 3.0
    assert bucket.level(99.0) == 4.0
    assert bucket.wait_s(2.0, 10.0) == 0.5
    assert bucket.wait_s(1.0, 10.0) == 0.0


def test_more_than_fits_needs_a_full_bucket_and_leaves_a_debt() -> None:
    bucket = TokenBucket(rate=100.0, burst=500.0, now=0.0)
    assert bucket.wait_s(5000.0, 0.0) == 0.0
    bucket.take(5000.0, 0.0)
    assert bucket.level(0.0) == -4500.0
    assert bucket.wait_s(1.0, 0.0) == pytest.approx(45.01)


def test_a_clock_that_steps_back_gives_nothing_and_takes_nothing() -> None:
    bucket = TokenBucket(rate=1.0, burst=10.0, now=100.0)
    bucket.take(5.0, 100.0)
    assert bucket.level(50.0) == 5.0
    bucket.take(0.0, 50.0)
    assert bucket.level(101.0) == 6.0


def test_requests_per_second() -> None:
    limits = RateLimits({"a": TenantLimits(max_requests_per_s=2)}, burst_s=1.0, num_ingress=1)
    enter(limits, "a", 10, 0.0)
    enter(limits, "a", 10, 0.0)
    error = refused(limits, "a", 10, 0.1)
    assert str(error) == "tenant 'a' is over 2 requests per second"
    assert error.retry_after_s == pytest.approx(0.4)
    enter(limits, "a", 10, 0.6)
    enter(limits, "b", 10, 0.6)  # nobody limits it


def test_uncached_tokens_per_second_and_what_they_really_were() -> None:
    a = TenantLimits(max_uncached_tokens_per_s=1000)
    limits = RateLimits({"a": a}, burst_s=2.0, num_ingress=1)
    enter(limits, "a", 1500, 0.0)
    assert refused(limits, "a", 800, 0.0).retry_after_s == pytest.approx(0.3)
    limits.meter("a", 0.0).charge(-1000, 0.0)  # they were in the cache
    enter(limits, "a", 800, 0.0)
    assert limits.meter("a", 0.0).has_token_limit
    assert not limits.meter("b", 0.0).has_token_limit


def test_a_refusal_counts_nothing() -> None:
    a = TenantLimits(max_requests_per_s=100, max_uncached_tokens_per_s=10, max_concurrent=3)
    limits = RateLimits({"a": a}, burst_s=1.0, num_ingress=1)
    enter(limits, "a", 10, 0.0)
    for _ in range(1000):
        refused(limits, "a", 5, 0.0)
    meter = limits.meter("a", 0.0)
    assert meter._requests is not None
    assert meter._tokens is not None
    assert (meter.num_running, meter._requests.level(0.0), meter._tokens.level(0.0)) == (1, 99, 0)


def test_requests_at_a_time() -> None:
    limits = RateLimits({"a": TenantLimits(max_concurrent=2)}, burst_s=1.0, num_ingress=1)
    enter(limits, "a", 1, 0.0)
    enter(limits, "a", 1, 0.0)
    error = refused(limits, "a", 1, 500.0)
    assert str(error) == "tenant 'a' may have 2 requests at a time"
    assert error.retry_after_s == CONCURRENCY_RETRY_S
    limits.meter("a", 500.0).num_running -= 1
    enter(limits, "a", 1, 500.0)


def test_each_of_several_ingresses_has_its_part() -> None:
    a = TenantLimits(max_requests_per_s=10, max_concurrent=3)
    limits = RateLimits({"a": a}, burst_s=1.0, num_ingress=2)
    enter(limits, "a", 1, 0.0)
    enter(limits, "a", 1, 0.0)
    assert "may have 3 requests at a time" in str(refused(limits, "a", 1, 0.0))
    limits.meter("a", 0.0).num_running = 0
    for _ in range(3):
        enter(limits, "a", 1, 0.0)
        limits.meter("a", 0.0).num_running = 0
    assert "over 10 requests per second" in str(refused(limits, "a", 1, 0.0))


def test_new_limits_count_what_runs_and_unchanged_ones_keep_their_debt() -> None:
    a, b = TenantLimits(max_requests_per_s=1), TenantLimits(max_requests_per_s=1, weight=2.0)
    limits = RateLimits({"a": a, "b": b}, burst_s=1.0, num_ingress=1)
    enter(limits, "a", 1, 0.0)
    enter(limits, "b", 1, 0.0)
    limits.configure({"a": a, "b": TenantLimits(max_concurrent=1)}, 1.0, 0.0, 1)
    assert "1 requests per second" in str(refused(limits, "a", 1, 0.0))
    assert "may have 1 requests at a time" in str(refused(limits, "b", 1, 0.0))
    limits.configure({}, 1.0, 0.0, 1)
    enter(limits, "a", 1, 0.0)
    assert limits.limits_of("a") == TenantLimits()


def test_another_number_of_ingresses_shares_the_limits_anew() -> None:
    limits = RateLimits({"a": TenantLimits(max_concurrent=4)}, burst_s=1.0, num_ingress=1)
    meter = limits.meter("a", 0.0)
    meter.num_running = 2
    meter.check("a", 0.0, 0.0)
    limits.configure({"a": TenantLimits(max_concurrent=4)}, 1.0, 0.0, num_ingress=2)
    with pytest.raises(RateLimited):
        meter.check("a", 0.0, 0.0)
