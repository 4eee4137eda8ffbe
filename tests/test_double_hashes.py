"""The hash vectors of TensorRT-LLM's block keys, against the double's own implementation."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

V2_ROOT = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
V2_FIRST = "7b894451a88bc03088bd0c44f01139922b089a1ab691d157c273185c78ca83b2"
V2_SECOND = "181684b4f09a9fc1689624a565bc5c9ed96cede3e0863cf373463b1a93c45369"


@pytest.fixture
def hashes(trtllm_double: ModuleType) -> Any:
    import tensorrt_llm.double.hashes as module

    return module


@pytest.mark.parametrize(
    ("tokens", "parent", "scope", "expected"),
    [
        ([0, 1, 2, 3], 0, {}, 733356887393045),
        ([4, 5, 6, 7], 733356887393045, {}, 6310903394565074474),
        ([8, 9], 6310903394565074474, {}, 12323969022835443604),
        ([0, 1, 2, 3], 0, {"lora_id": 42}, 12106754553835128565),
        ([0, 1, 2, 3], 0, {"salt_id": 12345}, 10948516424341199015),
        ([4, 5, 6, 7], 10948516424341199015, {"salt_id": 12345}, 18400271694767377472),
        ([], 0, {}, 0),
        ([], 0, {"lora_id": 42}, 12058926936704544731),
    ],
)
def test_v1_block_key(
    tokens: list[int], parent: int, scope: dict[str, int], expected: int, hashes: Any
) -> None:
    assert hashes.v1_block_key(tokens, parent, **scope) == expected


def test_v1_salt_counts_in_the_first_block_only(hashes: Any) -> None:
    parent = 10948516424341199015
    assert hashes.v1_block_key([4, 5, 6, 7], parent) == 18400271694767377472


def test_v2_root(hashes: Any) -> None:
    assert hashes.v2_root().hex() == V2_ROOT


def test_v2_sha256(hashes: Any) -> None:
    first = hashes.v2_sha256([0, 1, 2, 3], bytes.fromhex(V2_ROOT))
    assert first.hex() == V2_FIRST
    assert hashes.v2_sha256([4, 5, 6, 7], first).hex() == V2_SECOND


def test_v2_sha256_64(hashes: Any) -> None:
    assert hashes.v2_sha256_64(bytes.fromhex(V2_FIRST)) == 8901721255985266736


def test_v2_scopes_have_roots_of_their_own(hashes: Any) -> None:
    roots = {
        hashes.v2_root(),
        hashes.v2_root(lora_id=1),
        hashes.v2_root(salt_id=1),
        hashes.v2_root(lora_id=1, salt_id=1),
    }
    assert len(roots) == 4


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (b"\0", "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"),
        (b"abc", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
    ],
)
def test_blake3_of_short_inputs(data: bytes, expected: str, trtllm_double: ModuleType) -> None:
    from tensorrt_llm.double.blake3 import blake3

    assert blake3(data).hex() == expected


def test_blake3_of_several_blocks(trtllm_double: ModuleType) -> None:
    """The specification's own input: bytes 0, 1 ... 250, again from 0; 65 and 1024 of them."""
    from tensorrt_llm.double.blake3 import blake3

    data = bytes(i % 251 for i in range(1024))
    two_blocks = "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee"
    a_chunk = "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"
    assert blake3(data[:65]).hex() == two_blocks
    assert blake3(data).hex() == a_chunk


def test_cache_salt_id_is_little_endian(trtllm_double: ModuleType) -> None:
    from tensorrt_llm.inputs import get_cache_salt_id

    assert get_cache_salt_id("") == int.from_bytes(bytes.fromhex("af1349b9f5f9a1a6"), "little")
