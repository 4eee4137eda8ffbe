"""A path -> ModelShape, whatever kind of model lies there. Reads files; fetches nothing."""

from __future__ import annotations

from pathlib import Path

from controllers.errors import ModelFileError
from controllers.model_shape import ModelShape
from serve_app.gguf_shape import read_gguf_shape
from serve_app.hf_shape import CONFIG, read_hf_shape


def read_shape(path: Path) -> ModelShape:
    """Of a GGUF file, a Hugging Face folder, a config.json, or a folder with one GGUF file.

    Raises ModelFileError, one line that names the file.
    """
    path = path.expanduser()
    if not path.exists():
        raise ModelFileError(
            f"{path} does not exist: a GGUF file or a folder with {CONFIG} is needed"
        )
    if path.is_file():
        return read_hf_shape(path) if path.suffix == ".json" else read_gguf_shape(path)
    if (path / CONFIG).exists():
        return read_hf_shape(path)
    return read_gguf_shape(_only_gguf(path))


def _only_gguf(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "neither"
        raise ModelFileError(f"{folder}: one GGUF file or {CONFIG} is needed, found {found}")
    return files[0]
