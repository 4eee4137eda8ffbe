"""Which namespace a first block belongs to, and which request stored a block."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controllers.blocks import as_token_array, block_hashes
from serve_app.executors import trtllm_requests
from serve_app.executors.trtllm_block_key import block_key
from serve_app.executors.trtllm_requests import (
    NOT_IN_EVENT,
    PLAIN,
    Label,
    Namespace,
    Requests,
    salt_of_text,
    salt_text,
)

B = 4
TOKENS = [0, 1, 2, 3]
SALT_IDS = {salt_text(7): 70, salt_text(8): 80}


def add(
    requests: Requests, key: str, tokens: Sequence[int], salt: int = 0, lora_id: int | None = None
) -> None:
    array = as_token_array(tokens)
    hashes = block_hashes(array, B, salt)
    requests.add(key, array, hashes, Namespace(salt, lora_id), Label(key, key))


def test_salts_as_text() -> None:
    assert salt_text(0) is None
    assert salt_text(255) == "00000000000000ff"
    assert [salt_of_text(text) for text in (None, "00000000000000ff", "ff", "x" * 16)] == [
        0,
        255,
        None,
        None,
    ]


def test_without_salts_and_adapters_everything_is_plain() -> None:
    requests = Requests(B)
    assert requests.namespace_of_root(TOKENS, 1, NOT_IN_EVENT) == PLAIN
    add(requests, "a", [9, 9, 9, 9])
    assert requests.namespace_of_root(TOKENS, 1, NOT_IN_EVENT) == PLAIN
    assert requests.namespace_of_root(TOKENS, 1, None) == PLAIN
    assert requests.namespace_of_root(TOKENS, 1, "tenant-A") is None


def test_an_event_with_a_salt_needs_no_request() -> None:
    requests = Requests(B)
    assert requests.namespace_of_root(TOKENS, 1, salt_text(7)) == Namespace(7)
    add(requests, "a", TOKENS, salt=7, lora_id=2)
    assert requests.namespace_of_root(TOKENS, 1, salt_text(7)) == Namespace(7, 2)
    add(requests, "b", TOKENS, salt=7, lora_id=3)  # no such thing: adapters have salts of their own
    assert requests.namespace_of_root(TOKENS, 1, salt_text(7)) is None


def test_an_adapter_without_a_salt_has_no_hashes_of_ours() -> None:
    assert not Namespace(0, 1).has_hashes
    assert Namespace(7, 1).has_hashes
    assert PLAIN.has_hashes


@pytest.mark.parametrize(
    ("prompt", "block", "is_found"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], True),
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3], True),
        ([0, 1], [0, 1, 2, 3], True),  # the rest of the block was generated
        ([0], [0, 1], True),
        ([0, 1], [0, 2, 2, 3], False),
        ([5, 1, 2, 3], [0, 1, 2, 3], False),
    ],
)
def test_candidates(prompt: list[int], block: list[int], is_found: bool) -> None:
    requests = Requests(B)
    add(requests, "a", prompt, salt=7)
    expected = Namespace(7) if is_found else None
    assert requests.namespace_of_root(block, 1, NOT_IN_EVENT) == expected


def test_two_candidates_are_none() -> None:
    requests = Requests(B)
    add(requests, "a", TOKENS, salt=7)
    add(requests, "b", TOKENS, salt=8)
    assert requests.namespace_of_root(TOKENS, 1, NOT_IN_EVENT) is None


@pytest.mark.parametrize(
    ("salt", "lora_id", "salt_id"), [(0, None, None), (7, None, 70), (8, None, 80), (8, 3, 80)]
)
def test_known_hashes_tell_them_apart(salt: int, lora_id: int | None, salt_id: int | None) -> None:
    requests = Requests(B, SALT_IDS.get)
    requests.has_known_hashes = True
    for key, (given_salt, given_lora) in enumerate([(0, None), (7, None), (8, None), (8, 3)]):
        add(requests, str(key), TOKENS, given_salt, given_lora)
    engine_hash = block_key(TOKENS, 0, salt_id, lora_id)
    found = requests.namespace_of_root(TOKENS, engine_hash, NOT_IN_EVENT)
    assert found == Namespace(salt, lora_id)


def test_without_the_engines_salt_ids_only_plain_blocks_are_certain() -> None:
    requests = Requests(B)
    requests.has_known_hashes = True
    add(requests, "a", TOKENS)
    add(requests, "b", TOKENS, salt=7)
    assert requests.namespace_of_root(TOKENS, block_key(TOKENS), NOT_IN_EVENT) == PLAIN
    assert requests.namespace_of_root(TOKENS, 1, NOT_IN_EVENT) == Namespace(7)
    add(requests, "c", TOKENS, salt=8)
    assert requests.namespace_of_root(TOKENS, 1, NOT_IN_EVENT) is None


def test_ended_requests_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_requests, "MAX_ENDED", 2)
    requests = Requests(B)
    for key, salt in (("a", 7), ("b", 8), ("c", 9)):
        add(requests, key, [*TOKENS, salt], salt)
        requests.end(key)
    requests.end("never seen")
    assert len(requests) == 2
    assert requests.namespace_of_root(TOKENS, 1, salt_text(7)) == Namespace(7)
    assert requests.namespace_of_root(TOKENS, 1, NOT_IN_EVENT) is None  # 8 or 9
    first = block_hashes(as_token_array(TOKENS), B, 7)[0]
    last = block_hashes(as_token_array(TOKENS), B, 9)[0]
    assert (requests.label_of(first), requests.label_of(last)) == (None, Label("c", "c"))


def test_long_prompts_are_forgotten_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_requests, "MAX_LABELS", 3)
    requests = Requests(B)
    for key in ("a", "b"):
        add(requests, key, [ord(key)] * 8)  # two blocks
    requests.end("a")
    requests.end("b")
    assert len(requests) == 1
    add(requests, "c", [9] * 16)  # too long, but it runs
    assert len(requests) == 2


def test_a_shared_block_has_the_label_of_the_first_request() -> None:
    requests = Requests(B)
    add(requests, "a", [*TOKENS, 4, 5, 6, 7])
    add(requests, "b", [*TOKENS, 8, 9, 9, 9])
    shared, of_b = block_hashes(as_token_array([*TOKENS, 8, 9, 9, 9]), B)
    assert requests.label_of(shared) == Label("a", "a")
    assert requests.label_of(of_b) == Label("b", "b")
