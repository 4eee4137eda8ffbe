from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.errors import InvalidRequest, SettingsError
from controllers.promises import DEFAULT_PROMISE, Promise
from controllers.retention import (
    Retention,
    RetentionPolicy,
    Spans,
    TokenRange,
    plan,
    ranges_of_blocks,
)
from controllers.retention_policy import BUILT_IN_TYPES, SpanRule, TypeRule
from controllers.retention_ranges import parse_ranges

POLICY = RetentionPolicy()
SPANS = Spans(system_end=64, history_end=128, num_tokens=200)
B = 32


def R(start: int, end: int | None, priority: int, duration_s: float | None = None) -> TokenRange:
    return TokenRange(start, end, priority, duration_s)


def priority_of_blocks(retention: Retention, num_tokens: int, block_size: int) -> list[int | None]:
    found = ranges_of_blocks(retention, num_tokens, block_size)
    return [None if given is None else given.retention_priority for given in found]


@pytest.mark.parametrize(
    ("block_size", "num_tokens", "ranges", "priorities"),
    [
        (64, 256, [R(0, 64, 80), R(64, 128, 50)], [80, 50, None, None]),
        (32, 127, [R(0, 63, 80), R(63, 127, 30)], [80, 80, 30, 30]),
        (32, 128, [R(0, 1, 80), R(1, 2, 5)], [80, None, None, None]),
        (256, 192, [R(0, 128, 80)], [80]),
        (64, 192, [R(0, 65, 80), R(65, 129, 30)], [80, 80, 30]),
        (64, 256, [R(0, 64, 80), R(129, None, 50)], [80, None, None, 50]),
        (64, 256, [R(127, 193, 80)], [None, None, 80, 80]),
        (64, 128, [R(1, None, 80)], [None, 80]),
        (64, 32, [R(127, 193, 80)], [None]),
        (32, 0, [], []),
    ],
)
def test_a_block_takes_the_range_of_its_first_token(
    block_size: int, num_tokens: int, ranges: list[TokenRange], priorities: list[int | None]
) -> None:
    for order in (ranges, ranges[::-1]):
        retention = Retention(tuple(order))
        assert priority_of_blocks(retention, num_tokens, block_size) == priorities


def test_ranges_of_blocks_carry_durations() -> None:
    held = R(0, 33, 80, 5.0)
    assert ranges_of_blocks(Retention((held,)), 96, 32) == [held, held, None]


@pytest.mark.parametrize(
    ("request_type", "expected"),
    [
        ("system", Retention((R(0, None, 100),), 0)),
        (
            "interactive",
            Retention((R(0, 64, 100), R(64, 128, 80, 300.0), R(128, None, 60, 60.0)), 60, 60.0),
        ),
        ("agent", Retention((R(0, 64, 100), R(64, None, 80, 300.0)), 80, 300.0)),
        ("batch", Retention((R(64, None, 20),), 10)),
        ("oneoff", Retention((R(64, None, 0),), 0)),
    ],
)
def test_built_in_types(request_type: str, expected: Retention) -> None:
    assert plan(POLICY, request_type, SPANS, B) == expected


def test_a_oneoff_without_system_prompt_keeps_nothing() -> None:
    assert plan(POLICY, "oneoff", Spans(0, 0, 200), B) == Retention((R(0, None, 0),), 0)


def test_a_block_on_a_border_belongs_to_the_span_before() -> None:
    spans = Spans(system_end=65, history_end=100, num_tokens=140)
    retention = plan(POLICY, "interactive", spans, B)
    assert retention.ranges == (R(0, 96, 100), R(96, 128, 80, 300.0), R(128, None, 60, 60.0))
    assert priority_of_blocks(retention, 140, B) == [100, 100, 100, 80, 60]


def test_spans_shorter_than_a_block() -> None:
    assert plan(POLICY, "interactive", Spans(3, 5, 9), B) == Retention((R(0, None, 100),), 60, 60.0)
    assert plan(POLICY, "interactive", Spans(0, 0, 0), B) == Retention((), 35)


def test_unknown_request_type() -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(POLICY, "fast", SPANS, B)
    assert caught.value.field == "request_type"
    assert caught.value.message == "'fast' is none of: agent, batch, interactive, oneoff, system"


