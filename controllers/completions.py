"""What finished requests were like: output tokens, and time from the first token to the end."""

from __future__ import annotations

START_OUTPUT_TOKENS = 256.0
START_HELD_MS = 2_000.0
NUM_REMEMBERED = 200
MIN_OF_TYPE = 8  # with fewer completions of a request type the mean of all is the better guess


class RunningMean:
    """Over about the last 200 values; the start value weighs as one."""

    def __init__(self, start: float) -> None:
        self.value = start
        self.num_values = 0

    def add(self, value: float) -> None:
        self.num_values += 1
        self.value += (value - self.value) / min(self.num_values + 1, NUM_REMEMBERED)


class Completions:
    """Running means over all requests, and output tokens by request type."""

    def __init__(self) -> None:
        self._output_tokens = RunningMean(START_OUTPUT_TOKENS)
        self._held_ms = RunningMean(START_HELD_MS)
        self._by_type: dict[str, RunningMean] = {}

    @property
    def output_tokens(self) -> float:
        return self._output_tokens.value

    @property
    def held_ms(self) -> float:
        return self._held_ms.value

    def expected_tokens(self, request_type: str) -> float:
        """Of the next request of this type."""
        own = self._by_type.get(request_type)
        return self.output_tokens if own is None or own.num_values < MIN_OF_TYPE else own.value

    def add(self, request_type: str, output_tokens: int, held_ms: float) -> None:
        self._output_tokens.add(output_tokens)
        self._held_ms.add(max(0.0, held_ms))
        start = RunningMean(self.output_tokens)
        self._by_type.setdefault(request_type, start).add(output_tokens)
