"""What the parts of the TensorRT-LLM executor need of the engine, without naming its classes.

`trtllm.py` implements it; everything else is written, and can be tested, against this.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from serve_app.executors.base import GenerateRequest
from serve_app.executors.trtllm_features import Features


class Handle(Protocol):
    """A request inside the engine: yields the same cumulative output for every response."""

    def __aiter__(self) -> AsyncIterator[Any]: ...

    def abort(self) -> None: ...

    def result(self) -> Any:
        """Waits for the end; for requests made outside an event loop."""
        ...


class EnginePort(Protocol):
    """Every call but `submit` and `salt_id` is made by one thread, and may block or hang."""

    @property
    def features(self) -> Features: ...

    def submit(self, request: GenerateRequest, index: int, num_resident_tokens: int) -> Handle:
        """Sequence `index` of a request, of whose prompt so much is believed to be cached when it
        starts; on the event loop. Raises errors of ours."""
        ...

    def submit_probe(
        self, token_ids: Sequence[int], retention_priority: int, duration_s: float
    ) -> Handle: ...

    def events(self) -> list[Mapping[str, Any] | None]:
        """What the cache did since the last call, without waiting. Destroys what it returns."""
        ...

    def stats(self) -> list[Mapping[str, Any] | None]:
        """One item for each iteration since the last call, without waiting."""
        ...

    def capacity(self) -> Mapping[str, Any]:
        """Empty where the version cannot say it."""
        ...

    def is_alive(self) -> bool: ...

    def salt_id(self, text: str) -> int | None:
        """The engine's number of a cache salt; None where the version does not give it away."""
        ...

    def shutdown(self) -> None: ...
