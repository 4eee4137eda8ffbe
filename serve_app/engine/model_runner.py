"""Runs a step on a model with weights: packs the batch, forwards it, samples.

Knows neither scheduling nor when a sequence ends.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from serve_app.engine.batch import Batch, Model, SequenceSlice
from serve_app.engine.sampler import Sampled, Sampler, Sampling
from serve_app.engine.scheduler import Scheduled
from serve_app.engine.sequence import Sequence


class ModelRunner:
    """Implements Runner."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, step: Seq[Scheduled]) -> list[Sampled]:
        slices = [_slice_of(part) for part in step]
        logits = self._model.forward(Batch.pack(slices, self._model.pool.block_size))
        rows = iter(logits)
        return [self._sampler_of(part.seq).sample(next(rows)) for part in step if part.has_logits]

    def _sampler_of(self, seq: Sequence) -> Sampler:
        sampler = seq.sampler_state
        if not isinstance(sampler, Sampler):
            stop_ids = sorted(token for token in seq.stop_ids if token < self._model.vocab_size)
            sampler = seq.sampler_state = Sampler(_sampling_of(seq), tuple(stop_ids))
            sampler.resume(seq.tokens[seq.num_prompt_tokens :])
        return sampler


def _slice_of(part: Scheduled) -> SequenceSlice:
    seq, start = part.seq, part.seq.num_computed
    tokens = seq.tokens[start : start + part.num_tokens]
    return SequenceSlice(tokens, start, seq.block_table, part.has_logits)


def _sampling_of(seq: Sequence) -> Sampling:
    """Sequence i of a request draws with seed + i."""
    wanted = seq.request.sampling
    return Sampling(
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
        min_p=wanted.min_p,
        seed=None if wanted.seed is None else wanted.seed + seq.index,
        logprobs=wanted.logprobs,
        logit_bias=wanted.logit_bias,
        presence_penalty=wanted.presence_penalty,
        frequency_penalty=wanted.frequency_penalty,
        min_tokens=wanted.min_tokens,
    )
