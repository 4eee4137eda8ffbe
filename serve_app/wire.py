"""What ingress and replica say to each other: bytes, so that no handle ever pickles our objects.

A request travels as one msgpack GenerateRequest plus the router's prediction; answers travel as
msgpack lists of TokenChunk, or one Failure, which is the error tree in flat form. Errors never
travel as exceptions: a traceback of the replica must not reach a client, and an unpickled foreign
class must not fail the ingress.
"""

from __future__ import annotations

import msgspec

from controllers import errors
from controllers.replica_meter import TierTarget
from serve_app.executors.base import GenerateRequest, TokenChunk


class Call(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """`uncached_tokens`: prompt tokens the router expects the worker to compute (for its gate).

    The times say how long the executor may take for the first token and between two, in s.
    `tenant_weight` and `max_wait_s` are for the gate too; tenant and rank are the request's.
    `target` is what its tier promises, and `waited_s` for how long it has waited, for the replica's
    own measurements; for these a piece of a prompt is no request. `max_ahead_tokens`: with more to
    prefill before it, the gate hands it back; None: never. `has_peers`: other ingresses may send in
    the same moment, so that the gate gathers.
    """

    request: GenerateRequest
    uncached_tokens: int
    first_token_timeout_s: float
    inter_token_timeout_s: float
    tenant_weight: float = 1.0
    max_wait_s: float | None = None
    target: TierTarget = TierTarget()
    waited_s: float = 0.0
    is_piece: bool = False
    max_ahead_tokens: int | None = None
    has_peers: bool = False


class Chunks(msgspec.Struct, frozen=True, array_like=True, tag="chunks"):
    chunks: list[TokenChunk]


class Failure(msgspec.Struct, frozen=True, array_like=True, tag="failure"):
    """`kind` is the class name in controllers.errors."""

    kind: str
    message: str
    field: str = ""
    code: str | None = None
    retry_after_s: float = 1.0


_encoder = msgspec.msgpack.Encoder()
_call_decoder = msgspec.msgpack.Decoder(Call)
_answer_decoder = msgspec.msgpack.Decoder(Chunks | Failure)


def encode_call(call: Call) -> bytes:
    return _encoder.encode(call)


def decode_call(data: bytes) -> Call:
    return _call_decoder.decode(data)


def encode_chunks(chunks: list[TokenChunk]) -> bytes:
    return _encoder.encode(Chunks(chunks))


def encode_failure(error: errors.CachelaneError) -> bytes:
    """The class's name, message and field travel; the traceback is left behind."""
    return _encoder.encode(
        Failure(
            kind=type(error).__name__,
            message=getattr(error, "message", str(error)),
            field=getattr(error, "field", ""),
            code=getattr(error, "code", None),
            retry_after_s=getattr(error, "retry_after_s", 1.0),
        )
    )


def decode_answer(data: bytes) -> list[TokenChunk]:
    """Chunks, or raises the error that the replica met."""
    answer = _answer_decoder.decode(data)
    if isinstance(answer, Chunks):
        return answer.chunks
    raise _to_error(answer)


def _to_error(failure: Failure) -> errors.CachelaneError:
    cls = getattr(errors, failure.kind, errors.ExecutorError)
    if issubclass(cls, errors.InvalidRequest):
        return cls(failure.field, failure.message, failure.code)
    if issubclass(cls, (errors.NotReady, errors.Overloaded)):
        return cls(failure.message, failure.retry_after_s)
    error = cls(failure.message)
    assert isinstance(error, errors.CachelaneError)
    return error
