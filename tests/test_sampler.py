from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from serve_app.engine.sampler import Sampler, Sampling, logprobs_of

VOCAB = 500
LOGITS = np.random.default_rng(4).standard_normal(VOCAB).astype(np.float32) * 3
ORDER = np.argsort(-LOGITS, kind="stable").tolist()


def probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def draw(sampling: Sampling, count: int, logits: np.ndarray = LOGITS) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.sample(logits).token_id for _ in range(count)]


def seen(sampling: Sampling, count: int = 3000) -> set[int]:
    return set(draw(sampling, count))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=1e-7, seed=1),
        Sampling(top_k=1, seed=1),
        Sampling(top_p=0.0, seed=1),
        Sampling(min_p=1.0, seed=1),
        Sampling(temperature=0.0, top_k=20, top_p=0.5),
    ],
)
def test_settings_that_leave_only_the_best_token(sampling: Sampling) -> None:
    assert draw(sampling, 5) == [ORDER[0]] * 5


def test_equal_logits_go_to_the_lowest_id() -> None:
    tied = np.zeros(200, np.float32)
    tied[[150, 40, 90]] = 1.0
    assert draw(Sampling(temperature=0.0), 1, tied) == [40]
    assert set(draw(Sampling(top_k=2, seed=0), 200, tied)) == {40, 90}


def test_a_seed_decides_the_tokens_and_sampling_leaves_the_logits_alone() -> None:
    before = LOGITS.copy()
    first = draw(Sampling(seed=11, presence_penalty=1.0, logit_bias={3: 2.0}), 50)
    assert draw(Sampling(seed=11, presence_penalty=1.0, logit_bias={3: 2.0}), 50) == first
    assert draw(Sampling(seed=12, presence_penalty=1.0, logit_bias={3: 2.0}), 50) != first
    np.testing.assert_array_equal(LOGITS, before)


def test_interleaved_sequences_do_not_disturb_each_other() -> None:
    alone = draw(Sampling(seed=5), 20)
    one, other = Sampler(Sampling(seed=5)), Sampler(Sampling(seed=6))
    mixed = []
    for _ in range(20):
        other.sample(LOGITS)
        mixed.append(one.sample(LOGITS).token_id)
    assert mixed == alone


def test_negative_seeds_are_seeds() -> None:
    assert draw(Sampling(seed=-1), 20) == draw(Sampling(seed=-1), 20)
    assert draw(Sampling(seed=-1), 20) != draw(Sampling(seed=1), 20)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    count = 8000
    counts = Counter(draw(Sampling(temperature=temperature, seed=2), count))
    expected = probabilities(LOGITS / temperature)
    for token in ORDER[:5]:
        deviation = (expected[token] * (1 - expected[token]) / count) ** 0.5
        assert abs(counts[token] / count - expected[token]) < 5 * deviation


def test_top_k_keeps_the_k_best() -> None:
    flat = LOGITS / 100
    assert set(draw(Sampling(top_k=4, seed=3), 500, flat)) == set(ORDER[:4])
    assert seen(Sampling(top_k=VOCAB, seed=3), 200) == seen(Sampling(top_k=10**9, seed=3), 200)


@pytest.mark.parametrize("top_k", [0, 30])
def test_top_p_keeps_the_fewest_that_reach_it(top_k: int) -> None:
    chances = probabilities(LOGITS)[ORDER][: top_k or VOCAB]
    chances /= chances.sum()
    num_kept = int(np.searchsorted(np.cumsum(chances), 0.6)) + 1
    assert seen(Sampling(top_p=0.6, top_k=top_k, seed=3)) == set(ORDER[:num_kept])


def test_top_p_over_a_flat_distribution_looks_beyond_the_first_candidates() -> None:
    flat = np.linspace(0, 1e-3, 6000, dtype=np.float32)
    tokens = draw(Sampling(top_p=0.9, seed=3), 1000, flat)
    assert min(tokens) >= 600
    assert min(tokens) < 700


def test_min_p_is_relative_to_the_best() -> None:
    chances = probabilities(LOGITS)
    expected = {i for i in range(VOCAB) if chances[i] >= 0.1 * chances.max()}
    assert seen(Sampling(min_p=0.1, seed=3)) == expected


def test_bias_adds_to_logits() -> None:
    last = ORDER[-1]
    assert draw(Sampling(temperature=0.0, logit_bias={last: 100.0}), 1) == [last]
    assert draw(Sampling(temperature=0.0, logit_bias={ORDER[0]: -100.0}), 1) == [ORDER[1]]


def test_penalties_grow_as_documented() -> None:
    logits = np.array([1.0, 0.5, 0.0], np.float32)
    present = Sampling(temperature=0.0, presence_penalty=0.75)
    assert draw(present, 4, logits) == [0, 1, 0, 0]
    frequent = Sampling(temperature=0.0, frequency_penalty=0.375)
    assert draw(frequent, 6, logits) == [0, 0, 1, 0, 1, 2]


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = np.array([9.0, 5.0, 1.0, 0.0], np.float32)
    sampler = Sampler(Sampling(temperature=0.0, min_tokens=2), banned_early=(0, 1))
    assert [sampler.sample(logits).token_id for _ in range(4)] == [2, 2, 0, 0]


def test_logprobs_are_those_of_the_model() -> None:
    sampling = Sampling(temperature=0.0, logit_bias={ORDER[7]: 100.0}, logprobs=3)
    token_id, logprobs = Sampler(sampling).sample(LOGITS)
    expected = np.log(probabilities(LOGITS))
    assert token_id == ORDER[7]
    assert logprobs is not None
    assert logprobs.chosen == pytest.approx(expected[ORDER[7]], abs=1e-5)
    assert [token for token, _ in logprobs.top] == ORDER[:3]
    assert [p for _, p in logprobs.top] == pytest.approx(expected[ORDER[:3]].tolist(), abs=1e-5)


def test_logprobs_only_when_asked_for() -> None:
    assert Sampler(Sampling(temperature=0.0)).sample(LOGITS).logprobs is None
    assert logprobs_of(LOGITS, 3, 0).top == ()
