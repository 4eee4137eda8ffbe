from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers

from serve_app import segments
from serve_app.segments import Segments

CONTROL = {"<|a|>": 300, "<|ab|>": 301}


def backend() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    vocab |= {"he": 260, "ll": 261, "hell": 262, "Ġw": 263}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Counting:
    """The backend's encode; remembers what it was asked."""

    def __init__(self) -> None:
        self.backend = backend()
        self.texts: list[str] = []

    def __call__(self, text: str) -> Encoding:
        self.texts.append(text)
        return self.backend.encode(text, add_special_tokens=False)


def pieces_of(text: str) -> Iterator[tuple[str, int | None]]:
    """The plain way: look for the longest control token at every character."""
    plain = ""
    while text:
        found = [c for c in sorted(CONTROL, key=len, reverse=True) if text.startswith(c)]
        if not found:
            plain, text = plain + text[0], text[1:]
            continue
        yield plain, None
        yield found[0], CONTROL[found[0]]
        plain, text = "", text[len(found[0]) :]
    yield plain, None


@given(st.lists(st.sampled_from(["hello world", "<|a|>", "<|ab|>", "<|", "é", " w", ""])))
def test_ids_and_counts_are_those_of_the_plain_way(parts: list[str]) -> None:
    text = "".join(parts)
    encode = Counting()
    ids: list[int] = []
    ends: list[int] = []
    start = 0
    for piece, control in pieces_of(text):
        if control is not None:
            ids.append(control)
            ends.append(start + len(piece))
        else:
            encoding = encode(piece)
            ids += encoding.ids
            ends += [start + end for _, end in encoding.offsets]
        start += len(piece)
    positions = range(len(text) + 1)
    expected = [sum(end <= position for end in ends) for position in positions]
    assert Segments(CONTROL, encode).encode(text, positions) == (ids, expected)


def test_a_repeated_piece_is_encoded_once() -> None:
    encode = Counting()
    segmented = Segments(CONTROL, encode)
    first = "<|a|>hello world, hello world<|a|>"
    once, _ = segmented.encode(first, [])
    assert encode.texts == ["hello world, hello world"]
    again, counts = segmented.encode(first + "and one more sentence", [len(first)])
    assert encode.texts == ["hello world, hello world", "and one more sentence"]
    assert (again[: len(once)], counts) == (once, [len(once)])


def test_what_was_not_used_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_CHARS", 50)
    encode = Counting()
    segmented = Segments({}, encode)
    a, b, c = ("hello world hello " + name for name in "abc")
    for text in (a, b, a, c, a, b):
        segmented.encode(text, [])
    assert encode.texts == [a, b, c, b]
