"""How the vocabulary in a GGUF file becomes a tokenizer of the `tokenizers` library.

Owns: the two kinds of vocabulary (byte-level and SentencePiece BPE), how each cuts text, and which
bytes a token stands for. Does not know: files, chat, or what the tokens are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from controllers.errors import ModelFileError
from serve_app.engine.gguf import Metadata

CONTROL, USER_DEFINED, BYTE = 3, 4, 6
"""Token types of a GGUF vocabulary; the first two are matched in text as a whole."""
SPACE = "\u2581"
"""How a SentencePiece vocabulary writes a space."""
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def build_backend(metadata: Metadata, path: Path) -> Backend:
    """Raises ModelFileError naming `path` and the missing or unsupported part."""
    kind = metadata_value(metadata, path, "tokenizer.ggml.model")
    tokens = metadata_value(metadata, path, "tokenizer.ggml.tokens")
    types = metadata_value(metadata, path, "tokenizer.ggml.token_type")
    if kind == "gpt2":
        merges = metadata_value(metadata, path, "tokenizer.ggml.merges")
        backend = _byte_level(tokens, merges, metadata.get("tokenizer.ggml.pre", "default"), path)
    elif kind == "llama":
        scores = metadata_value(metadata, path, "tokenizer.ggml.scores")
        backend = _sentence_piece(tokens, scores, metadata, path)
    else:
        raise ModelFileError(f"{path}: tokenizer model {kind!r} is not one of gpt2, llama")
    _add_tokens(backend, tokens, types)
    return backend


def metadata_value(metadata: Metadata, path: Path, key: str) -> Any:
    if key not in metadata:
        raise ModelFileError(f"{path}: metadata key {key!r} is missing")
    return metadata[key]


def byte_level_bytes(backend: Backend) -> list[bytes]:
    """The bytes of each token of a byte-level vocabulary; an added token is its own text."""
    added = backend.get_added_tokens_decoder()
    char_to_byte = _byte_level_alphabet()
    return [
        added[i].content.encode() if i in added else _to_bytes(backend.id_to_token(i), char_to_byte)
        for i in range(backend.get_vocab_size(with_added_tokens=True))
    ]


def sentence_piece_bytes(tokens: Sequence[str], types: Sequence[int]) -> list[bytes]:
    """Likewise for a SentencePiece vocabulary, where `<0x0A>` of type BYTE is one byte."""
    return [
        bytes([int(token[3:5], 16)]) if kind == BYTE else token.replace(SPACE, " ").encode()
        for token, kind in zip(tokens, types, strict=True)
    ]


def _byte_level(tokens: Sequence[str], merges: Sequence[str], pre: str, path: Path) -> Backend:
    pre_tokenizer = _pre_tokenizer(pre)
    if pre_tokenizer is None:
        known = "smollm, llama-bpe, qwen2, gpt-2, default"
        raise ModelFileError(f"{path}: pre-tokenizer {pre!r} is not supported (only {known})")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = _bpe(tokens, pairs, path, ignore_merges=pre == "llama-bpe")
    backend.pre_tokenizer = pre_tokenizer
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _sentence_piece(
    tokens: Sequence[str], scores: Sequence[float], metadata: Metadata, path: Path
) -> Backend:
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    options = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    backend = _bpe(tokens, _merges_by_score(tokens, scores), path, **options)
    spaces: normalizers.Normalizer = normalizers.Replace(" ", SPACE)
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        spaces = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    backend.normalizer = spaces
    return backend


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece keeps no list of merges: two pieces merge if their union is a piece, best
    score first. Pieces of one score merge in the order of their ids."""
    ids = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        splits = ((token[:i], token[i:]) for i in range(1, len(token)))
        known = [(-score, ids[a], ids[b], a, b) for a, b in splits if a in ids and b in ids]
        merges += sorted(known)
    merges.sort(key=lambda merge: merge[0])
    return [(left, right) for _, _, _, left, right in merges]


def _bpe(
    tokens: Sequence[str], merges: list[tuple[str, str]], path: Path, **options: Any
) -> Backend:
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        return Backend(models.BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"{path}: the vocabulary is inconsistent: {error}") from error


def _pre_tokenizer(pre: str) -> Any:
    """The cut of text before merging that a GGUF name stands for; None if it is not known."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    bytes_only = pre_tokenizers.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    if pre in ("gpt-2", "default"):
        return byte_level
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level])
    pattern = {"llama-bpe": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN}.get(pre)
    if pattern is None:
        return None
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, bytes_only])


def _add_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    def of_kind(wanted: int) -> list[AddedToken]:
        pairs = zip(tokens, types, strict=True)
        return [
            AddedToken(t, special=wanted == CONTROL, normalized=False)
            for t, kind in pairs
            if kind == wanted
        ]

    backend.add_special_tokens(of_kind(CONTROL))
    backend.add_tokens(of_kind(USER_DEFINED))


def _to_bytes(token: str | None, char_to_byte: dict[str, int]) -> bytes:
    if token is None:
        return b""
    if any(char not in char_to_byte for char in token):
        return token.encode()
    return bytes(char_to_byte[char] for char in token)


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE writes printable Latin-1 bytes as themselves, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(hidden)})
    return alphabet
