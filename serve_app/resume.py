"""What a request has produced so far, and what is left of it when its worker fails in mid-stream.

Owns how a request goes on elsewhere: the tokens so far become the end of what is sent, marked as
resumed. Does not know workers, attempts or when to give up.
"""

from __future__ import annotations

import array

import msgspec

from controllers.blocks import as_token_array, block_hashes
from serve_app.executors.base import TokenChunk
from serve_app.fleet import Ask


class Progress:
    """Of one request over all its attempts."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._tokens = array.array("I")
        self._cached_tokens: int | None = None
        self.has_started = False

    @property
    def can_resume(self) -> bool:
        """Several sequences of one prompt share its first token only: they cannot go on as one."""
        return self._ask.request.sampling.n == 1

    def on_chunk(self, chunk: TokenChunk) -> TokenChunk:
        """The chunk as the client gets it: what was cached is what the first attempt found."""
        self.has_started = True
        self._tokens.extend(chunk.token_ids)
        if chunk.cached_tokens is None:
            return chunk
        self.on_piece_chunk(chunk)
        return msgspec.structs.replace(chunk, cached_tokens=self._cached_tokens)

    def on_piece_chunk(self, chunk: TokenChunk) -> None:
        """Of a piece: its token is nobody's, what it found cached is the request's."""
        if self._cached_tokens is None:
            self._cached_tokens = chunk.cached_tokens

    def rest(self, block_size: int) -> Ask:
        """The request that goes on behind the tokens so far."""
        request = self._ask.request
        token_ids = request.token_ids + as_token_array(self._tokens).tobytes()
        tokens = as_token_array(token_ids)
        return msgspec.structs.replace(
            self._ask,
            request=msgspec.structs.replace(
                request, token_ids=token_ids, num_resumed=len(self._tokens)
            ),
            hashes=block_hashes(tokens, block_size, request.salt),
            num_tokens=len(tokens),
        )
