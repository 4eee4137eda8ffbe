"""A model without weights: the next token is a function of the sequence, readable as text.

Takes no time itself; `duration_s` says how long a step would have taken. Same prompt, seed and
sequence index: same tokens, on every machine. Uses no randomness of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from serve_app.engine.sampler import Logprobs, Sampled
from serve_app.engine.scheduler import Scheduled
from serve_app.engine.sequence import Sequence

TEXT = (
    b"the block that holds a prefix waits on its worker until the next turn comes back and finds "
    b"it there; what nobody asks for again makes room, the least wanted first. "
)


@dataclass(frozen=True)
class Timing:
    """Pretended milliseconds; `decode_ms` is a step that only decodes."""

    prefill_ms: float = 0.0
    prefill_ms_per_token: float = 0.0
    decode_ms: float = 0.0

    def duration_s(self, step: Seq[Scheduled]) -> float:
        num_new = sum(part.num_tokens for part in step if not part.seq.is_decoding)
        if not num_new:
            return self.decode_ms / 1000
        return (self.prefill_ms + self.prefill_ms_per_token * num_new) / 1000


class ScriptedModel:
    """Implements Runner. `eos_after` tokens it ends by itself with `eos_id`; None: never."""

    def __init__(self, *, eos_id: int, eos_after: int | None = None) -> None:
        self._eos_id = eos_id
        self._eos_after = eos_after

    def run(self, step: Seq[Scheduled]) -> list[Sampled]:
        return [self._sample(part.seq) for part in step if part.has_logits]

    def _sample(self, seq: Sequence) -> Sampled:
        start = seq.sampler_state
        if not isinstance(start, int):
            start = seq.sampler_state = _start(seq)
        token_id = TEXT[(start + seq.num_generated) % len(TEXT)]
        if self._eos_after is not None and seq.num_generated >= self._eos_after:
            may_end = not seq.request.sampling.ignore_eos
            token_id = self._eos_id if may_end else token_id
        num_top = seq.request.sampling.logprobs
        return Sampled(token_id, None) if num_top is None else _with_logprobs(token_id, num_top)


def _start(seq: Sequence) -> int:
    """Where in the text a reply begins: by the prompt, and by seed and index if not greedy."""
    prompt = zlib.crc32(seq.token_bytes(0, seq.num_prompt_tokens))
    sampling = seq.request.sampling
    if sampling.temperature == 0:
        return prompt % len(TEXT)
    return (prompt + 31 * ((sampling.seed or 0) + seq.index)) % len(TEXT)


def _with_logprobs(token_id: int, num_top: int) -> Sampled:
    """Halving probabilities: the chosen token first, then the ones after it."""
    ids = [token_id] + [i for i in range(num_top) if i != token_id]
    top = tuple((token, -0.6931471805599453 * (rank + 1)) for rank, token in enumerate(ids))
    return Sampled(token_id, Logprobs(top[0][1], top[:num_top]))
