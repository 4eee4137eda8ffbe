"""Types of arguments of benchmarks: what is wrong is said before anything is started."""

from __future__ import annotations

import math
import shutil
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path


def positive_int(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def positive_ints(text: str) -> list[int]:
    """Comma separated; none in an empty text."""
    return [positive_int(part) for part in text.split(",")] if text else []


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def shares(text: str) -> list[float]:
    """Comma separated numbers, 0 and more."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(0.0 <= number < math.inf for number in numbers):
        raise ArgumentTypeError(f"{text!r} has a part that is not a number, 0 or above")
    return numbers


def existing_file(text: str) -> Path:
    if not Path(text).is_file():
        raise ArgumentTypeError(f"there is no file {text}")
    return Path(text)


def new_file(text: str) -> Path:
    """To be written, perhaps again: its folder is there."""
    path = Path(text)
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder")
    return path


def program(text: str) -> Path:
    """To be run: a path, or a name to look for as a shell would."""
    found = shutil.which(text)
    if found is None:
        raise ArgumentTypeError(f"there is no program {text}")
    return Path(found)


def folder_with(*names: str) -> Callable[[str], Path]:
    """The type of a folder that has all of these."""

    def folder(text: str) -> Path:
        lacking = [name for name in names if not Path(text, name).exists()]
        if lacking:
            raise ArgumentTypeError(f"{text} has no {', '.join(lacking)}")
        return Path(text)

    return folder
