"""Traces: rows of a file to requests. Knows no fleet and no time but the trace's own.

Rows are those of Mooncake: `timestamp` (ms), `input_length`, `output_length` (tokens) and
`hash_ids`, one for each trace block of 512 tokens; an equal id means an equal prefix up to and
including that block. The last one may be partial. Rows with `t` instead of `timestamp` are delta
coded: `hash_ids` are the first `k` ids of the session's previous row and the runs `r`.

A trace block is cached, told and dropped as a whole; in the last one only full blocks count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from controllers.errors import SettingsError
from controllers.retention import Spans

TRACE_BLOCK = 512  # tokens
MAX_TOKENS = 10_000_000  # of a prompt or an answer
MAX_DAYS = 31

Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class Row(msgspec.Struct, frozen=True):
    """One line of a trace. From `request_type` on the fields are ours and optional. `tier` None:
    that of the request type."""

    timestamp: float
    input_length: Tokens
    output_length: Count
    hash_ids: list[int]
    request_type: str = "interactive"
    system_length: Count = 0  # tokens of the system prompt
    history_length: Count = 0  # tokens of system prompt and earlier turns
    tenant: str = "default"
    tier: str | None = None


class _DeltaRow(msgspec.Struct, frozen=True):
    t: float
    i: Tokens
    o: Count
    s: int
    a: str
    k: Count
    r: list[tuple[int, Count]]


class Request(NamedTuple):
    """`trace_blocks` index `Trace.num_blocks_of`; they have `num_blocks` full blocks together."""

    number: int
    arrival_ms: float
    num_tokens: int
    output_tokens: int
    trace_blocks: tuple[int, ...]
    num_blocks: int
    request_type: str
    spans: Spans
    tenant: str = "default"
    tier: str | None = None

    def piece(self, num_tokens: int, block_size: int) -> Request:
        """Its leading whole trace blocks within so many tokens, asked for one output token."""
        trace_blocks = self.trace_blocks[: num_tokens // TRACE_BLOCK]
        num_tokens = len(trace_blocks) * TRACE_BLOCK
        return self._replace(
            num_tokens=num_tokens,
            output_tokens=1,
            trace_blocks=trace_blocks,
            num_blocks=num_tokens // block_size,
        )


class Trace(NamedTuple):
    """Requests in the order of arrival, the first one at 0 ms."""

    block_size: int
    requests: list[Request]
    num_blocks_of: list[int]  # full blocks in a trace block; 0 stands for no trace block

    @property
    def blocks_per_trace_block(self) -> int:
        return TRACE_BLOCK // self.block_size


def read_rows(lines: Iterable[str | bytes], source: str) -> list[Row]:
    """Raises SettingsError that names the line; `source` names the file."""
    rows: list[Row] = []
    decode: _Decode | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            decode = decode or _decoder_for(line)
            rows.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{source} line {number} is no row of a trace: {error}") from error
    if not rows:
        raise SettingsError(f"{source} has no requests")
    return rows


def build(rows: Sequence[Row], block_size: int) -> Trace:
    """Raises SettingsError if blocks do not fill a trace block."""
    if block_size < 1 or TRACE_BLOCK % block_size:
        raise SettingsError(f"block size {block_size} does not divide {TRACE_BLOCK} tokens")
    ids: dict[tuple[int, int, int], int] = {}  # with what comes before: equal only as prefixes
    num_blocks_of = [0]
    requests: list[Request] = []
    ordered = sorted(rows, key=lambda row: row.timestamp)
    for number, row in enumerate(ordered):
        trace_blocks = [0]
        left = num_full = row.input_length // block_size
        for hash_id in row.hash_ids:
            num = min(TRACE_BLOCK // block_size, left)
            if num == 0:
                break
            left -= num
            known = ids.setdefault((trace_blocks[-1], hash_id, num), len(num_blocks_of))
            if known == len(num_blocks_of):
                num_blocks_of.append(num)
            trace_blocks.append(known)
        requests.append(
            Request(
                number=number,
                arrival_ms=row.timestamp - ordered[0].timestamp,
                num_tokens=row.input_length,
                output_tokens=max(1, row.output_length),
                trace_blocks=tuple(trace_blocks[1:]),
                num_blocks=num_full - left,
                request_type=row.request_type,
                spans=_spans(row),
                tenant=row.tenant,
                tier=row.tier,
            )
        )
    return Trace(block_size, requests, num_blocks_of)


def arrivals_ms(trace: Trace, speedup: float, jitter: float, seed: int) -> npt.NDArray[np.float64]:
    """Arrivals `speedup` times as fast; every gap is up to `jitter` of itself longer or shorter,
    so that seeds differ. Raises SettingsError if one comes after more than MAX_DAYS."""
    times = np.array([request.arrival_ms for request in trace.requests])
    noise = np.random.default_rng(seed).uniform(-jitter, jitter, len(times))
    with np.errstate(over="ignore", invalid="ignore"):
        arrivals = np.cumsum(np.diff(times / speedup, prepend=0.0) * (1.0 + noise))
    is_late = ~(arrivals <= MAX_DAYS * 86_400_000.0)
    if is_late.any():
        number = int(is_late.argmax())
        raise SettingsError(
            f"request {number + 1} of the trace, in the order of time, comes "
            f"{times[number]:.4g} ms after the first: {MAX_DAYS} days at speedup {speedup:g} are "
            "the most. Timestamps are milliseconds"
        )
    return np.asarray(arrivals)


_Decode: TypeAlias = Callable[[str | bytes], Row]


def _decoder_for(line: str | bytes) -> _Decode:
    first = msgspec.json.decode(line)
    if isinstance(first, dict) and "t" in first and "timestamp" not in first:
        return _Deltas().decode
    return msgspec.json.Decoder(Row).decode


class _Deltas:
    """Remembers the last ids of every session."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, str], list[int]] = {}
        self._decoder = msgspec.json.Decoder(_DeltaRow)

    def decode(self, line: str | bytes) -> Row:
        row = self._decoder.decode(line)
        ids = self._ids.get((row.s, row.a), [])[: row.k]
        num_ids, num_blocks = len(ids) + sum(num for _, num in row.r), -(-row.i // TRACE_BLOCK)
        if num_ids > num_blocks:
            raise msgspec.ValidationError(
                f"{num_ids} trace blocks in k and r, {num_blocks} in {row.i} tokens"
            )
        for start, length in row.r:
            ids = [*ids, *range(start, start + length)]
        self._ids[row.s, row.a] = ids
        kept = min(row.k * TRACE_BLOCK, row.i)
        return Row(row.t, row.i, row.o, ids, "agent", history_length=kept)


def _spans(row: Row) -> Spans:
    history_end = min(row.history_length, row.input_length)
    return Spans(min(row.system_length, history_end), history_end, row.input_length)
