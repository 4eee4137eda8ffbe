from __future__ import annotations

import pytest

from controllers.errors import EventError
from controllers.events import hex_of, hexes_of, ints_of


def test_hex_is_16_digits_of_the_unsigned_number():
    assert hex_of(0) == "0000000000000000"
    assert hex_of(0xABC) == "0000000000000abc"
    assert hex_of(2**64 - 1) == hex_of(-1) == "ffffffffffffffff"
    assert ints_of(hexes_of([0, 5, 2**64 - 1])) == [0, 5, 2**64 - 1]
    assert ints_of([]) == []


@pytest.mark.parametrize(
    "hexes",
    [
        ["xyz"],
        ["0" * 15],
        ["0" * 17],
        ["0" * 15, "0" * 17],
        ["0" * 15 + "g"],
        ["0" * 8 + " " + "0" * 7],
        ["0x" + "0" * 14],
        ["é" * 16],
        [""],
    ],
)
def test_anything_else_is_no_hash(hexes):
    with pytest.raises(EventError, match="block hash"):
        ints_of(hexes)
