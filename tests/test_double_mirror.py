"""What a reader of the double's events knows, against what is there: only documented holes."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from tests.trtllm_calls import events_of, make_llm, retention, run, sampling


class Reader:
    """Knows resident blocks by their hash; drops a whole subtree with a removed block."""

    def __init__(self) -> None:
        self.name_to_parent: dict[int, int | None] = {}

    def read(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            data = event["data"]
            if data["type"] == "stored":
                self._store(data)
            elif data["type"] == "removed":
                for name in data["block_hashes"]:
                    self._drop(name)

    def _store(self, data: dict[str, Any]) -> None:
        parent = data["parent_hash"]
        assert parent is None or parent in self.name_to_parent
        for block in data["blocks"]:
            self.name_to_parent[block["block_hash"]] = parent
            parent = block["block_hash"]

    def _drop(self, name: int) -> None:
        self.name_to_parent.pop(name, None)
        children = [child for child, parent in self.name_to_parent.items() if parent == name]
        for child in children:
            self._drop(child)


def names_of(llm: Any) -> set[int]:
    """Hashes of what is really there."""
    cache = llm._executor._ranks[0]._largest
    return {cache._tap._nodes[block.block_hash].name for block in cache.reusable_blocks()}


def work(llm: Any, rng: random.Random) -> None:
    """A prompt of few tokens' choice, so that prefixes repeat and diverge inside blocks."""
    prompt = [rng.choice([1, 2]) if rng.random() < 0.2 else 0 for _ in range(rng.randint(1, 24))]
    options = {}
    if rng.random() < 0.7:
        split = rng.randint(1, 20)
        ranges = (0, split, rng.choice([0, 35, 80])), (split, None, rng.choice([0, 90]))
        options["kv_cache_retention_config"] = retention(*ranges)
    params = sampling(max_tokens=rng.randint(1, 8), seed=rng.randint(0, 3), temperature=1.0)
    run(llm, prompt, sampling_params=params, **options)


@pytest.mark.parametrize("version", ["1.3.0rc6", "1.3.0rc27"])
@pytest.mark.parametrize("num_host_blocks", [0, 6])
@pytest.mark.parametrize("has_partial_reuse", [True, False])
def test_a_reader_misses_nothing_and_believes_in_taken_leaves(
    version: str, num_host_blocks: int, has_partial_reuse: bool, trtllm_double: ModuleType
) -> None:
    trtllm_double.double.configure(version=version, is_proxy=False)
    llm = make_llm(
        num_blocks=12,
        host_cache_size=num_host_blocks * 4 * 1024,
        enable_partial_reuse=has_partial_reuse,
    )
    reader, rng = Reader(), random.Random(f"{version} {num_host_blocks}")
    num_ghosts = 0
    for _ in range(150):
        work(llm, rng)
        reader.read(events_of(llm))
        there = names_of(llm)
        assert there <= set(reader.name_to_parent)
        assert {reader.name_to_parent[name] for name in there} <= there | {None}
        num_ghosts += len(set(reader.name_to_parent) - there)
    assert (num_ghosts > 0) == has_partial_reuse
