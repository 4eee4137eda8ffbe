"""The names that clients may ask for: the model, and its LoRA adapters.

Does not know who asks or where anything runs.
"""

from __future__ import annotations

from controllers.errors import UnknownModel
from infra.settings import Settings
from serve_app.executors.base import ExecutorInfo
from serve_app.protocol import shown


class ServedModels:
    """An adapter is asked for by its name in `executor.trtllm.loras`."""

    def __init__(self, settings: Settings) -> None:
        self._name = settings.model.name
        executor = settings.executor
        self.adapters = tuple(executor.trtllm.loras) if executor.kind == "trtllm" else ()

    def base(self, info: ExecutorInfo) -> str:
        return self._name or info.model

    def names(self, info: ExecutorInfo) -> list[str]:
        return [self.base(info), *self.adapters]

    def adapter(self, asked: str | None, info: ExecutorInfo) -> str | None:
        """None is the model itself. Raises UnknownModel."""
        if asked is None or asked == self.base(info):
            return None
        if asked in self.adapters:
            return asked
        names = self.names(info)
        served = " or ".join(repr(name) for name in names)
        verb = "is" if len(names) == 1 else "are"
        raise UnknownModel("model", f"{shown(asked)} is not served here, {served} {verb}")
