"""Stop strings: what is shown, what waits, and that pieces do not matter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.stop_strings import StopAutomaton, StopScanner


def scanner(*stops: str) -> StopScanner:
    return StopScanner([StopAutomaton(stop) for stop in stops])


def test_a_partial_match_waits_until_it_is_decided() -> None:
    scan = scanner("END")
    assert [scan.feed(text) for text in ("aE", "N", "x", "EN", "EN", "D", "more")] == (
        ["a", "", "ENx", "", "EN", "", ""]
    )
    assert scan.is_hit


def test_what_waits_at_the_end_is_shown() -> None:
    scan = scanner("END")
    assert (scan.feed("say EN"), scan.flush(), scan.flush()) == ("say ", "EN", "")
    assert not scan.is_hit


def test_the_stop_that_is_complete_first_wins_and_the_longest_of_those() -> None:
    assert scanner("cd", "bcde").feed("abcdef") == "ab"
    assert scanner("c", "bc", "abc").feed("xabcd") == "x"


def test_overlapping_starts_are_not_missed() -> None:
    scan = scanner("aab")
    assert "".join(map(scan.feed, "aaaab")) == "aa"
    assert scan.is_hit


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Text before the stop that is complete first; of several, before the longest."""
    for end in range(1, len(text) + 1):
        hits = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if hits:
            return text[: end - max(hits)], True
    return text, False


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
)
def test_pieces_do_not_matter(pieces: list[str], stops: list[str]) -> None:
    scan = scanner(*stops)
    shown = [scan.feed(piece) for piece in pieces]
    joined = "".join(pieces)
    for count in range(len(shown)):
        assert joined.startswith("".join(shown[: count + 1]))
    assert ("".join(shown) + scan.flush(), scan.is_hit) == naive(joined, stops)
