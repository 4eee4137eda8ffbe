"""Token ids to text and back, without saying which tokenizer library or model is behind it.

Owns: the interface every tokenizer here has, incremental decoding, and a tokenizer without a model.
Does not know: chat templates, blocks, or how a vocabulary is built.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from serve_app.bpe_tokenizer import BpeTokenizer


class Tokenizer(Protocol):
    """Safe to use from several threads; nothing in it changes after it is made."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens; they have no text of their own in a reply."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The token a plain prompt must begin with, or None if the model wants none."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Jinja source that came with the model."""
        ...

    @property
    def template_variables(self) -> dict[str, str]:
        """`bos_token` and `eos_token` as text, for the chat template."""
        ...

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Ids of `text`, nothing added; `parse_special` False: control tokens are plain text."""
        ...

    def encode_with_counts(
        self, text: str, positions: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Ids with control tokens read, and for each position in `text` (characters) how many
        tokens end at it or before."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of the token, perhaps a part of a character. ValueError for an unknown id."""
        ...

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of a sequence; bytes that are not UTF-8 become U+FFFD.

        The inverse of `encode`, but for a space that some vocabularies put before every text.
        """
        ...


class StreamDecoder:
    """Text of one reply, token by token.

    What `push` and `flush` return, joined, equals `decode` of all the ids. A character split over
    tokens appears when its last byte is there, never as U+FFFD before.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        token_bytes = self._tokenizer.token_bytes
        kept = (token_bytes(token_id) for token_id in token_ids if token_id not in self._skipped)
        return self._utf8.decode(b"".join(kept))

    def flush(self) -> str:
        """What is left at the end: U+FFFD if the reply stops inside a character."""
        return self._utf8.decode(b"", final=True)


def load_tokenizer(path: Path) -> Tokenizer:
    """From a GGUF file or a directory with `tokenizer.json`. Raises ModelFileError."""
    if path.is_dir():
        return BpeTokenizer.from_directory(path)
    return BpeTokenizer.from_gguf(path)


class ByteTokenizer:
    """One token per UTF-8 byte and three control tokens: chats without a model file."""

    SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    _SPECIAL_PATTERN = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")
    _TEMPLATE = (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )

    def __init__(self) -> None:
        self.vocab_size = 256 + len(self.SPECIAL_TOKENS)
        self.special_ids = frozenset(range(256, self.vocab_size))
        self.eos_ids = (257, 258)
        self.bos_id: int | None = None
        self.chat_template: str | None = self._TEMPLATE
        self.template_variables = {"bos_token": "", "eos_token": self.SPECIAL_TOKENS[1]}
        self._id_to_bytes = [bytes([i]) for i in range(256)]
        self._id_to_bytes += [token.encode() for token in self.SPECIAL_TOKENS]

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        if not parse_special:
            return list(text.encode("utf-8", "replace"))
        return self.encode_with_counts(text, ())[0]

    def encode_with_counts(
        self, text: str, positions: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        counts = dict.fromkeys(positions, 0)
        position = 0
        for index, piece in enumerate(self._SPECIAL_PATTERN.split(text)):
            end = position + len(piece)
            for wanted in counts:
                if position <= wanted < end:
                    before = "" if index % 2 else piece[: wanted - position]
                    counts[wanted] = len(ids) + len(before.encode("utf-8", "replace"))
            if index % 2:
                ids.append(256 + self.SPECIAL_TOKENS.index(piece))
            else:
                ids += piece.encode("utf-8", "replace")
            position = end
        return ids, [len(ids) if at >= position else counts[at] for at in positions]

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id} is not in 0..{self.vocab_size - 1}")
        return self._id_to_bytes[token_id]

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        decoder = StreamDecoder(self, skip_special=skip_special)
        return decoder.push(token_ids) + decoder.flush()
