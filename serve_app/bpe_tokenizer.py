"""BPE tokenizers, from the metadata of a GGUF file or a `tokenizer.json`.

Owns: what of a model's files says how to encode and which tokens are special.
Does not know: chat templates beyond carrying their source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers

from controllers.errors import ModelFileError
from serve_app.engine.gguf import Metadata, read_metadata
from serve_app.segments import Segments
from serve_app.vocabulary import (
    CONTROL,
    build_backend,
    byte_level_bytes,
    sentence_piece_bytes,
)

END_OF_REPLY = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")


class BpeTokenizer:
    """See `tokenizer.Tokenizer` for the contract."""

    def __init__(
        self,
        backend: Backend,
        id_to_bytes: list[bytes],
        *,
        special_ids: Iterable[int],
        eos_ids: Iterable[int],
        bos_id: int | None = None,
        chat_template: str | None = None,
        template_variables: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._plain = _without_added_tokens(backend)
        self._segments = Segments(
            _control_tokens(backend), lambda text: backend.encode(text, add_special_tokens=False)
        )
        self._id_to_bytes = id_to_bytes
        self.vocab_size = len(id_to_bytes)
        self.special_ids = frozenset(special_ids)
        self.eos_ids = tuple(eos_ids)
        self.bos_id = bos_id
        self.chat_template = chat_template
        self.template_variables = dict(template_variables or {})

    @classmethod
    def from_gguf(cls, path: Path) -> BpeTokenizer:
        """Raises ModelFileError naming the file and the unsupported or missing part."""
        return cls.from_metadata(read_metadata(path), path)

    @classmethod
    def from_metadata(cls, metadata: Metadata, path: Path) -> BpeTokenizer:
        backend = build_backend(metadata, path)
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        types: list[int] = metadata["tokenizer.ggml.token_type"]
        is_byte_level = metadata["tokenizer.ggml.model"] == "gpt2"
        bos, eos = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
        special = [i for i, kind in enumerate(types) if kind == CONTROL]
        ends = [i for i in (eos, metadata.get("tokenizer.ggml.eot_token_id")) if i is not None]
        return cls(
            backend,
            byte_level_bytes(backend) if is_byte_level else sentence_piece_bytes(tokens, types),
            special_ids=special,
            eos_ids=sorted({*ends, *(i for i in special if tokens[i] in END_OF_REPLY)}),
            bos_id=bos if metadata.get("tokenizer.ggml.add_bos_token", not is_byte_level) else None,
            chat_template=metadata.get("tokenizer.chat_template"),
            template_variables={
                "bos_token": "" if bos is None else tokens[bos],
                "eos_token": "" if eos is None else tokens[eos],
            },
        )

    @classmethod
    def from_directory(cls, directory: Path) -> BpeTokenizer:
        """A Hugging Face directory: `tokenizer.json` and, if present, `tokenizer_config.json`."""
        backend = _load_backend(directory / "tokenizer.json")
        config = _load_json(directory / "tokenizer_config.json")
        added = backend.get_added_tokens_decoder()
        special = {i: token.content for i, token in added.items() if token.special}
        bos, eos = (_token_text(config.get(name)) for name in ("bos_token", "eos_token"))
        ends = {eos, *END_OF_REPLY}
        template = config.get("chat_template") or _load_text(directory / "chat_template.jinja")
        return cls(
            backend,
            byte_level_bytes(backend),
            special_ids=special,
            eos_ids=sorted(i for i, text in special.items() if text in ends),
            bos_id=backend.token_to_id(bos) if bos and config.get("add_bos_token") else None,
            chat_template=template,
            template_variables={"bos_token": bos, "eos_token": eos},
        )

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        backend = self._backend if parse_special else self._plain
        return list(backend.encode(text, add_special_tokens=False).ids)

    def encode_with_counts(
        self, text: str, positions: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        return self._segments.encode(text, positions)

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id} is not in 0..{self.vocab_size - 1}")
        return self._id_to_bytes[token_id]

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        skipped = self.special_ids if skip_special else frozenset()
        kept = [self.token_bytes(i) for i in token_ids if i not in skipped]
        return b"".join(kept).decode("utf-8", errors="replace")


def _control_tokens(backend: Backend) -> dict[str, int]:
    """Added tokens, if text never reaches across them: then a text can be encoded in pieces."""
    added = backend.get_added_tokens_decoder()
    is_apart = isinstance(
        backend.pre_tokenizer, (pre_tokenizers.Sequence, pre_tokenizers.ByteLevel)
    )
    plain = backend.normalizer is None and isinstance(backend.decoder, decoders.ByteLevel)
    strict = not any(t.lstrip or t.rstrip or t.single_word for t in added.values())
    return {t.content: i for i, t in added.items()} if is_apart and plain and strict else {}


def _without_added_tokens(backend: Backend) -> Backend:
    """Shares the model; control tokens in a text are read as the characters they are."""
    plain = Backend(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    return plain


def _load_backend(path: Path) -> Backend:
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"{path}: not a tokenizer file: {error}") from error
    if not isinstance(backend.decoder, decoders.ByteLevel):
        kind = type(backend.decoder).__name__
        raise ModelFileError(f"{path}: decoder {kind} is not supported (only ByteLevel)")
    return backend


def _load_text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


def _load_json(path: Path) -> dict[str, Any]:
    text = _load_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: not a JSON object")
    return value


def _token_text(value: Any) -> str:
    """`tokenizer_config.json` writes a token as text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
