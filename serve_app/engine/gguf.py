"""Reads GGUF model files (version 3, little-endian): metadata and tensors as float32.

Owns: the file format and the dequantisation of F32, F16, BF16, Q4_0, Q4_1 and Q8_0 tensors; the
shapes alone are read whatever the encoding.
Does not know: what the metadata means or how a model uses the tensors.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controllers.errors import ModelFileError
from serve_app.engine.quants import QUANT_FORMATS, QuantFormat

MAGIC = b"GGUF"
VERSION = 3
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
STRING, ARRAY, BOOL = 8, 9, 7
SCALAR_FORMATS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    BOOL: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}

Metadata = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major: (rows, columns) of a weight matrix."""

    name: str
    shape: tuple[int, ...]
    quant: QuantFormat
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) // self.quant.block_len * self.quant.block_bytes


class GgufFile:
    """An open GGUF file; use it as a context manager, the map is closed at the end.

    `metadata` maps keys to Python values (numbers, bools, strings, lists); `tensors` maps names
    to where they lie. Raises ModelFileError, which names the file, for whatever is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _open_map(path)
        try:
            reader = _Reader(self._map, path)
            self.metadata, self.tensors = _read_header(reader)
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._map.close()

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The tensor as a new float32 array that outlives the file."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: tensor {name!r} is missing")
        raw = np.frombuffer(self._map[info.offset : info.offset + info.num_bytes], np.uint8)
        blocks = raw.reshape(-1, info.quant.block_bytes)
        return info.quant.dequantize(blocks).reshape(info.shape)


def read_metadata(path: Path) -> Metadata:
    """Only the metadata of a file."""
    with GgufFile(path) as file:
        return file.metadata


@dataclass(frozen=True, slots=True)
class GgufShapes:
    """`num_data_bytes`: from the first tensor to the end of the file."""

    metadata: Metadata
    shapes: dict[str, tuple[int, ...]]
    num_data_bytes: int


def read_shapes(path: Path) -> GgufShapes:
    """Metadata and tensor shapes, also of a file with encodings that cannot be read here."""
    with _open_map(path) as data:
        reader = _Reader(data, path)
        metadata, entries, data_start = _read_directory(reader)
        shapes = {entry.name: entry.shape for entry in entries}
        return GgufShapes(metadata, shapes, max(0, len(data) - data_start))


class _Reader:
    """A cursor over the mapped file that turns every overrun into one clear error."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = 0

    def fail(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {message}")

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise self.fail(f"file is truncated: {end} bytes needed, {len(self.data)} present")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def scalar(self, kind: int) -> Any:
        code = SCALAR_FORMATS.get(kind)
        if code is None:
            raise self.fail(f"metadata value type {kind} is not defined")
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def u32(self) -> int:
        return int(self.scalar(4))

    def u64(self) -> int:
        return int(self.scalar(10))

    def string(self) -> str:
        return self.take(self.u64()).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.u32(), self.u64())
        return self.scalar(kind)

    def array(self, kind: int, count: int) -> list[Any]:
        code = SCALAR_FORMATS.get(kind)
        if code is None:
            return [self.value(kind) for _ in range(count)]
        piece = self.take(count * struct.calcsize(code))
        return list(np.frombuffer(piece, np.dtype(code)).tolist())


def _open_map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelFileError(f"{path}: file is empty") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the directory. `kind` numbers the encoding, `offset` counts from the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _read_header(reader: _Reader) -> tuple[Metadata, dict[str, TensorInfo]]:
    metadata, entries, data_start = _read_directory(reader)
    return metadata, {entry.name: _placed(entry, data_start, reader) for entry in entries}


def _read_directory(reader: _Reader) -> tuple[Metadata, list[_Entry], int]:
    """(metadata, tensors in order, where the data starts)."""
    magic = reader.take(len(MAGIC))
    if magic != MAGIC:
        raise reader.fail(f"not a GGUF file (starts with {magic!r})")
    version = reader.u32()
    if version != VERSION:
        raise reader.fail(f"GGUF version {version} is not supported (only {VERSION})")
    num_tensors, num_keys = reader.u64(), reader.u64()
    metadata = {reader.string(): reader.value(reader.u32()) for _ in range(num_keys)}
    entries = [_read_entry(reader) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise reader.fail(f"metadata key 'general.alignment' is {alignment!r}")
    return metadata, entries, -(-reader.position // alignment) * alignment


def _read_entry(reader: _Reader) -> _Entry:
    name = reader.string()
    num_dims = reader.u32()
    if num_dims > MAX_DIMS:
        raise reader.fail(f"tensor {name!r} has {num_dims} dimensions")
    shape = tuple(reader.u64() for _ in range(num_dims))[::-1]
    return _Entry(name, shape, reader.u32(), reader.u64())


def _placed(entry: _Entry, data_start: int, reader: _Reader) -> TensorInfo:
    name, shape = entry.name, entry.shape
    quant = QUANT_FORMATS.get(entry.kind)
    if quant is None:
        known = ", ".join(q.name for q in QUANT_FORMATS.values())
        raise reader.fail(f"tensor {name!r} has type {entry.kind}, which is not one of {known}")
    if shape and shape[-1] % quant.block_len:
        raise reader.fail(f"tensor {name!r}: {shape[-1]} columns do not fill {quant.name} blocks")
    placed = TensorInfo(name, shape, quant, data_start + entry.offset)
    if placed.offset + placed.num_bytes > len(reader.data):
        raise reader.fail(f"file is truncated: tensor {name!r} ends after the file")
    return placed
