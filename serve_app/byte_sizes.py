"""Sizes as people write them (80GiB, 80GB, 85899345920) <-> bytes."""

from __future__ import annotations

import re

from controllers.errors import SettingsError

UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    UNITS |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_SIZE = re.compile(r"\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")


def parse_size(text: str, name: str) -> int:
    """Bytes. `name` is what the error calls it. Raises SettingsError; 0 is a size."""
    found = _SIZE.fullmatch(text)
    unit = UNITS.get(found["unit"].lower()) if found else None
    if found is None or unit is None:
        raise SettingsError(f"{name}: {text!r} is not a size; write 80GiB, 80GB or plain bytes")
    return round(float(found["number"]) * unit)


def format_size(num_bytes: int) -> str:
    """With the binary unit that keeps it readable; exact below 1 KiB."""
    value, unit = float(num_bytes), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {unit}"