@pytest.mark.parametrize("spans", [(-1, 0, 0), (2, 1, 3), (0, 4, 3)])
def test_spans_in_disorder(spans: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="spans are not in order"):
        Spans(*spans)


def test_explicit_ranges_win_where_they_are() -> None:
    explicit = [R(64, 96, 70), R(160, None, 10)]
    assert plan(POLICY, "interactive", SPANS, B, explicit) == Retention(
        (
            R(0, 64, 100),
            R(64, 96, 70),
            R(96, 128, 70, 300.0),
            R(128, 160, 60, 60.0),
            R(160, None, 10),
        ),
        10,
    )


def test_blocks_before_an_explicit_range_are_kept_as_long() -> None:
    explicit = [R(160, None, 90, 600.0)]
    assert plan(POLICY, "interactive", SPANS, B, explicit) == Retention(
        (R(0, 64, 100), R(64, None, 90, 600.0)), 60, 60.0
    )


def test_a_range_within_one_block_changes_nothing() -> None:
    assert plan(POLICY, "interactive", SPANS, B, [R(65, 80, 0)]) == plan(
        POLICY, "interactive", SPANS, B
    )


@pytest.mark.parametrize("request_type", sorted(BUILT_IN_TYPES))
@pytest.mark.parametrize("low", [R(0, None, 99), R(32, 64, 0), R(32, 33, 100, 60.0)])
def test_a_shared_system_prompt_is_never_lowered(request_type: str, low: TokenRange) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(POLICY, request_type, SPANS, B, [low])
    assert caught.value.field == "retention[0].retention_priority"
    assert "is less than 100, which the system prompt is kept at" in caught.value.message


def test_the_offending_range_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(POLICY, "interactive", SPANS, B, [R(0, 32, 100), R(32, 64, 99)])
    assert caught.value.field == "retention[1].retention_priority"


def test_a_shared_system_prompt_may_be_named_at_its_value() -> None:
    explicit = [R(0, 64, 100)]
    assert plan(POLICY, "interactive", SPANS, B, explicit) == plan(POLICY, "interactive", SPANS, B)


def test_blocks_that_are_left_are_not_lowered_by_ranges_behind_them() -> None:
    assert plan(POLICY, "batch", SPANS, B, [R(64, None, 80)]) == Retention((R(64, None, 80),), 10)


def test_the_ceiling_of_a_tenant() -> None:
    explicit = [R(128, None, 90)]
    shared = plan(POLICY, "interactive", SPANS, B, explicit, ceiling=50)
    assert shared == Retention((R(64, None, 50),), 50, 60.0)
    own = plan(POLICY, "interactive", SPANS, B, explicit, ceiling=50, is_shared=False)
    assert own == Retention((R(0, None, 50),), 50, 60.0)


def test_below_the_default_there_are_no_durations() -> None:
    assert plan(POLICY, "interactive", SPANS, B, ceiling=20, is_shared=False) == Retention(
        (R(0, None, 20),), 20
    )


def test_a_tenant_of_its_own_may_lower_its_system_prompt() -> None:
    assert plan(POLICY, "interactive", SPANS, B, [R(0, None, 5)], is_shared=False) == Retention(
        (R(0, None, 5),), 5
    )


ranges_lists = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(1, 60), st.integers(0, 100), st.sampled_from([None, 9.0])
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), min_size=3, max_size=3),
    block_size=st.integers(1, 40),
    request_type=st.sampled_from(sorted(BUILT_IN_TYPES)),
    steps=ranges_lists,
    ceiling=st.integers(0, 100),
)
def test_promises_never_rise_and_explicit_values_hold(
    cuts: list[int], block_size: int, request_type: str, steps: list[Any], ceiling: int
) -> None:
    spans = Spans(*sorted(cuts))
    body, at, before = [], 0, DEFAULT_PROMISE
    for gap, length, priority, duration in steps:
        priority = min(priority, body[-1]["retention_priority"]) if body else priority
        duration = duration if priority >= 35 else None
        promise = Promise.of(priority, duration)
        if at + gap + length > spans.num_tokens or (body and not before.covers(promise)):
            break
        body.append(
            {"start": at + gap, "end": at + gap + length, "retention_priority": priority}
            | {"duration_s": duration}
        )
        at, before = at + gap + length, promise
    explicit = parse_ranges(body, spans.num_tokens)
    retention = plan(POLICY, request_type, spans, block_size, explicit, ceiling, is_shared=False)
    found = ranges_of_blocks(retention, spans.num_tokens, block_size)
    promises = [
        DEFAULT_PROMISE if r is None else Promise.of(r.retention_priority, r.duration_s)
        for r in found
    ]
    decode = Promise.of(retention.decode_retention_priority, retention.decode_duration_s)
    assert all(a.covers(b) for a, b in pairwise([*promises, decode]))
    asked = ranges_of_blocks(Retention(explicit), spans.num_tokens, block_size)
    for given_range, planned in zip(asked, found, strict=True):
        if given_range is not None:
            assert planned is not None
            assert planned.retention_priority == min(given_range.retention_priority, ceiling)
    assert all(r.duration_s is None or r.retention_priority > 35 for r in retention.ranges)


