"""Answers of /v1/chat/completions: what a choice gained -> SSE events; choices -> one document."""

from __future__ import annotations

from collections.abc import Sequence

from serve_app.envelope import Envelope
from serve_app.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    TokenEntry,
    TopLogprob,
    Usage,
)
from serve_app.stream import Delta, ShownToken
from serve_app.token_names import TokenNames, finite

CHUNK = "chat.completion.chunk"


class ChatWriter:
    """One answer. The role goes out alone, before the first text of each choice."""

    def __init__(self, envelope: Envelope, names: TokenNames, num_top: int | None) -> None:
        self._envelope = envelope
        self._names = names
        self._num_top = num_top  # None: no log probabilities
        self._started: set[int] = set()

    def events(self, index: int, delta: Delta) -> bytes:
        parts = []
        if index not in self._started:
            self._started.add(index)
            parts.append(self._event(index, {"role": "assistant", "content": "", "refusal": None}))
        if delta.text or delta.tokens:
            logprobs = self._logprobs(delta.tokens)
            parts.append(self._event(index, {"content": delta.text}, logprobs))
        if delta.finish_reason is not None:
            parts.append(self._event(index, {}, None, delta.finish_reason))
        return b"".join(parts)

    def last_events(self, usage: Usage) -> bytes:
        return self._envelope.last_events(CHUNK, usage)

    def document(self, answers: Sequence[Delta], usage: Usage) -> bytes:
        """`answers`: whole choices by index."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return self._envelope.document("chat.completion", choices, usage)

    def _event(
        self,
        index: int,
        delta: ChatDelta,
        logprobs: ChatLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice: ChatChunkChoice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return self._envelope.event(CHUNK, choice)

    def _choice(self, index: int, answer: Delta) -> ChatChoice:
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.tokens),
            "finish_reason": answer.finish_reason,
        }

    def _logprobs(self, tokens: Sequence[ShownToken]) -> ChatLogprobs | None:
        if self._num_top is None:
            return None
        return {"content": [self._entry(token) for token in tokens], "refusal": None}

    def _entry(self, token: ShownToken) -> TokenEntry:
        top = token.logprob.top[: self._num_top]
        return {
            **self._top_entry(token.token_id, token.logprob.logprob),
            "top_logprobs": [self._top_entry(token_id, logprob) for token_id, logprob in top],
        }

    def _top_entry(self, token_id: int, logprob: float) -> TopLogprob:
        return {
            "token": self._names.name_of(token_id),
            "logprob": finite(logprob),
            "bytes": list(self._names.bytes_of(token_id)),
        }
