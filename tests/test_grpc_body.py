from __future__ import annotations

import json

from serve_app.grpc_body import body_of
from serve_app.proto import cachelane_pb2 as pb


def test_a_field_that_is_not_set_is_absent() -> None:
    assert body_of(pb.GenerateRequest()) == b"{}"
    assert body_of(pb.ChatRequest()) == b"{}"


def test_a_field_that_is_set_to_nothing_is_there() -> None:
    request = pb.GenerateRequest(text="", max_tokens=0, cache_salt="", temperature=0, pin="w")
    assert json.loads(body_of(request)) == {
        "prompt": "", "max_tokens": 0, "cache_salt": "", "temperature": 0.0,
    }  # fmt: skip
    assert json.loads(body_of(pb.GenerateRequest(token_ids=pb.TokenIds()))) == {"prompt": []}


def test_every_kind_of_field() -> None:
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[1, -2, 2**31 - 1]),
        seed=-(2**63),
        stop=["a", "é\n"],
        ignore_eos=False,
        logit_bias={7: 0.1},
        retention=[
            pb.RetentionRange(start=0, end=4, retention_priority=70, duration_s=0.1),
            pb.RetentionRange(retention_priority=0),
        ],
    )
    assert json.loads(body_of(request)) == {
        "prompt": [1, -2, 2**31 - 1],
        "seed": -(2**63),
        "stop": ["a", "é\n"],
        "ignore_eos": False,
        "logit_bias": {"7": 0.1},
        "retention": [
            {"start": 0, "end": 4, "retention_priority": 70, "duration_s": 0.1},
            {"retention_priority": 0},
        ],
    }


def test_messages_keep_their_order_and_lack_what_was_not_given() -> None:
    messages = [pb.ChatMessage(role="user", content=""), pb.ChatMessage(content="x")]
    assert json.loads(body_of(pb.ChatRequest(messages=messages))) == {
        "messages": [{"role": "user", "content": ""}, {"content": "x"}],
    }


def test_numbers_that_json_lacks_are_left_to_the_check() -> None:
    assert body_of(pb.GenerateRequest(temperature=float("nan"))) == b'{"temperature":NaN}'