def rule(*spans: tuple[int | None, float | None]) -> TypeRule:
    return TypeRule(
        **dict(zip(TypeRule.__struct_fields__, (SpanRule(*s) for s in spans), strict=True))
    )


N = (None, None)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (rule((101, None), N, N, N), "system.retention_priority: 101 is not in 0-100"),
        (rule((-1, None), N, N, N), "system.retention_priority: -1 is not in 0-100"),
        (
            rule(N, (30, 5.0), N, N),
            "history.duration_s: needs a retention_priority of at least 35, because blocks fall to "
            "35 when it ends; got 30",
        ),
        (
            rule(N, (None, 5.0), N, N),
            "history.duration_s: needs a retention_priority of at least 35, because blocks fall to "
            "35 when it ends; got None",
        ),
        (rule(N, (40, 0.0), N, N), "history.duration_s: 0.0 is not a positive number of seconds"),
        (
            rule(N, (40, float("nan")), N, N),
            "history.duration_s: nan is not a positive number of seconds",
        ),
        (
            rule((100, None), (50, None), (60, None), N),
            "current: 60 outlives 50 of the span before it; neither retention_priority nor "
            "duration_s may rise along a prefix",
        ),
        (
            rule((100, None), (80, 60.0), (80, 61.0), N),
            "current: 80 for 61 s outlives 80 for 60 s of the span before it; neither "
            "retention_priority nor duration_s may rise along a prefix",
        ),
        (
            rule((100, None), (50, None), (20, None), (21, None)),
            "decode: 21 outlives 20 of the span before it; neither retention_priority nor "
            "duration_s may rise along a prefix",
        ),
        (
            rule((100, None), (20, None), N, N),
            "current: null (35 for a new block) outlives 20 of the span before it; neither "
            "retention_priority nor duration_s may rise along a prefix",
        ),
        (
            rule((90, None), N, N, N),
            "system: 90 differs from 100 of another request type; system prompts are shared, so "
            "give all types the same value, or null to leave the blocks as they are",
        ),
    ],
)
def test_laws_of_a_policy(bad: TypeRule, message: str) -> None:
    policy = RetentionPolicy(request_types={"bad": bad})
    with pytest.raises(SettingsError) as caught:
        policy.check()
    assert str(caught.value) == f"retention.request_types.bad.{message}"


def test_the_built_in_policy_is_lawful_and_given_types_join_it() -> None:
    POLICY.check()
    mine = rule((100, None), (50, 9.0), (50, 9.0), (0, None))
    policy = RetentionPolicy(request_types={"mine": mine, "batch": mine})
    policy.check()
    assert policy.request_types == {**BUILT_IN_TYPES, "mine": mine, "batch": mine}


def item(**kw: Any) -> dict[str, Any]:
    return {"start": 0, "end": 64, "retention_priority": 80} | kw


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ([], ()),
        ([item()], (R(0, 64, 80),)),
        ([item(duration_s=30)], (R(0, 64, 80, 30.0),)),
        ([item(retention_priority=0, duration_s=None)], (R(0, 64, 0),)),
        ([item(retention_priority=100, end=None)], (R(0, None, 100),)),
        ([{"start": 3, "retention_priority": 35, "duration_s": 0.5}], (R(3, None, 35, 0.5),)),
        ([item(), item(start=64, end=200)], (R(0, 64, 80), R(64, 200, 80))),
        ([item(), item(start=99, end=None, retention_priority=1)], (R(0, 64, 80), R(99, None, 1))),
        (
            [item(duration_s=30), item(start=64, end=65, retention_priority=20)],
            (R(0, 64, 80, 30.0), R(64, 65, 20)),
        ),
    ],
)
def test_good_ranges(value: Any, expected: tuple[TokenRange, ...]) -> None:
    assert parse_ranges(value, 200) == expected


