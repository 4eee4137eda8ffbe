"""The static retention tiers: what each request type keeps of a prompt, and how long.

Owns the settings' types, their defaults and their laws; `retention.plan` applies them.

1. Retention priorities never rise along a prefix, and no promise ends before the promise of a block
   behind it: an evicted parent would strand its children. The reply (`decode`) comes last.
2. No duration below the engine's default of 35: its expiry would raise the block to 35.
3. System prompts are shared by request types, and every use of a block sets its priority anew, so
   all types give them the same promise or leave them as they are.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controllers.errors import SettingsError
from controllers.promises import (
    DEFAULT_PROMISE,
    DEFAULT_RETENTION_PRIORITY,
    MAX_RETENTION_PRIORITY,
    Promise,
    say,
)


class SpanRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a span's blocks are kept.

    `retention_priority` None: left as they are (35 for a new block, unchanged for a block that is
    already cached). `duration_s` None: does not expire.
    """

    retention_priority: Annotated[int, Meta(ge=0, le=MAX_RETENTION_PRIORITY)] | None = None
    duration_s: Annotated[float, Meta(gt=0)] | None = None


class TypeRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request type keeps, from the front of the prompt to the reply (`decode`)."""

    system: SpanRule = SpanRule()
    history: SpanRule = SpanRule()
    current: SpanRule = SpanRule()
    decode: SpanRule = SpanRule()


_SYSTEM = SpanRule(100)
_NONE = SpanRule(0)
BUILT_IN_TYPES = {
    "system": TypeRule(system=_SYSTEM, history=_SYSTEM, current=_SYSTEM, decode=_NONE),
    "interactive": TypeRule(
        system=_SYSTEM, history=SpanRule(80, 300.0), current=SpanRule(60, 60.0),
        decode=SpanRule(60, 60.0),
    ),
    "agent": TypeRule(
        system=_SYSTEM, history=SpanRule(80, 300.0), current=SpanRule(80, 300.0),
        decode=SpanRule(80, 300.0),
    ),
    "batch": TypeRule(history=SpanRule(20), current=SpanRule(20), decode=SpanRule(10)),
    "oneoff": TypeRule(history=_NONE, current=_NONE, decode=_NONE),
}  # fmt: skip


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Static tiers by request type. Types given here replace or join the built-in ones.

    `policy` learned: priorities and durations come from what is asked for again, see
    `controllers.learned_retention`; of the tiers it takes what is worthless at once (`current` 0)
    and whether the reply is kept (`decode`).
    """

    policy: Literal["static", "learned"] = "static"
    default_request_type: str = "interactive"
    request_types: dict[str, TypeRule] = {}

    def __post_init__(self) -> None:
        merged = {**BUILT_IN_TYPES, **self.request_types}
        msgspec.structs.force_setattr(self, "request_types", merged)

    def check(self) -> None:
        """Raises SettingsError that names the path of the rule that breaks a law."""
        if self.default_request_type not in self.request_types:
            raise SettingsError(
                f"retention.default_request_type: {self.default_request_type!r} is none of "
                f"{sorted(self.request_types)}"
            )
        for name, rule in self.request_types.items():
            _check_type(f"retention.request_types.{name}", rule)
        self._check_shared()

    @property
    def shared(self) -> SpanRule:
        """What system prompts are kept with, by every type that says so."""
        rules = (rule.system for rule in self.request_types.values())
        return next((r for r in rules if r.retention_priority is not None), SpanRule())

    def _check_shared(self) -> None:
        shared = promise_of(self.shared, MAX_RETENTION_PRIORITY)
        for name, rule in self.request_types.items():
            own = promise_of(rule.system, MAX_RETENTION_PRIORITY)
            if own is not None and shared is not None and own != shared:
                raise SettingsError(
                    f"retention.request_types.{name}.system: {say(own)} differs from "
                    f"{say(shared)} of another request type; system prompts are shared, so give "
                    "all types the same value, or null to leave the blocks as they are"
                )


def promise_of(rule: SpanRule, ceiling: int) -> Promise | None:
    if rule.retention_priority is None:
        return None
    return Promise.of(min(rule.retention_priority, ceiling), rule.duration_s)


def _check_type(path: str, rule: TypeRule) -> None:
    before = Promise(MAX_RETENTION_PRIORITY, math.inf)
    for name in TypeRule.__struct_fields__:
        span: SpanRule = getattr(rule, name)
        _check_span(f"{path}.{name}", span)
        promise = promise_of(span, MAX_RETENTION_PRIORITY) or DEFAULT_PROMISE
        if not before.covers(promise):
            raise SettingsError(
                f"{path}.{name}: {_say_rule(span)} outlives {say(before)} of the span before it; "
                "neither retention_priority nor duration_s may rise along a prefix"
            )
        before = promise


def _say_rule(span: SpanRule) -> str:
    promise = promise_of(span, MAX_RETENTION_PRIORITY)
    return "null (35 for a new block)" if promise is None else say(promise)


def _check_span(path: str, span: SpanRule) -> None:
    priority, duration = span.retention_priority, span.duration_s
    if priority is not None and not 0 <= priority <= MAX_RETENTION_PRIORITY:
        raise SettingsError(f"{path}.retention_priority: {priority} is not in 0-100")
    if duration is None:
        return
    if not 0 < duration < math.inf:
        raise SettingsError(f"{path}.duration_s: {duration} is not a positive number of seconds")
    if priority is None or priority < DEFAULT_RETENTION_PRIORITY:
        raise SettingsError(
            f"{path}.duration_s: needs a retention_priority of at least 35, because blocks fall "
            f"to 35 when it ends; got {priority}"
        )
