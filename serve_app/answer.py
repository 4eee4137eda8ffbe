"""The answer to one request while it grows: its choices and its usage. Knows no wire format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serve_app.executors.base import TokenChunk
from serve_app.responses import Usage
from serve_app.stream import Choice, Delta
from serve_app.tokenizer import StreamDecoder, Tokenizer
from serve_app.work import Work


class Gain(NamedTuple):
    """What came for one choice. `token_ids` end with the one that completed a stop string."""

    choice: int  # its index in the answer
    delta: Delta
    token_ids: Sequence[int]


class Answer:
    """The choices of all prompts while they grow."""

    def __init__(self, work: Work, tokenizer: Tokenizer) -> None:
        self._work = work
        num_choices = len(work.asks) * work.n
        self._choices = [
            Choice(StreamDecoder(tokenizer), work.stops, work.num_top is not None)
            for _ in range(num_choices)
        ]
        self._cached_tokens: list[int | None] = [None] * len(work.asks)
        self._num_unfinished = [work.n] * len(work.asks)
        self._total_unfinished = num_choices

    @property
    def is_finished(self) -> bool:
        return self._total_unfinished == 0

    def feed(self, prompt: int, chunk: TokenChunk) -> Gain:
        if self._cached_tokens[prompt] is None:
            self._cached_tokens[prompt] = chunk.cached_tokens
        index = prompt * self._work.n + chunk.index
        choice = self._choices[index]
        num_before = choice.num_tokens
        delta = choice.feed(chunk)
        if delta.finish_reason is not None:
            self._num_unfinished[prompt] -= 1
            self._total_unfinished -= 1
        return Gain(index, delta, chunk.token_ids[: choice.num_tokens - num_before])

    def is_prompt_finished(self, prompt: int) -> bool:
        return self._num_unfinished[prompt] == 0

    def usage(self) -> Usage:
        num_prompt = sum(ask.num_tokens for ask in self._work.asks)
        num_completion = sum(choice.num_tokens for choice in self._choices)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {"cached_tokens": sum(c or 0 for c in self._cached_tokens)},
        }
