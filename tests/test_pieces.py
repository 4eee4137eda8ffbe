"""When the pieces of a long prompt lead nowhere."""

from __future__ import annotations

from controllers.pieces import MAX_VAIN_PIECES, Pieces


def test_pieces_that_get_on_may_be_many() -> None:
    pieces = Pieces()
    for end in range(1000, 50_000, 1000):
        pieces.ended(end)
    assert not pieces.is_whole
    assert pieces.num_ended == 49


def test_after_some_in_vain_the_rest_goes_out_whole() -> None:
    pieces = Pieces()
    pieces.ended(4000)
    for _ in range(MAX_VAIN_PIECES):
        assert not pieces.is_whole
        pieces.ended(4000)
    assert pieces.is_whole


def test_elsewhere_it_is_tried_anew() -> None:
    pieces = Pieces()
    for _ in range(1 + MAX_VAIN_PIECES):
        pieces.ended(4000)
    pieces.begin_again()
    assert not pieces.is_whole
    pieces.ended(2000)
    assert not pieces.is_whole
    assert pieces.num_ended == 4
