"""The engine's own hash, by the vectors of its documentation's algorithm."""

from __future__ import annotations

import pytest

from serve_app.executors.trtllm_block_key import block_key


@pytest.mark.parametrize(
    ("tokens", "options", "expected"),
    [
        ([0, 1, 2, 3], {}, 733356887393045),
        ([4, 5, 6, 7], {"parent": 733356887393045}, 6310903394565074474),
        ([8, 9], {"parent": 6310903394565074474}, 12323969022835443604),
        ([0, 1, 2, 3], {"lora_id": 42}, 12106754553835128565),
        ([0, 1, 2, 3], {"salt_id": 12345}, 10948516424341199015),
        ([4, 5, 6, 7], {"parent": 10948516424341199015, "salt_id": 12345}, 18400271694767377472),
        ([], {}, 0),
        ([], {"lora_id": 42}, 12058926936704544731),
    ],
)
def test_vectors(tokens: list[int], options: dict[str, int], expected: int) -> None:
    assert block_key(tokens, **options) == expected
