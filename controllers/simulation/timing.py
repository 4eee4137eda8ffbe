"""How long an iteration of a pretended engine takes.

    prefill(n) = a + b u + c u^2    u = new tokens / 8,192; 0 without any
    decode(p)  = d + e p + f p^2    p = blocks in use / blocks of a worker

The built-in curve is that of the mocked engine of NVIDIA Dynamo 1.6.1, read off its replay; others
are fitted to the iterations that workers of a real fleet report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from controllers.cost_model import CostModel
from controllers.errors import SettingsError
from controllers.events import EventBatch, Load

REFERENCE_TOKENS = 8192
MIN_SAMPLES = 50  # for six coefficients, with some noise


class TimingCurve(msgspec.Struct, frozen=True):
    """Milliseconds."""

    prefill: tuple[float, float, float]
    decode: tuple[float, float, float]

    def prefill_ms(self, num_tokens: int) -> float:
        if num_tokens <= 0:
            return 0.0
        a, b, c = self.prefill
        u = num_tokens / REFERENCE_TOKENS
        return a + u * (b + c * u)

    def decode_ms(self, share: float) -> float:
        d, e, f = self.decode
        return d + share * (e + f * share)


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
    return checked(TimingCurve((a, b, c), (d, e, f)))


def fit_curve(batches: Iterable[EventBatch], reference_blocks: int) -> TimingCurve:
    """The curve of the workers whose load records these are. Raises SettingsError if they report
    too few iterations."""
    model = CostModel(REFERENCE_TOKENS)
    for batch in batches:
        for event in batch.events:
            for iteration in event.iterations if isinstance(event, Load) else ():
                model.observe(batch.worker, iteration, reference_blocks)
    if model.num_samples < MIN_SAMPLES:
        raise SettingsError(
            f"the load records have {model.num_samples} timings of iterations; "
            f"{MIN_SAMPLES} are needed to fit a curve"
        )
    a, b, c, d, e, f = model.coefficients
    return checked(TimingCurve((a, b, c), (d, e, f)))


def checked(curve: TimingCurve) -> TimingCurve:
    """Raises SettingsError for a curve by which work would take no time."""
    least_ms = min(
        *(curve.prefill_ms(num) for num in (1, REFERENCE_TOKENS // 2, REFERENCE_TOKENS)),
        *(curve.decode_ms(share) for share in (0.0, 0.5, 1.0)),
    )
    if least_ms <= 0.0:
        raise SettingsError(f"timing curve gives iterations of {least_ms:.3g} ms")
    return curve
