"""Requests of ours as arguments of TensorRT-LLM, and its log probabilities as ours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from controllers.errors import InvalidRequest
from controllers.retention import Retention, TokenRange
from serve_app.executors.base import GenerateRequest, SamplingParams, TokenLogprob
from serve_app.executors.trtllm_sampling import (
    engine_priority,
    logprobs_of,
    retention_arguments,
    sampling_arguments,
)

FIELDS = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "end_id",
        "pad_id",
        "stop_token_ids",
        "detokenize",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "logprobs",
        "embedding_bias",
    }
)
EOS = (257, 258)
BASE = {"max_tokens": 5, "end_id": 257, "pad_id": 257, "stop_token_ids": [258], "detokenize": False}


def bias(given: Mapping[int, float]) -> object:
    return dict(given)


def arguments(index: int = 0, num_resumed: int = 0, **sampling: Any) -> dict[str, Any]:
    request = GenerateRequest(
        request_id="a",
        token_ids=b"\0" * 40,
        sampling=SamplingParams(**{"max_tokens": 5, **sampling}),
        num_resumed=num_resumed,
    )
    return sampling_arguments(request, index, EOS, FIELDS, bias)


def test_greedy() -> None:
    assert arguments(temperature=0.0) == {**BASE, "top_k": 1}
    assert arguments(top_k=1, temperature=2.0) == {**BASE, "top_k": 1}


def test_drawn() -> None:
    found = arguments(temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, seed=5)
    drawn = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 5}
    assert found == {**BASE, **drawn}


def test_each_sequence_has_a_seed_of_its_own() -> None:
    assert arguments(index=2, seed=5)["seed"] == 7
    # Without a seed the engine would take the same one for every request.
    assert arguments()["seed"] != arguments()["seed"]


def test_a_drawn_sequence_is_never_taken_for_greedy() -> None:
    found = arguments(seed=1)
    assert (found["temperature"], found["top_p"]) == (1.0, 1.0)
    assert "top_k" not in found


def test_ends() -> None:
    """`ignore_eos` of the engine would switch the stop tokens off too."""
    assert arguments(temperature=0.0, ignore_eos=True, stop_token_ids=(9,)) == {
        "max_tokens": 5,
        "end_id": -1,
        "pad_id": 0,
        "stop_token_ids": [9],
        "detokenize": False,
        "top_k": 1,
    }
    assert arguments(stop_token_ids=(9, 258))["stop_token_ids"] == [258, 9]


def test_what_was_generated_elsewhere_counts() -> None:
    found = arguments(num_resumed=3, min_tokens=4)
    assert (found["max_tokens"], found["min_tokens"]) == (2, 1)
    assert "min_tokens" not in arguments(num_resumed=3, min_tokens=2)


def test_the_rest() -> None:
    found = arguments(
        presence_penalty=1.0, frequency_penalty=-1.0, logprobs=0, logit_bias={3: -100.0}
    )
    assert (found["presence_penalty"], found["frequency_penalty"]) == (1.0, -1.0)
    assert (found["logprobs"], found["embedding_bias"]) == (1, {3: -100.0})
    assert arguments(logprobs=5)["logprobs"] == 5


@pytest.mark.parametrize(
    ("missing", "option", "field"),
    [
        ("min_p", {"min_p": 0.1}, "min_p"),
        ("embedding_bias", {"logit_bias": {1: 1.0}}, "logit_bias"),
        ("min_tokens", {"min_tokens": 2}, "min_tokens"),
    ],
)
def test_an_option_that_the_version_lacks(missing: str, option: dict[str, Any], field: str) -> None:
    plain = GenerateRequest(
        request_id="a", token_ids=b"\0" * 4, sampling=SamplingParams(max_tokens=5)
    )
    assert missing not in sampling_arguments(plain, 0, EOS, FIELDS - {missing}, bias)
    asking = GenerateRequest(
        request_id="a", token_ids=b"\0" * 4, sampling=SamplingParams(max_tokens=5, **option)
    )
    with pytest.raises(InvalidRequest, match="does not have this option") as caught:
        sampling_arguments(asking, 0, EOS, FIELDS - {missing}, bias)
    assert caught.value.field == field


def test_no_retention_is_said_when_none_is_asked_for() -> None:
    assert retention_arguments(Retention(), 100) is None


def test_retention() -> None:
    ranges = (TokenRange(0, 64, 100), TokenRange(64, 100, 80, 300.0), TokenRange(100, None, 60, 60))
    assert retention_arguments(Retention(ranges, 60, 0.0001), 128) == (
        (
            (0, 64, 100, None),
            (64, 100, 80, timedelta(seconds=300)),
            (100, None, 60, timedelta(seconds=60)),
        ),
        60,
        timedelta(milliseconds=1),
    )


def test_ranges_behind_the_prompt_are_left_out() -> None:
    ranges = (TokenRange(0, 300, 80), TokenRange(300, None, 50))
    assert retention_arguments(Retention(ranges), 128) == (((0, None, 80, None),), 35, None)


def test_nothing_is_said_about_the_first_tokens() -> None:
    ranges = (TokenRange(0, 64, 100), TokenRange(64, None, 60))
    found = retention_arguments(Retention(ranges, 60), 128, num_left=96)
    assert found == (((96, None, 60, None),), 60, None)
    found = retention_arguments(Retention(ranges, 60), 128, num_left=32)
    assert found == (((32, 64, 100, None), (64, None, 60, None)), 60, None)
    assert retention_arguments(Retention(ranges, 60), 128, num_left=128) == ((), 60, None)


def test_service_ranks_as_priorities() -> None:
    assert [engine_priority(rank) for rank in (0, 1, 5, 10, 99, -1)] == [1, 0.9, 0.5, 0, 0, 1]


class Logprob(NamedTuple):
    logprob: float
    rank: int | None = None


def test_log_probabilities() -> None:
    given = [{5: Logprob(-2.0), 7: Logprob(-0.5), 9: Logprob(-3.0)}, {4: Logprob(-0.25)}, -1.5]
    assert logprobs_of([5, 4, 3], given, 2) == (
        TokenLogprob(-2.0, ((7, -0.5), (5, -2.0))),
        TokenLogprob(-0.25, ((4, -0.25),)),
        TokenLogprob(-1.5),
    )
    assert logprobs_of([5], given[:1], 0) == (TokenLogprob(-2.0),)
