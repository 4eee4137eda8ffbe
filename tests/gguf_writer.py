"""Writes small GGUF files for tests: metadata of any kind, tensors from raw bytes or float32."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 32
F32 = 0


@dataclass
class RawTensor:
    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes


@dataclass
class GgufWriter:
    version: int = 3
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[RawTensor] = field(default_factory=list)

    def add_float32(self, name: str, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values, "<f4").tobytes()
        self.tensors.append(RawTensor(name, values.shape, F32, data))

    def add_raw(self, name: str, shape: tuple[int, ...], kind: int, data: bytes) -> None:
        self.tensors.append(RawTensor(name, shape, kind, data))

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path

    def to_bytes(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata))
        for key, value in self.metadata.items():
            head += _string(key) + _typed(value)
        body = b""
        for tensor in self.tensors:
            head += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
            head += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
            head += struct.pack("<IQ", tensor.kind, len(body))
            body += _padded(tensor.data)
        return _padded(head) + body


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: Any) -> bytes:
    kind, data = _encoded(value)
    return struct.pack("<I", kind) + data


def _encoded(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return (4, struct.pack("<I", value)) if value >= 0 else (5, struct.pack("<i", value))
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    items = [_encoded(item) for item in value]
    kind = items[0][0]
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)
