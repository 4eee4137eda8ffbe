"""Random bodies: whatever a client sends, it is answered and never with a 5xx."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_app.protocol import ChatBody, CompletionBody
from serve_app.protocol_checks import _REFUSED_ANYWHERE
from tests.edge_fixtures import PlannedExecutor, TestEdge, make_info

NUMBERS = st.one_of(
    st.integers(-3, 130),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30, 10**4000, 0.5, -0.0, 1e300, -1e300]),
    st.floats(),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=6))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
PARTS = st.fixed_dictionaries(
    {}, optional={"type": st.just("text") | ANYTHING, "text": st.text(max_size=9) | ANYTHING}
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | ANYTHING,
        "content": st.text(max_size=9) | st.lists(PARTS, max_size=3) | ANYTHING,
        "tool_calls": ANYTHING,
    },
)
RANGES = st.fixed_dictionaries(
    {},
    optional={
        name: NUMBERS | ANYTHING for name in ("start", "end", "retention_priority", "duration_s")
    },
)
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(MESSAGES, max_size=3),
    "prompt": st.text(max_size=9)
    | st.lists(st.text(max_size=3) | st.integers(-1, 300), max_size=3),
    "max_tokens": st.integers(1, 20),
    "n": st.integers(1, 3),
    "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=5),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "logit_bias": st.dictionaries(st.integers(-1, 300).map(str), st.floats(-101, 101), max_size=2),
    "retention": st.lists(RANGES, max_size=2),
    "request_type": st.sampled_from(["system", "agent", "batch", "oneoff", "interactive"]),
    "logprobs": st.booleans() | st.integers(0, 5),
    "temperature": st.floats(0, 2),
}
FIELDS = sorted(
    {*ChatBody.model_fields, *CompletionBody.model_fields, *_REFUSED_ANYWHERE} - {"model"}
)
BODIES = st.fixed_dictionaries(
    {}, optional={name: LIKELY.get(name, ANYTHING) | ANYTHING for name in FIELDS}
)
NOT_IN_BOTH = ("messages", "prompt", "logprobs", "stream_options", "retention")
GOOD = st.fixed_dictionaries(
    {}, optional={name: LIKELY[name] for name in LIKELY if name not in NOT_IN_BOTH}
)
EDGE = TestEdge(PlannedExecutor(info=make_info(max_seq_len=64)))


async def answer(path: str, body: Any) -> int:
    """Status of `body`, after which the executor is idle and a plain request works."""
    response = await EDGE.post(path, body)
    assert EDGE.executor.num_running == 0
    if response.status_code != 200:
        assert response.json()["error"]["message"]
    assert (await EDGE.completion()).status_code == 200
    return response.status_code


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")


FUZZ = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@FUZZ
@given(BODIES, st.sampled_from(["/v1/chat/completions", "/v1/completions", "/fleet/route"]))
def test_random_fields_never_break_the_server(body: dict[str, Any], path: str) -> None:
    assert asyncio.run(answer(path, encoded(body))) in {200, 400}


@FUZZ
@given(GOOD)
def test_likely_fields_never_break_the_server(fields: dict[str, Any]) -> None:
    for path, prompt in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
    ):
        assert asyncio.run(answer(path, encoded({**fields, **prompt}))) in {200, 400}


@FUZZ
@given(st.binary(max_size=60) | ANYTHING.map(encoded))
def test_random_bytes_never_break_the_server(body: bytes) -> None:
    assert asyncio.run(answer("/v1/completions", body)) in {200, 400}
