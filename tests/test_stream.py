"""Chunks to text: decoding, stop strings, log probabilities, counting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.errors import RequestAborted
from serve_app.executors.base import TokenChunk, TokenLogprob
from serve_app.stop_strings import StopAutomaton
from serve_app.stream import NOTHING, Choice, Delta
from serve_app.tokenizer import ByteTokenizer, StreamDecoder

TOKENIZER = ByteTokenizer()
LOGPROB = TokenLogprob(-1.0)


def choice(*stops: str, has_logprobs: bool = False) -> Choice:
    automata = [StopAutomaton(stop) for stop in stops]
    return Choice(StreamDecoder(TOKENIZER), automata, has_logprobs)


def chunk(data: bytes | str, finish_reason: str | None = None) -> TokenChunk:
    ids = tuple(data.encode() if isinstance(data, str) else data)
    return TokenChunk(token_ids=ids, finish_reason=finish_reason, logprobs=(LOGPROB,) * len(ids))


def test_a_character_appears_when_it_is_whole() -> None:
    it = choice()
    data = "é🙂".encode()
    texts = [it.feed(chunk(bytes([byte]))).text for byte in data]
    assert texts == ["", "é", "", "", "", "🙂"]
    assert it.feed(chunk("", "length")) == Delta("", [], "length")
    assert it.num_tokens == 6


def test_half_a_character_at_the_end_becomes_a_replacement() -> None:
    assert choice().feed(chunk("é".encode()[:1], "length")) == Delta("�", [], "length")


def test_a_stop_string_ends_the_choice_and_is_not_shown() -> None:
    it = choice("END")
    assert it.feed(chunk("aEN")) == Delta("a", [], None)
    assert it.feed(chunk("Dxyz")) == Delta("", [], "stop")
    assert it.num_tokens == 4
    assert it.feed(chunk("more", "length")) == NOTHING
    assert (it.num_tokens, it.finish_reason) == (4, "stop")


def test_what_waited_for_a_stop_string_comes_with_the_end() -> None:
    it = choice("END")
    assert it.feed(chunk("EN")) == Delta("", [], None)
    assert it.feed(chunk("", "length")) == Delta("EN", [], "length")


def test_a_stop_string_in_the_flushed_rest_counts() -> None:
    assert choice("�").feed(chunk("é".encode()[:1], "length")) == Delta("", [], "stop")


def test_an_aborted_sequence_is_an_error() -> None:
    with pytest.raises(RequestAborted):
        choice().feed(chunk("a", "abort"))


def test_log_probabilities_come_with_their_text() -> None:
    it = choice("END", has_logprobs=True)
    first, second = it.feed(chunk("aE")), it.feed(chunk("x", "length"))
    assert [(t.token_id, t.start) for t in first.tokens] == [(ord("a"), 0)]
    assert [(t.token_id, t.start) for t in second.tokens] == [(ord("E"), 1), (ord("x"), 2)]


def test_log_probabilities_of_a_stop_string_are_not_shown() -> None:
    it = choice("END", has_logprobs=True)
    deltas = [it.feed(chunk(text)) for text in ("aE", "ND")]
    assert [t.token_id for delta in deltas for t in delta.tokens] == [ord("a")]


def test_every_token_has_its_log_probability_even_without_text() -> None:
    it = choice(has_logprobs=True)
    first, second = it.feed(chunk("é".encode()[:1])), it.feed(chunk("é".encode()[1:], "length"))
    assert first == Delta("", [], None)
    assert [(t.token_id, t.start) for t in second.tokens] == [(0xC3, 0), (0xA9, 0)]


@given(
    st.text("aé🙂EN", max_size=30),
    st.lists(st.integers(0, 60), max_size=8),
    st.sampled_from([(), ("EN",), ("é", "aa"), ("NEa", "🙂E")]),
    st.booleans(),
)
def test_how_tokens_come_in_chunks_does_not_matter(
    text: str, cuts: list[int], stops: tuple[str, ...], has_logprobs: bool
) -> None:
    data = text.encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in zip(bounds, bounds[1:], strict=False)] or [b""]
    parts = choice(*stops, has_logprobs=has_logprobs)
    deltas = [parts.feed(chunk(piece)) for piece in pieces[:-1]]
    deltas.append(parts.feed(chunk(pieces[-1], "length")))
    whole = choice(*stops, has_logprobs=has_logprobs)
    answer = whole.feed(chunk(data, "length"))
    assert "".join(delta.text for delta in deltas) == answer.text
    assert [token for delta in deltas for token in delta.tokens] == answer.tokens
    assert (parts.num_tokens, parts.finish_reason) == (whole.num_tokens, whole.finish_reason)
