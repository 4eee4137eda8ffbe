"""A request that goes on behind the tokens of an attempt that failed."""

from __future__ import annotations

import numpy as np

from controllers.blocks import block_hashes
from serve_app.executors.base import TokenChunk
from serve_app.resume import Progress
from tests.routing_rig import BLOCK_SIZE, ask

PROMPT = list(range(100, 110))


def test_what_is_left_is_the_prompt_and_the_tokens_so_far() -> None:
    progress = Progress(ask("q", PROMPT))
    assert (progress.has_started, progress.can_resume) == (False, True)
    progress.on_chunk(TokenChunk(token_ids=(1, 2), cached_tokens=4))
    progress.on_chunk(TokenChunk(token_ids=(3,)))
    rest = progress.rest(BLOCK_SIZE)
    everything = np.array([*PROMPT, 1, 2, 3], np.uint32)
    assert progress.has_started
    assert rest.request.token_ids == everything.tobytes()
    assert (rest.request.num_resumed, rest.num_tokens) == (3, 13)
    assert rest.request.sampling == ask("q", PROMPT).request.sampling
    assert rest.hashes == block_hashes(everything, BLOCK_SIZE)
    progress.on_chunk(TokenChunk(token_ids=(4,)))
    assert progress.rest(BLOCK_SIZE).request.num_resumed == 4


def test_a_client_hears_what_was_cached_when_its_request_began() -> None:
    progress = Progress(ask("q", PROMPT))
    chunks = [
        TokenChunk(token_ids=(1,), cached_tokens=8),
        TokenChunk(token_ids=(2,), cached_tokens=0),
        TokenChunk(finish_reason="stop", cached_tokens=0),
    ]
    assert [progress.on_chunk(chunk).cached_tokens for chunk in chunks] == [8, 8, 8]


def test_several_sequences_cannot_go_on_as_one() -> None:
    assert not Progress(ask("q", PROMPT, n=2)).can_resume
