from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from controllers.errors import ModelFileError
from serve_app.engine.config import ModelConfig
from serve_app.engine.gguf import GgufFile, read_metadata
from serve_app.engine.weights import load_model, unpermute_rotary
from tests.gguf_writer import GgufWriter
from tests.tiny_llama import (
    CONTEXT,
    EPS,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    ROPE_BASE,
    VOCAB,
    random_tensors,
    write_tiny_llama,
)

RNG = np.random.default_rng(5)


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


def nibbles(data: bytes) -> list[int]:
    return [byte & 15 for byte in data] + [byte >> 4 for byte in data]


def plain_q4_0(block: bytes) -> list[float]:
    scale = float(np.frombuffer(block[:2], np.float16)[0])
    return [scale * (code - 8) for code in nibbles(block[2:])]


def plain_q4_1(block: bytes) -> list[float]:
    scale, least = (float(v) for v in np.frombuffer(block[:4], np.float16))
    return [scale * code + least for code in nibbles(block[4:])]


def plain_q8_0(block: bytes) -> list[float]:
    scale = float(np.frombuffer(block[:2], np.float16)[0])
    return [scale * code for code in np.frombuffer(block[2:], np.int8).tolist()]


QUANTS = {
    "Q4_0": (2, half(0.25) + RNG.bytes(16), plain_q4_0),
    "Q4_1": (3, half(-0.5) + half(1.75) + RNG.bytes(16), plain_q4_1),
    "Q8_0": (8, half(0.125) + RNG.bytes(32), plain_q8_0),
}


@pytest.mark.parametrize("name", list(QUANTS))
def test_quantised_tensors_equal_a_plain_decoder(name: str, tmp_path: Path) -> None:
    kind, block, plain = QUANTS[name]
    other = block[:2] + block[2:][::-1] if name != "Q4_1" else block[:4] + block[4:][::-1]
    writer = GgufWriter()
    writer.add_raw("w", (2, 64), kind, block + other + other + block)
    expected = np.array([plain(block) + plain(other), plain(other) + plain(block)], np.float32)
    with GgufFile(writer.write(tmp_path / "m.gguf")) as file:
        np.testing.assert_array_equal(file.tensor("w"), expected)


def test_float_tensors(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.0], [3.25, 1e-3, -0.125]], np.float32)
    writer = GgufWriter()
    writer.add_float32("f32", values)
    writer.add_raw("f16", (2, 3), 1, values.astype(np.float16).tobytes())
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    writer.add_raw("bf16", (2, 3), 30, upper.tobytes())
    with GgufFile(writer.write(tmp_path / "m.gguf")) as file:
        tensors = {name: file.tensor(name) for name in ("f32", "f16", "bf16")}
    np.testing.assert_array_equal(tensors["f32"], values)
    np.testing.assert_array_equal(tensors["f16"], values.astype(np.float16).astype(np.float32))
    truncated = (upper.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(tensors["bf16"], truncated)
    assert {t.dtype for t in tensors.values()} == {np.dtype(np.float32)}


def test_metadata_of_every_kind(tmp_path: Path) -> None:
    metadata = {
        "count": 7,
        "negative": -3,
        "factor": 0.5,
        "flag": True,
        "text": "naïve 日本",
        "words": ["a", "", "ü"],
        "numbers": [1, 2, 3],
        "nested": [[1, 2], [3]],
        "flags": [True, False],
    }
    path = GgufWriter(metadata=metadata).write(tmp_path / "m.gguf")
    assert read_metadata(path) == metadata


def broken_files() -> dict[str, tuple[bytes, str]]:
    writer = GgufWriter(metadata={"key": "value"})
    writer.add_float32("w", np.ones((4, 8), np.float32))
    good = writer.to_bytes()
    odd = GgufWriter()
    odd.add_raw("w", (2, 16), 2, bytes(64))
    unknown = GgufWriter()
    unknown.add_raw("blk.0.ffn_up.weight", (1, 256), 12, bytes(144))
    return {
        "magic": (b"GGML" + good[4:], r"not a GGUF file \(starts with b'GGML'\)"),
        "version": (
            GgufWriter(version=2).to_bytes(),
            r"GGUF version 2 is not supported \(only 3\)",
        ),
        "empty": (b"", "file is empty"),
        "cut header": (good[:40], "file is truncated: .* bytes needed, 40 present"),
        "cut data": (good[:-1], "file is truncated: tensor 'w' ends after the file"),
        "type": (
            unknown.to_bytes(),
            "tensor 'blk.0.ffn_up.weight' has type 12, which is not one of F32, F16, Q4_0",
        ),
        "columns": (odd.to_bytes(), "tensor 'w': 16 columns do not fill Q4_0 blocks"),
        "value type": (good.replace(b"key\x08", b"key\x63"), "metadata value type 99"),
    }


@pytest.mark.parametrize("name", list(broken_files()))
def test_a_broken_file_is_named_with_what_is_wrong(name: str, tmp_path: Path) -> None:
    data, message = broken_files()[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=message) as caught:
        GgufFile(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_missing_tensor(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="none.gguf: cannot be read: No such file"):
        GgufFile(tmp_path / "none.gguf")
    path = GgufWriter().write(tmp_path / "m.gguf")
    with GgufFile(path) as file, pytest.raises(ModelFileError, match="tensor 'w' is missing"):
        file.tensor("w")


def test_config_of_a_llama(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", random_tensors())
    with GgufFile(path) as file:
        config = ModelConfig.from_gguf(file)
    assert config == ModelConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        ffn_size=FFN,
        rope_base=ROPE_BASE,
        norm_eps=float(np.float32(EPS)),
        context_len=CONTEXT,
        is_tied=True,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "gemma3"}, "architecture 'gemma3' is not supported"),
        ({"general.architecture": None}, "key 'general.architecture' is missing"),
        ({"llama.block_count": None}, "key 'llama.block_count' is missing"),
        ({"llama.block_count": -1}, "'llama.block_count' is -1, not a positive integer"),
        ({"llama.attention.head_count_kv": 4}, "6 heads do not divide into 4"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0},
            r"RoPE scaling 'yarn' \(factor 4.0\) is not supported",
        ),
        ({"llama.rope.freq_base": "high"}, "'llama.rope.freq_base' is 'high', not a positive"),
        ({"general.alignment": 0}, "metadata key 'general.alignment' is 0"),
        ({"llama.rope.dimension_count": 2}, "RoPE over 2 of 4 dimensions"),
        ({"llama.feed_forward_length": 48}, r"'blk.0.ffn_gate.weight' has shape \(40, 24\)"),
        ({"llama.block_count": 4}, "tensor 'blk.3.attn_q.weight' is missing"),
    ],
)
def test_a_model_that_cannot_run_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", random_tensors(), **changes)
    with pytest.raises(ModelFileError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_a_tensor_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors() | {"blk.1.attn_q.bias": np.ones(HIDDEN, np.float32)}
    path = write_tiny_llama(tmp_path / "m.gguf", tensors)
    with pytest.raises(ModelFileError, match="tensor 'blk.1.attn_q.bias' has no place"):
        load_model(path)


def test_rope_factors_are_refused(tmp_path: Path) -> None:
    tensors = random_tensors() | {"rope_freqs.weight": np.ones(2, np.float32)}
    path = write_tiny_llama(tmp_path / "m.gguf", tensors)
    with pytest.raises(ModelFileError, match="RoPE scaling by tensor 'rope_freqs.weight'"):
        load_model(path)


def test_unpermute_rotary_moves_pairs_to_halves() -> None:
    rows = np.arange(8, dtype=np.float32)[:, None]
    assert unpermute_rotary(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
