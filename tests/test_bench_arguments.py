"""What benchmarks say of wrong arguments."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.arguments import (
    existing_file,
    folder_with,
    new_file,
    positive_int,
    positive_ints,
    positive_number,
    program,
    shares,
)


def test_values_are_read() -> None:
    assert (positive_int("3"), positive_number("0.5")) == (3, 0.5)
    assert (positive_ints("2500,5000"), positive_ints("")) == ([2500, 5000], [])
    assert shares("0,0.1") == [0.0, 0.1]
    assert program(sys.executable) == Path(sys.executable)
    assert program("sh").name == "sh"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((positive_int, text) for text in ("0", "-5", "abc", "1.5", "")),
        *((positive_ints, text) for text in ("abc", "0", "-5", "5,", "5,x")),
        *((positive_number, text) for text in ("0", "-5", "nan", "inf", "x")),
        *((shares, text) for text in ("", "0,", "-0.1", "0,x", "nan", "inf")),
        (program, "/nope/python"),
        (existing_file, "/nope/model.gguf"),
        (new_file, "/nope/x/y.json"),
        (folder_with("x"), "/nope"),
    ],
)
def test_wrong_values_are_named(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        read(text)


def test_files_and_folders(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert new_file(str(path)) == path
    assert list(tmp_path.iterdir()) == []
    path.write_text("{}")
    assert (new_file(str(path)), existing_file(str(path))) == (path, path)
    assert folder_with("figures.json")(str(tmp_path)) == tmp_path
    with pytest.raises(ArgumentTypeError, match="is a folder"):
        new_file(str(tmp_path))
    with pytest.raises(ArgumentTypeError, match=r"has no a\.gz, b\.gz"):
        folder_with("a.gz", "figures.json", "b.gz")(str(tmp_path))
    with pytest.raises(ArgumentTypeError, match="there is no program"):
        program(str(path))  # not to be run
