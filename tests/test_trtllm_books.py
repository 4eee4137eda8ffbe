"""What is counted on this side of a TensorRT-LLM engine."""

from __future__ import annotations

import pytest

from serve_app.executors.base import GenerateRequest, SamplingParams
from serve_app.executors.trtllm_books import Books, EngineSequence, Figures


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def books(clock: Clock) -> Books:
    return Books(max_running=2, block_size=8, clock=clock)


def sequence(books: Books, num_prompt: int, dp_rank: int = 0, index: int = 0) -> EngineSequence:
    request = GenerateRequest(
        request_id="a", token_ids=b"", sampling=SamplingParams(max_tokens=1), dp_rank=dp_rank
    )
    return EngineSequence(
        request=request,
        index=index,
        num_prompt_tokens=num_prompt,
        num_uncached=num_prompt - 8,
        hashes=[],
        submitted_at=books.clock(),
    )


def test_the_life_of_a_sequence(books: Books, clock: Clock) -> None:
    seq = sequence(books, 20)
    books.add(seq)
    assert books.figures(0) == Figures(1, 0, 12, 0, 3)
    assert books.first_response(seq, num_cached_tokens=16) == 0.0
    seq.num_generated = 5
    assert books.figures(0) == Figures(1, 0, 0, 25, 4)
    assert (books.hit_tokens(0), books.prompt_tokens(0)) == (16, 20)
    books.remove(seq)
    books.remove(seq)
    assert books.figures(0) == Figures(0, 0, 0, 0, 0)
    assert (books.hit_tokens(0), books.prompt_tokens(0)) == (16, 20)


def test_more_than_the_engine_has_places_for(books: Books, clock: Clock) -> None:
    first, second, third = (sequence(books, 20) for _ in range(3))
    for seq in (first, second, third):
        books.add(seq)
    assert books.figures(0) == Figures(2, 1, 36, 0, 6)
    clock.now += 0.25
    books.remove(second)
    clock.now += 0.5
    assert books.first_response(third, 0) == 250.0
    assert books.figures(0) == Figures(2, 0, 12, 20, 6)


def test_ranks_have_places_of_their_own(books: Books) -> None:
    for dp_rank in (0, 0, 0, 1):
        books.add(sequence(books, 20, dp_rank))
    assert books.figures(0)[:2] == (2, 1)
    assert books.figures(1)[:2] == (1, 0)


def test_siblings_do_not_count_the_prompt_again(books: Books) -> None:
    for index in (0, 1):
        seq = sequence(books, 20, index=index)
        books.add(seq)
        books.first_response(seq, num_cached_tokens=index * 19)
    assert (books.hit_tokens(0), books.prompt_tokens(0)) == (0, 20)


def test_what_live_sequences_have_in_common_with_a_prompt(books: Books) -> None:
    hashes = list(range(100, 140))
    assert books.num_shared(hashes, 0) == 0
    seqs = [sequence(books, 20, dp_rank) for dp_rank in (0, 0, 1)]
    for seq, num_common in zip(seqs, (3, 17, 40), strict=True):
        seq.hashes = [*hashes[:num_common], 1, 2, 3]
        books.add(seq)
    assert books.num_shared(hashes, 0) == 17
    assert books.num_shared(hashes, 1) == 40
    assert books.num_shared(hashes[:5], 0) == 5
    assert books.num_shared([7, *hashes], 0) == 0
    assert books.num_shared([], 0) == 0
    books.remove(seqs[1])
    assert books.num_shared(hashes, 0) == 3


def test_silence(books: Books, clock: Clock) -> None:
    clock.now += 1000
    assert books.silence_s() == 0.0  # nothing to do
    seq = sequence(books, 20)
    books.add(seq)
    assert books.silence_s() == 0.0  # only just asked
    clock.now += 7
    assert books.silence_s() == 7.0
    books.sign_of_life()
    clock.now += 2
    assert books.silence_s() == 2.0
    books.remove(seq)
    assert books.silence_s() == 0.0
