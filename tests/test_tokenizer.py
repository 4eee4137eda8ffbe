from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controllers.errors import ModelFileError
from serve_app.bpe_tokenizer import BpeTokenizer
from serve_app.tokenizer import ByteTokenizer, StreamDecoder, Tokenizer, load_tokenizer
from tests.gguf_writer import GgufWriter

DATA = Path(__file__).parent / "data"
TEXTS = [
    "",
    "Hello, world!",
    "  two  spaces\tand\n\n lines ",
    "naïve café – 日本語のテキスト 😀👩‍👩‍👧",
    "In 2024, 17+25=42 and x1234 ٣٤",
    "<|im_start|>user\nhi<|im_end|>\n",
]
HIDDEN_BYTES = [b for b in range(256) if not (33 <= b < 127 or 161 <= b < 173 or b >= 174)]


def alphabet() -> list[str]:
    """The characters byte-level BPE writes the bytes 0-255 with."""
    return [chr(256 + HIDDEN_BYTES.index(b)) if b in HIDDEN_BYTES else chr(b) for b in range(256)]


MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "12 3"]
PIECES = [merge.replace(" ", "") for merge in MERGES]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet(), *PIECES, "<tool>"]
TYPES = [3, 3, 3, *[1] * 256, *[1] * len(PIECES), 4]


def metadata(**changes: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }
    keys.update({f"tokenizer.ggml.{name}": value for name, value in changes.items()})
    return {key: value for key, value in keys.items() if value is not None}


def make(**changes: Any) -> BpeTokenizer:
    return BpeTokenizer.from_metadata(metadata(**changes), Path("m.gguf"))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text)
    return [tokenizer.decode([i], skip_special=False) for i in ids]


def test_a_gguf_file_carries_all_of_it(tmp_path: Path) -> None:
    path = GgufWriter(metadata=metadata()).write(tmp_path / "m.gguf")
    tokenizer = load_tokenizer(path)
    assert tokenizer.vocab_size == len(TOKENS)
    assert tokenizer.eos_ids == (0, 2)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.bos_id is None
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.template_variables == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_bos_and_end_tokens_follow_the_metadata() -> None:
    tokenizer = make(add_bos_token=True, eos_token_id=5, eot_token_id=6)
    assert tokenizer.bos_id == 1
    assert tokenizer.eos_ids == (0, 2, 5, 6)


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["hello", " hello", " ", "1", "2", "3", "4"]),
        ("gpt-2", ["hello", " hello", " ", "123", "4"]),
        ("default", ["hello", " hello", " ", "123", "4"]),
        ("llama-bpe", ["hello", " hello", " ", "123", "4"]),
        ("qwen2", ["hello", " hello", " ", "1", "2", "3", "4"]),
    ],
)
def test_text_is_cut_as_the_pre_tokenizer_says(pre: str, expected: list[str]) -> None:
    assert pieces(make(pre=pre), "hello hello 1234") == expected


def test_llama_bpe_cuts_numbers_by_three_and_qwen2_composes() -> None:
    assert pieces(make(pre="llama-bpe"), "4123") == ["4", "12", "3"]
    assert make(pre="qwen2").encode("e\u0301") == make(pre="qwen2").encode("\u00e9")


def test_control_tokens_are_read_only_when_asked_for() -> None:
    tokenizer = make()
    text = "<|im_start|>hello<tool>"
    assert tokenizer.encode(text) == [1, TOKENS.index("hello"), TOKENS.index("<tool>")]
    plain = tokenizer.encode(text, parse_special=False)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.decode(plain) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("tokenizer", [make(), ByteTokenizer()], ids=["bpe", "bytes"])
def test_round_trip_stream_and_counts(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == text
    positions = range(len(text) + 1)
    with_counts, counts = tokenizer.encode_with_counts(text, positions)
    assert with_counts == ids
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(ids))
    decoder = StreamDecoder(tokenizer, skip_special=False)
    streamed = [decoder.push([token_id]) for token_id in ids]
    assert "".join(streamed) == text
    assert not any("\ufffd" in piece for piece in streamed)
    assert decoder.flush() == ""


@pytest.mark.parametrize("tokenizer", [make(), ByteTokenizer()], ids=["bpe", "bytes"])
def test_counts_say_how_many_tokens_end_at_a_position(tokenizer: Tokenizer) -> None:
    text = "hé<|im_end|>o"
    ids, counts = tokenizer.encode_with_counts(text, [0, 1, 2, 3, 11, 12, 13, 99])
    assert counts == [0, 1, 3, 3, 3, 4, 5, 5]
    assert tokenizer.decode(ids[:3]) == text[:2]


def test_a_stream_that_stops_inside_a_character_flushes_a_replacement() -> None:
    tokenizer = ByteTokenizer()
    decoder = StreamDecoder(tokenizer)
    emoji = tokenizer.encode("😀")
    assert [decoder.push([i]) for i in emoji[:3]] == ["", "", ""]
    assert decoder.flush() == "\ufffd"
    assert tokenizer.decode(emoji[:3]) == "\ufffd"


