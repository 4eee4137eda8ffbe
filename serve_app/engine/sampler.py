"""One token from one row of logits.

Owns: the order of penalties, temperature, cuts and the draw, and log probabilities.
Does not know: stop conditions, batches, or text.

A sequence draws from its own generator, one number a token, so its tokens depend on its logits and
its seed alone: never on what else runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from serve_app.engine.batch import FloatArray, IntArray

NEVER = np.float32(-np.inf)
GREEDY_BELOW = 1e-5
"""Temperatures this low cannot be told from zero in float32."""
NUCLEUS_SIZES = (256, 4096)
CHUNK = 64


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a sequence chooses tokens; ranges are checked by whoever accepts the request.

    `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 and `min_p` 0 are off. `logprobs` None: none,
    k: the chosen token's and the k best tokens'. Penalties look at generated tokens only.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0


class Logprobs(NamedTuple):
    """Natural logs of the model's own distribution: before bias, penalties and temperature."""

    chosen: float
    top: tuple[tuple[int, float], ...]
    """(token id, logprob), best first."""


class Sampled(NamedTuple):
    token_id: int
    logprobs: Logprobs | None


class Sampler:
    """The choices of one sequence. `banned_early` may not be chosen before `min_tokens` tokens.

    Ids in `logit_bias` and `banned_early` must be in the vocabulary.
    """

    def __init__(self, sampling: Sampling, banned_early: tuple[int, ...] = ()) -> None:
        self.sampling = sampling
        self._banned_early = list(banned_early)
        self._bias_ids = np.fromiter(sampling.logit_bias, np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        self._counts: dict[int, int] = {}
        self._num_tokens = 0
        self._generator = np.random.default_rng(_unsigned(sampling.seed))

    def resume(self, token_ids: Iterable[int]) -> None:
        """Go on behind tokens chosen by another sampler of the same settings."""
        for token_id in token_ids:
            self._count(token_id)
            if self._is_drawn:
                self._generator.random()

    def sample(self, logits: FloatArray) -> Sampled:
        """Chooses from logits (vocab,), which stay unchanged, and remembers the choice."""
        token_id = self._choose(self._adjusted(logits))
        self._count(token_id)
        if self.sampling.logprobs is None:
            return Sampled(token_id, None)
        return Sampled(token_id, logprobs_of(logits, token_id, self.sampling.logprobs))

    @property
    def _is_drawn(self) -> bool:
        """Whether a choice takes a random number."""
        return self.sampling.temperature >= GREEDY_BELOW and self.sampling.top_k != 1

    def _count(self, token_id: int) -> None:
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        self._num_tokens += 1

    def _adjusted(self, logits: FloatArray) -> FloatArray:
        sampling = self.sampling
        is_early = self._num_tokens < sampling.min_tokens and bool(self._banned_early)
        has_penalty = bool(sampling.presence_penalty or sampling.frequency_penalty)
        if not (is_early or has_penalty or len(self._bias_ids)):
            return logits
        adjusted: FloatArray = logits.copy()
        adjusted[self._bias_ids] += self._bias
        if has_penalty and self._counts:
            ids = np.fromiter(self._counts, np.int64)
            counts = np.fromiter(self._counts.values(), np.float32)
            adjusted[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        if is_early:
            adjusted[self._banned_early] = NEVER
        return adjusted

    def _choose(self, logits: FloatArray) -> int:
        sampling = self.sampling
        if not self._is_drawn:
            return int(np.argmax(logits))
        weights = np.exp((logits - logits.max()) / np.float32(sampling.temperature))
        if not (sampling.top_k or sampling.top_p < 1.0 or sampling.min_p > 0.0):
            return self._draw(weights)
        ids = _candidates(logits, weights, sampling)
        return int(ids[self._draw(weights[ids])])

    def _draw(self, weights: FloatArray) -> int:
        """An index with a chance in proportion to its weight."""
        cumulative = np.cumsum(weights, dtype=np.float64)
        point = self._generator.random() * cumulative[-1]
        index = int(np.searchsorted(cumulative, point, side="right"))
        return min(index, len(weights) - 1)


def logprobs_of(logits: FloatArray, token_id: int, num_top: int) -> Logprobs:
    """Log-softmax of a row at the chosen token and at the `num_top` best."""
    peak = float(logits.max())
    total = peak + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    best = _top(logits, num_top).tolist() if num_top else []
    top = tuple((token, float(logits[token]) - total) for token in best)
    return Logprobs(float(logits[token_id]) - total, top)


def _candidates(logits: FloatArray, weights: FloatArray, sampling: Sampling) -> IntArray:
    """Ids that survive top-k, then top-p of what is left, then min-p."""
    if sampling.top_k:
        ids = _top(logits, sampling.top_k)
        total = weights[ids].sum(dtype=np.float64)
    else:
        total = weights.sum(dtype=np.float64)
        needed = sampling.top_p * total if sampling.top_p < 1.0 else None
        ids = np.arange(len(logits)) if needed is None else _enough(logits, weights, needed)
    if sampling.top_p < 1.0:
        # A token stays while the mass before it is below top_p: the first one always does.
        kept = weights[ids].astype(np.float64)
        before = np.cumsum(kept) - kept
        ids = ids[: max(1, int(np.searchsorted(before, sampling.top_p * total)))]
    return ids[weights[ids] >= sampling.min_p]


def _enough(logits: FloatArray, weights: FloatArray, mass: float) -> IntArray:
    """Best ids, in order, that weigh at least `mass`; sorting all of them is ten times slower."""
    for count in NUCLEUS_SIZES:
        ids = _top(logits, count)
        if weights[ids].sum(dtype=np.float64) >= mass:
            return ids
    return _top(logits, len(logits))


def _top(logits: FloatArray, count: int) -> IntArray:
    """Ids of the `count` largest logits, best first; equal ones by id."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    candidates = np.flatnonzero(logits >= _lower_bound(logits, count))
    order = np.argsort(-logits[candidates], kind="stable")
    return candidates[order[:count]]


def _lower_bound(logits: FloatArray, count: int) -> float:
    """A value that at least `count` logits reach: the count-th best of the maxima of chunks."""
    num_chunks = len(logits) // CHUNK
    values = logits
    if count <= num_chunks:
        values = logits[: num_chunks * CHUNK].reshape(num_chunks, CHUNK).max(axis=1)
    rank = len(values) - count
    return float(np.partition(values, rank)[rank])


def _unsigned(seed: int | None) -> int | None:
    """Generators take no negative seeds; both halves of the 64-bit range stay distinct."""
    return None if seed is None else seed % 2**64
