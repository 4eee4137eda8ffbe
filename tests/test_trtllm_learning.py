"""What a loss hid and later requests show: blocks that are there though nobody told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controllers.blocks import as_token_array, block_hashes
from controllers.events import Lost, Removed, Stored, hexes_of
from serve_app.executors import trtllm_evidence
from serve_app.executors.trtllm_events import EventTranslator
from serve_app.executors.trtllm_requests import Label, Namespace, Prompt, Requests, salt_text
from tests.trtllm_events import Log, named

B = 4
A0, A1, A2, A3 = ([4 * block + at for at in range(B)] for block in range(4))
SALT = 5
SALT_ID = 77


class Rig:
    """A translator whose requests know how the engine hashes."""

    def __init__(self, salt: int = 0) -> None:
        self.requests = Requests(B, lambda text: SALT_ID)
        self.requests.has_known_hashes = True
        self.translator = EventTranslator(B, self.requests)
        self.log = Log(is_new=True)
        self.salt = salt
        self.text = salt_text(salt)
        self.translator.translate([self.log.created(8, 0)])

    def prompt(self, *blocks: Sequence[int]) -> Prompt:
        tokens = as_token_array([token for block in blocks for token in block])
        return Prompt(tokens.tobytes(), Namespace(self.salt))

    def hashes(self, *blocks: Sequence[int]) -> list[int]:
        tokens = [token for block in blocks for token in block]
        return block_hashes(as_token_array(tokens), B, self.salt)

    def names(self, *blocks: Sequence[int]) -> list[int]:
        return named(None, *blocks, salt_id=SALT_ID if self.salt else None)

    def lose_the_root(self) -> None:
        """A0 is stored, which is never seen; then A1 below it, which waits."""
        self.log.skip(1)
        first, second = self.names(A0, A1)
        events = self.translator.translate([self.log.stored(first, A1, names=[second])])
        assert [type(event) for event in events] == [Lost]

    def found(self, *blocks: Sequence[int], num_cached: int) -> list[object]:
        """A prompt that would have been cached up to its last block."""
        hashes = self.hashes(*blocks)
        return list(self.translator.reused(hashes, num_cached * B, 1.0, self.prompt(*blocks)))


@pytest.fixture(params=[0, SALT])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


def stored(hashes: Sequence[int], parent: Sequence[int] = (), **fields: str) -> Stored:
    return Stored(
        parent=hexes_of(parent)[0] if parent else None,
        hashes=hexes_of(hashes),
        num_tokens=[B] * len(hashes),
        retention_priority=[35] * len(hashes),
        **fields,
    )


def test_a_request_that_reuses_a_lost_block_tells_of_it(rig: Rig) -> None:
    tokens, label = as_token_array([*A0, *A1]), Label("chat", "acme")
    rig.requests.add("r", tokens, rig.hashes(A0, A1), Namespace(rig.salt), label)
    rig.lose_the_root()
    # With the block comes what waited for it.
    assert rig.found(A0, A1, num_cached=1) == [
        stored(rig.hashes(A0, A1), tier="chat", tenant="acme")
    ]
    assert rig.translator.counts.num_learned == 1
    assert rig.found(A0, A1, num_cached=2) == []
    # It goes by the engine's own name.
    assert rig.translator.translate([rig.log.removed(rig.names(A0)[0])]) == [
        Removed(hashes=hexes_of(rig.hashes(A0, A1))[::-1])
    ]


def test_what_was_learned_is_not_believed_against_evidence(rig: Rig) -> None:
    """It may have left while the request that found it ran."""
    rig.log.skip(1)
    rig.translator.translate([rig.log.removed(1)])
    rig.found(A0, A1, A2, num_cached=3)
    hashes = rig.hashes(A0, A1, A2)
    assert rig.found(A0, A1, A2, num_cached=1) == [Removed(hashes=hexes_of(hashes)[:0:-1])]


def test_learned_below_a_known_block(rig: Rig) -> None:
    rig.translator.translate([rig.log.stored(None, A0, names=rig.names(A0), salt=rig.text)])
    rig.log.skip(1)
    rig.translator.translate([rig.log.removed(1)])
    first, *rest = rig.hashes(A0, A1, A2)
    assert rig.found(A0, A1, A2, num_cached=3) == [stored(rest, parent=[first])]


def test_a_long_prefix_is_learned_in_parts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_evidence, "MAX_LEARNED", 2)
    rig.log.skip(1)
    rig.translator.translate([rig.log.removed(1)])
    hashes = rig.hashes(A0, A1, A2, A3)
    assert rig.found(A0, A1, A2, A3, num_cached=4) == [stored(hashes[:2])]
    assert rig.found(A0, A1, A2, A3, num_cached=4) == [stored(hashes[2:], parent=hashes[1:2])]


def test_without_a_loss_nothing_is_learned(rig: Rig) -> None:
    assert rig.found(A0, A1, num_cached=2) == []


def test_an_engine_that_hashes_otherwise_teaches_nothing(rig: Rig) -> None:
    rig.requests.has_known_hashes = False
    rig.lose_the_root()
    assert rig.found(A0, A1, num_cached=2) == []
    assert rig.translator.counts.num_learned == 0


def test_a_salt_whose_number_is_not_known_teaches_nothing() -> None:
    rig = Rig(SALT)
    rig.requests = Requests(B)
    rig.requests.has_known_hashes = True
    rig.translator = EventTranslator(B, rig.requests)
    rig.lose_the_root()
    assert rig.found(A0, A1, num_cached=2) == []