def test_bytes_that_are_no_text_show_as_soon_as_that_is_certain() -> None:
    tokenizer = ByteTokenizer()
    decoder = StreamDecoder(tokenizer)
    ids = [0xF0, ord("a"), 0x80, 0xC3]
    assert [decoder.push([i]) for i in ids] == ["", "\ufffda", "\ufffd", ""]
    assert decoder.flush() == "\ufffd"
    assert tokenizer.decode(ids) == "\ufffda\ufffd\ufffd"


def test_control_tokens_have_no_text_in_a_reply() -> None:
    tokenizer = make()
    ids = tokenizer.encode("hello<|im_end|>hello")
    decoder = StreamDecoder(tokenizer)
    assert decoder.push(ids) + decoder.flush() == tokenizer.decode(ids) == "hellohello"


@pytest.mark.parametrize("tokenizer", [make(), ByteTokenizer()], ids=["bpe", "bytes"])
@pytest.mark.parametrize("offset", [-1, None])
def test_an_unknown_id_is_named(tokenizer: Tokenizer, offset: int | None) -> None:
    token_id = tokenizer.vocab_size if offset is None else offset
    with pytest.raises(ValueError, match=f"token id {token_id} is not in 0.."):
        tokenizer.decode([token_id])


def sentence_piece(**changes: Any) -> tuple[BpeTokenizer, list[dict[str, Any]]]:
    """A small SentencePiece vocabulary, and what SentencePiece itself makes of some texts."""
    data = json.loads((DATA / "sentence_piece_reference.json").read_text("utf-8"))
    keys = {name: data[name] for name in ("tokens", "scores")}
    keys |= {"model": "llama", "token_type": data["token_types"], "merges": None}
    return make(**keys, **changes), data["texts"]


def test_sentence_piece_tokens_equal_those_of_its_own_library() -> None:
    tokenizer, texts = sentence_piece()
    assert [tokenizer.encode(t["text"]) for t in texts] == [t["token_ids"] for t in texts]


def test_sentence_piece_text_begins_with_a_space_and_streams() -> None:
    tokenizer, texts = sentence_piece()
    for text in (t["text"] for t in texts if t["text"] and "\u2581" not in t["text"]):
        ids = tokenizer.encode(text)
        decoder = StreamDecoder(tokenizer)
        assert "".join(decoder.push([i]) for i in ids) == tokenizer.decode(ids) == " " + text


def test_sentence_piece_control_tokens_and_counts() -> None:
    tokenizer, _ = sentence_piece()
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.special_ids) == (1, (2,), {1, 2})
    ids, counts = tokenizer.encode_with_counts("<s>hello wö", [0, 2, 3, 11])
    assert (ids[0], counts) == (1, [0, 0, 1, len(ids)])
    assert 1 not in tokenizer.encode("<s>hello", parse_special=False)
    without_prefix, _ = sentence_piece(add_space_prefix=False)
    assert without_prefix.decode(without_prefix.encode("hello world")) == "hello world"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "m.gguf: tokenizer model 'bert' is not one of gpt2, llama"),
        ({"pre": "deepseek"}, "m.gguf: pre-tokenizer 'deepseek' is not supported"),
        ({"merges": None}, "m.gguf: metadata key 'tokenizer.ggml.merges' is missing"),
        ({"model": "llama"}, "m.gguf: metadata key 'tokenizer.ggml.scores' is missing"),
        ({"merges": ["z zz"]}, "m.gguf: the vocabulary is inconsistent"),
    ],
)
def test_an_unusable_vocabulary_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        make(**changes)


def write_directory(path: Path, **changes: Any) -> Path:
    vocab = {token: index for index, token in enumerate(TOKENS)}
    special = [{"id": i, "content": TOKENS[i], "special": True} for i in range(3)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    content = {
        "version": "1.0",
        "added_tokens": [token | flags for token in special],
        "pre_tokenizer": byte_level | {"use_regex": True},
        "decoder": byte_level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": MERGES},
    }
    (path / "tokenizer.json").write_text(json.dumps(content | changes), "utf-8")
    return path


def test_a_directory_with_tokenizer_json(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": "{{ 1 }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    tokenizer = load_tokenizer(write_directory(tmp_path))
    assert pieces(tokenizer, "hello hello 1234") == ["hello", " hello", " ", "123", "4"]
    assert tokenizer.eos_ids == (0, 2)
    assert tokenizer.chat_template == "{{ 1 }}"
    assert tokenizer.template_variables == {"bos_token": "", "eos_token": "<|im_end|>"}
    assert tokenizer.decode(tokenizer.encode("<|im_start|>日本")) == "日本"


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="tokenizer.json: no such file"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", "utf-8")
    with pytest.raises(ModelFileError, match="tokenizer.json: not a tokenizer file"):
        load_tokenizer(tmp_path)
    write_directory(tmp_path, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    with pytest.raises(ModelFileError, match="decoder WordPiece is not supported"):
        load_tokenizer(tmp_path)
    write_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]", "utf-8")
    with pytest.raises(ModelFileError, match="tokenizer_config.json: not a JSON object"):
        load_tokenizer(tmp_path)
