"""Gains of a running request -> messages of the gRPC interface."""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.answer import Gain
from serve_app.proto import cachelane_pb2 as pb
from serve_app.responses import Usage
from serve_app.stream import ShownToken
from serve_app.token_names import TokenNames, finite
from serve_app.work import Work


class GrpcWriter:
    """One answer."""

    def __init__(self, work: Work, names: TokenNames) -> None:
        self._work = work
        self._names = names

    def chunk(self, gains: Iterable[Gain], usage: Usage | None) -> pb.AnswerChunk | None:
        """One message for all that came; None if a client would learn nothing from it."""
        choices = self.choices(gains)
        if not choices and usage is None:
            return None
        work = self._work
        chunk = pb.AnswerChunk(
            id=work.request_id, model=work.model, created=work.created, choices=choices
        )
        if usage is not None:
            chunk.usage.CopyFrom(_usage(usage))
        return chunk

    def answer(self, gains: Iterable[Gain], usage: Usage) -> pb.Answer:
        work = self._work
        return pb.Answer(
            id=work.request_id,
            model=work.model,
            created=work.created,
            choices=self.choices(gains),
            usage=_usage(usage),
        )

    def choices(self, gains: Iterable[Gain]) -> list[pb.Choice]:
        """By index: those that gained something."""
        choices: dict[int, list[Gain]] = {}
        for gain in gains:
            choices.setdefault(gain.choice, []).append(gain)
        made = [self._choice(index, found) for index, found in sorted(choices.items())]
        return [choice for choice in made if choice.text or choice.token_ids or _has_end(choice)]

    def _choice(self, index: int, gains: list[Gain]) -> pb.Choice:
        deltas = [gain.delta for gain in gains]
        reasons = [delta.finish_reason for delta in deltas if delta.finish_reason is not None]
        return pb.Choice(
            index=index,
            text="".join(delta.text for delta in deltas),
            token_ids=[token for gain in gains for token in gain.token_ids],
            finish_reason=reasons[0] if reasons else "",
            logprobs=[self._chosen(token) for delta in deltas for token in delta.tokens],
        )

    def _chosen(self, token: ShownToken) -> pb.ChosenToken:
        top = token.logprob.top[: self._work.num_top]
        return pb.ChosenToken(
            chosen=self._entry(token.token_id, token.logprob.logprob),
            top=[self._entry(token_id, logprob) for token_id, logprob in top],
        )

    def _entry(self, token_id: int, logprob: float) -> pb.TokenLogprob:
        text = self._names.bytes_of(token_id)
        return pb.TokenLogprob(token_id=token_id, text=text, logprob=finite(logprob))


def _has_end(choice: pb.Choice) -> bool:
    return bool(choice.finish_reason or choice.logprobs)


def _usage(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        total_tokens=usage["total_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
    )
