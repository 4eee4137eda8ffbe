"""Look-ups in a model's metadata that name file and key when a value is missing or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controllers.errors import ModelFileError

MOST_LAYERS = 10_000


class ConfigKeys:
    """`prefix` goes before every key, as `llama.` in GGUF metadata. null counts as missing."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self.prefix = prefix

    def fail(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {message}")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer. Raises ModelFileError if it is missing without a default."""
        value = self.get(key, default)
        if value is None:
            raise self.fail(f"{self.prefix}{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(f"{self.prefix}{key} is {value!r}, not a positive integer")
        return value

    def num_layers(self, key: str) -> int:
        """A count that lists are made of; a damaged one must not fill the memory."""
        value = self.count(key)
        if value > MOST_LAYERS:
            raise self.fail(f"{self.prefix}{key} is {value}, more than {MOST_LAYERS}")
        return value

    def amount(self, key: str) -> int:
        """As count, but 0 and a missing key are 0."""
        return self.count(key) if self.get(key, 0) != 0 else 0

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(f"{self.prefix}{key} is {value!r}, not true or false")
        return value

    def word(self, key: str) -> str:
        """Any value as text, "" if it is missing."""
        return str(self.get(key, ""))

    def items(self, key: str) -> list[Any]:
        """A list, empty if it is missing."""
        value = self.get(key, [])
        if not isinstance(value, list):
            raise self.fail(f"{self.prefix}{key} is {value!r}, not a list")
        return value

    def per_layer(self, key: str, num_layers: int, default: int | None = None) -> list[int]:
        """One positive integer for each layer; a single one stands for all."""
        value = self.get(key, default)
        if not isinstance(value, list):
            return [self.count(key, default)] * num_layers
        if len(value) != num_layers:
            raise self.fail(f"{self.prefix}{key} has {len(value)} values for {num_layers} layers")
        if not all(isinstance(item, int) and item >= 1 for item in value):
            raise self.fail(f"{self.prefix}{key} is {value!r}, not positive integers")
        return value
