"""TokenChunks of one sequence -> text: decoding, stop strings, what each piece of text consists of.

What comes out, joined, depends on the tokens alone and not on how they were cut into chunks; so a
streamed answer equals the same answer in one piece. Knows no wire format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controllers.errors import RequestAborted
from serve_app.executors.base import TokenChunk, TokenLogprob
from serve_app.stop_strings import StopAutomaton, StopScanner
from serve_app.tokenizer import StreamDecoder


class ShownToken(NamedTuple):
    """A token of the answer; `start` is how many characters of its sequence come before it."""

    token_id: int
    start: int
    logprob: TokenLogprob


class Delta(NamedTuple):
    """What a sequence gained. `tokens` only with logprobs; `finish_reason` in the last one."""

    text: str
    tokens: list[ShownToken]
    finish_reason: str | None


NOTHING = Delta("", [], None)


class Choice:
    """One sequence of the answer. `num_tokens` ends with the one that completed a stop string."""

    def __init__(
        self, decoder: StreamDecoder, stops: Sequence[StopAutomaton], has_logprobs: bool
    ) -> None:
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self._decoder = decoder
        self._scanner = StopScanner(stops) if stops else None
        self._has_logprobs = has_logprobs
        self._num_decoded = 0  # characters
        self._num_shown = 0  # characters
        self._waiting: list[ShownToken] = []  # their text is not shown yet

    def feed(self, chunk: TokenChunk) -> Delta:
        """The next chunk; NOTHING if the sequence already ended at a stop string.

        Raises RequestAborted if the executor gave it up.
        """
        if self.finish_reason is not None:
            return NOTHING
        text = self._decode(chunk)
        if self._scanner is not None and self._scanner.is_hit:
            return self._finish(text, "stop")
        if chunk.finish_reason is None:
            return self._show(text)
        if chunk.finish_reason == "abort":
            raise RequestAborted("the request was aborted by the worker")
        text += self._flush()
        is_hit = self._scanner is not None and self._scanner.is_hit
        return self._finish(text, "stop" if is_hit else chunk.finish_reason)

    def _decode(self, chunk: TokenChunk) -> str:
        if self._scanner is None and not self._has_logprobs:
            self.num_tokens += len(chunk.token_ids)
            return self._decoder.push(chunk.token_ids)
        shown = []
        for position, token_id in enumerate(chunk.token_ids):
            if self._has_logprobs:
                token = ShownToken(token_id, self._num_decoded, chunk.logprobs[position])
                self._waiting.append(token)
            shown.append(self._scan(self._decoder.push((token_id,))))
            self.num_tokens += 1
            if self._scanner is not None and self._scanner.is_hit:
                break
        return "".join(shown)

    def _scan(self, text: str) -> str:
        self._num_decoded += len(text)
        return text if self._scanner is None else self._scanner.feed(text)

    def _flush(self) -> str:
        text = self._scan(self._decoder.flush())
        return text if self._scanner is None else text + self._scanner.flush()

    def _show(self, text: str) -> Delta:
        self._num_shown += len(text)
        return Delta(text, self._shown_tokens() if self._has_logprobs else [], None)

    def _shown_tokens(self) -> list[ShownToken]:
        count = sum(token.start < self._num_shown for token in self._waiting)
        shown, self._waiting = self._waiting[:count], self._waiting[count:]
        return shown

    def _finish(self, text: str, reason: str) -> Delta:
        self.finish_reason = reason
        tokens = self._show(text).tokens
        is_cut = self._scanner is not None and self._scanner.is_hit
        return Delta(text, tokens if is_cut else tokens + self._waiting, reason)
