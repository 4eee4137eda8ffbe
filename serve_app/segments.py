"""Encodes a text piece by piece between control tokens, and remembers the pieces.

A chat's next turn repeats everything before it; with a template that frames messages in control
tokens only the new message has to be encoded. Exact, because a byte-level tokenizer never joins
text across a control token. Knows no template and no vocabulary.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from tokenizers import Encoding

MAX_CHARS = 8_000_000  # of remembered pieces; ids take about 10 bytes a token
MIN_CHARS = 16  # a shorter piece is quicker to encode than to look up

Encode = Callable[[str], Encoding]


class Segments:
    """`control` maps the text of each control token to its id; empty: a text is one piece.

    May be used from several threads.
    """

    def __init__(self, control: Mapping[str, int], encode: Encode) -> None:
        longest_first = sorted(control, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        self._split = re.compile(f"({pattern})").split if pattern else _whole
        self._control = dict(control)
        self._encode = encode
        self._lock = threading.Lock()
        self._text_to_ids: OrderedDict[str, list[int]] = OrderedDict()
        self._num_chars = 0

    def encode(self, text: str, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """See `tokenizer.Tokenizer.encode_with_counts`."""
        ids: list[int] = []
        counts = [0] * len(positions)
        start = 0
        for piece in self._split(text):
            end = start + len(piece)
            num_before = len(ids)
            ids += self._ids_of(piece)
            for i, position in enumerate(positions):
                if start < position < end:
                    counts[i] = num_before + self._tokens_before(piece, position - start)
                elif position >= end:
                    counts[i] = len(ids)
            start = end
        return ids, counts

    def _ids_of(self, piece: str) -> list[int]:
        control = self._control.get(piece)
        if control is not None:
            return [control]
        if len(piece) < MIN_CHARS:
            return list(self._encode(piece).ids) if piece else []
        with self._lock:
            known = self._text_to_ids.get(piece)
            if known is not None:
                self._text_to_ids.move_to_end(piece)
                return known
        ids = list(self._encode(piece).ids)
        with self._lock:
            self._remember(piece, ids)
        return ids

    def _remember(self, piece: str, ids: list[int]) -> None:
        if piece not in self._text_to_ids:
            self._num_chars += len(piece)
        self._text_to_ids[piece] = ids
        while self._num_chars > MAX_CHARS:
            old, _ = self._text_to_ids.popitem(last=False)
            self._num_chars -= len(old)

    def _tokens_before(self, piece: str, position: int) -> int:
        """Tokens of the piece that end at `position` or before."""
        if piece in self._control:
            return 0
        encoding = self._encode(piece)
        for char in range(position, len(piece)):  # a character that was dropped has no token
            token: int | None = encoding.char_to_token(char)
            if token is not None:
                return token
        return len(encoding)


def _whole(text: str) -> list[str]:
    return [text]
