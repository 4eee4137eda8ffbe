"""Answers of /v1/completions: what a choice gained -> SSE events; choices -> one document."""

from __future__ import annotations

from collections.abc import Sequence

from serve_app.envelope import Envelope
from serve_app.responses import CompletionChoice, CompletionLogprobs, Usage
from serve_app.stream import Delta, ShownToken
from serve_app.token_names import TokenNames, finite

KIND = "text_completion"


class CompletionWriter:
    """One answer."""

    def __init__(self, envelope: Envelope, names: TokenNames, num_top: int | None) -> None:
        self._envelope = envelope
        self._names = names
        self._num_top = num_top  # None: no log probabilities

    def events(self, index: int, delta: Delta) -> bytes:
        parts = []
        if delta.text or delta.tokens:
            parts.append(self._envelope.event(KIND, self._choice(index, delta, None)))
        if delta.finish_reason is not None:
            end: CompletionChoice = {
                "index": index,
                "text": "",
                "logprobs": None,
                "finish_reason": delta.finish_reason,
            }
            parts.append(self._envelope.event(KIND, end))
        return b"".join(parts)

    def last_events(self, usage: Usage) -> bytes:
        return self._envelope.last_events(KIND, usage)

    def document(self, answers: Sequence[Delta], usage: Usage) -> bytes:
        """`answers`: whole choices by index."""
        choices = [
            self._choice(index, answer, answer.finish_reason)
            for index, answer in enumerate(answers)
        ]
        return self._envelope.document(KIND, choices, usage)

    def _choice(self, index: int, delta: Delta, finish_reason: str | None) -> CompletionChoice:
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(delta.tokens),
            "finish_reason": finish_reason,
        }

    def _logprobs(self, tokens: Sequence[ShownToken]) -> CompletionLogprobs | None:
        if self._num_top is None:
            return None
        return {
            "tokens": [self._names.name_of(token.token_id) for token in tokens],
            "token_logprobs": [finite(token.logprob.logprob) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": [token.start for token in tokens],
        }

    def _top(self, token: ShownToken) -> dict[str, float]:
        """The most likely tokens, and the chosen one even if it is not among them."""
        top = {
            self._names.name_of(token_id): finite(logprob)
            for token_id, logprob in token.logprob.top[: self._num_top]
        }
        top.setdefault(self._names.name_of(token.token_id), finite(token.logprob.logprob))
        return top