DURATION = "must be above 0 and at most 31536000 s, got "


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        (-1, "must be in 0-100, got -1"),
        (101, "must be in 0-100, got 101"),
        (1 << 9_999, "must be in 0-100, got a number of 10000 bits"),
        (10**30, "must be in 0-100, got 1" + "0" * 30),
        (35.5, "must be an integer, got 35.5"),
        (35.0, "must be an integer, got 35.0"),
        ("80", "must be an integer, got '80'"),
        (True, "must be an integer, got True"),
        (None, "must be an integer, got None"),
    ],
)
def test_bad_retention_priorities(priority: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_ranges([item(), item(start=64, end=70, retention_priority=priority)], 200)
    assert caught.value.field == "retention[1].retention_priority"
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("duration_s", "message"),
    [
        (0, f"{DURATION}0"),
        (-5, f"{DURATION}-5"),
        (1e300, f"{DURATION}1e+300"),
        (float("nan"), f"{DURATION}nan"),
        (float("inf"), f"{DURATION}inf"),
        ("60", "must be a number of seconds or null, got '60'"),
        (True, "must be a number of seconds or null, got True"),
    ],
)
def test_bad_durations(duration_s: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_ranges([item(duration_s=duration_s)], 200)
    assert caught.value.field == "retention[0].duration_s"
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        ({}, "retention", "must be a list of ranges, got {}"),
        ("high", "retention", "must be a list of ranges, got 'high'"),
        ([item()] * 65, "retention", "has 65 ranges, at most 64 allowed"),
        ([5], "retention[0]", "must be an object, got 5"),
        ([None], "retention[0]", "must be an object, got None"),
        ([{"start": 0, "end": 4}], "retention[0].retention_priority", "is required"),
        ([{"end": 4, "retention_priority": 4}], "retention[0].start", "is required"),
        ([item(start=-1)], "retention[0].start", "must be in 0-199, got -1"),
        ([item(start="0")], "retention[0].start", "must be an integer, got '0'"),
        ([item(start=200, end=None)], "retention[0].start", "must be in 0-199, got 200"),
        ([item(start=64)], "retention[0].end", "must be in 65-200, got 64"),
        ([item(start=70)], "retention[0].end", "must be in 71-200, got 64"),
        ([item(end=201)], "retention[0].end", "must be in 1-200, got 201"),
        ([item(end=1.5)], "retention[0].end", "must be an integer, got 1.5"),
        ([item(end=False)], "retention[0].end", "must be an integer, got False"),
        (
            [item(end=None), item(start=64, end=70)],
            "retention[0].end",
            "only the last range may be without an end",
        ),
        (
            [item(), item(start=63, end=70)],
            "retention[1].start",
            "63 is before 64, the end of the range before it; ranges must be in order and must "
            "not overlap",
        ),
        (
            [item(), item(start=64, end=70, retention_priority=81)],
            "retention[1].retention_priority",
            "81 is above 80 of the range before it; retention priorities must not rise along the "
            "prompt",
        ),
        (
            [item(duration_s=9), item(start=64, end=70)],
            "retention[1].duration_s",
            "lasts longer than that of the range before it",
        ),
        (
            [item(retention_priority=34, duration_s=5)],
            "retention[0].duration_s",
            "needs a retention_priority of at least 35, to which blocks fall when it ends; got 34",
        ),
        (
            [item(), item(start=64, end=70, priority=3)],
            "retention[1].priority",
            "unknown key; valid keys: start, end, retention_priority, duration_s",
        ),
    ],
)
def test_bad_ranges(value: Any, field: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_ranges(value, 200)
    assert (caught.value.field, caught.value.message) == (field, message)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_ranges([item(start="x" * 500)], 200)
    assert caught.value.message == "must be an integer, got '" + "x" * 36 + "..."
