"""How long an iteration of a pretended engine takes.

    prefill(n) = a + b u + c u^2    u = new tokens / 8,192; 0 without any
    decode(p)  = d + e p + f p^2    p = blocks in use / blocks of the largest worker, at most 1

As in the cost model more work never takes less time: each is flat from the top of its parabola on.
The built-in curve is that of the mocked engine of NVIDIA Dynamo 1.6.1, read off its replay; others
are fitted to the iterations that workers of a real fleet report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from controllers.cost_model import MAX_SAMPLE_TOKENS, CostModel
from controllers.curve import Curve
from controllers.errors import SettingsError
from controllers.events import EventBatch, Iteration, Load

REFERENCE_TOKENS = 8192
MIN_SAMPLES = 50  # for six coefficients, with some noise


@dataclass(frozen=True)
class TimingCurve:
    """Milliseconds. Fitted ones know what was seen: iterations of more than `max_tokens` take
    longer in proportion, and a cache fuller than `max_share` changes nothing."""

    prefill: tuple[float, float, float]
    decode: tuple[float, float, float]
    max_tokens: float = math.inf
    max_share: float = 1.0

    def prefill_ms(self, num_tokens: int) -> float:
        if num_tokens <= 0:
            return 0.0
        if num_tokens > self.max_tokens:
            start_ms, rise_ms = self._start_and_rise_ms
            return start_ms + rise_ms * num_tokens / self.max_tokens
        return float(self._prefill.at(num_tokens / REFERENCE_TOKENS))

    def decode_ms(self, share: float) -> float:
        return float(self._decode.at(share))

    @cached_property
    def _prefill(self) -> Curve:
        return Curve(*self.prefill)

    @cached_property
    def _decode(self) -> Curve:
        return Curve(*self.decode, self.max_share)

    @cached_property
    def _start_and_rise_ms(self) -> tuple[float, float]:
        """Of no tokens, and what `max_tokens` take longer."""
        start_ms = float(self._prefill.at(0.0))
        return start_ms, float(self._prefill.at(self.max_tokens / REFERENCE_TOKENS)) - start_ms


DYNAMO_MOCKER = TimingCurve(
    prefill=(
        16.50142,
        1.518344e-02 * REFERENCE_TOKENS,
        4.209989e-07 * REFERENCE_TOKENS * REFERENCE_TOKENS,
    ),
    decode=(5.74, 54.01, -25.74),
)


def parse_curve(text: str) -> TimingCurve:
    """Six numbers, a to f. Raises SettingsError."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 6 or not all(map(math.isfinite, values)):
        raise SettingsError(f"timing curve {text!r} is not six numbers a,b,c,d,e,f")
    a, b, c, d, e, f = values
    _check(values)
    return TimingCurve((a, b, c), (d, e, f))


def fit_curve(batches: Iterable[EventBatch], reference_blocks: int) -> TimingCurve:
    """The curve of the workers whose load records these are. Raises SettingsError if they report
    too few iterations."""
    timings = _timings(batches)
    max_tokens = max((timing.new_tokens for _, timing in timings), default=0)
    shares = [t.active_blocks / reference_blocks for _, t in timings if t.num_decodes > 0]
    model = CostModel(max(1, max_tokens))
    for worker, timing in timings:
        model.observe(worker, timing, reference_blocks)
    if model.num_samples < MIN_SAMPLES or not max_tokens or not shares:
        raise SettingsError(
            f"the load records have {model.num_samples} timings of iterations; "
            f"{MIN_SAMPLES} are needed to fit a curve, with prompts and with decodes"
        )
    a, b, c, d, e, f = model.coefficients
    scale = REFERENCE_TOKENS / max_tokens
    return TimingCurve(
        prefill=(a, b * scale, c * scale * scale),
        decode=(d, e, f),
        max_tokens=max_tokens,
        max_share=min(1.0, max(shares)),
    )


def _timings(batches: Iterable[EventBatch]) -> list[tuple[str, Iteration]]:
    """With their workers, without those that the cost model would leave out for their tokens."""
    return [
        (batch.worker, timing)
        for batch in batches
        for event in batch.events
        for timing in (event.iterations if isinstance(event, Load) else ())
        if timing.new_tokens <= MAX_SAMPLE_TOKENS
    ]


def _check(values: Sequence[float]) -> None:
    """Raises SettingsError for a curve by which work would take no time."""
    a, b, c, d, e, f = values
    least_ms = min(
        *(a + u * (b + c * u) for u in (1 / REFERENCE_TOKENS, 0.5, 1.0)),
        *(d + share * (e + f * share) for share in (0.0, 0.5, 1.0)),
    )
    if least_ms <= 0.0:
        raise SettingsError(f"timing curve gives iterations of {least_ms:.3g} ms")
