"""Sequences of documented events, in both schemas, with the holes that are known of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from controllers.blocks import as_token_array, block_hash, block_hashes
from controllers.events import Cleared, Event, Lost, Removed, Stored, Updated, hex_of, hexes_of
from serve_app.executors.trtllm_events import EventTranslator
from serve_app.executors.trtllm_requests import Label, Namespace, Requests, salt_text
from tests.trtllm_events import Log, named

B = 4
A0, A1, A2 = [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]
C0, C1 = [100, 101, 102, 103], [104, 105, 106, 107]


class Rig:
    """A translator with its requests and a log."""

    def __init__(self, *, is_new: bool) -> None:
        self.requests = Requests(B)
        self.translator = EventTranslator(B, self.requests)
        self.log = Log(is_new=is_new)

    def see(self, *events: Any) -> list[Event]:
        return self.translator.translate(events)

    def begin(self, num_gpu: int = 8, num_host: int = 2) -> None:
        assert self.see(self.log.created(num_gpu, num_host)) == []

    def request(self, key: str, tokens: Sequence[int], salt: int = 0, **label: str) -> None:
        array = as_token_array(tokens)
        self.requests.add(key, array, block_hashes(array, B, salt), Namespace(salt), Label(**label))


@pytest.fixture(params=[False, True], ids=["1.2", "1.3"])
def rig(request: pytest.FixtureRequest) -> Rig:
    made = Rig(is_new=request.param)
    made.begin()
    return made


def ours(*blocks: Sequence[int], salt: int = 0) -> list[str]:
    """Our hashes of consecutive blocks, the last of which may be partial."""
    found: list[int] = []
    for tokens in blocks:
        found.append(block_hash(found[-1] if found else None, as_token_array(tokens), salt))
    return hexes_of(found)


def stored(parent: str | None, hashes: list[str], priority: int = 35, **fields: Any) -> Stored:
    numbers = fields.pop("num_tokens", [B] * len(hashes))
    priorities = [priority] * len(hashes)
    return Stored(
        parent=parent, hashes=hashes, num_tokens=numbers, retention_priority=priorities, **fields
    )


def test_created_tells_the_sizes(rig: Rig) -> None:
    assert rig.translator.num_blocks == {"gpu": 8, "host": 2}
    assert rig.translator.cached_blocks == {}


def test_a_prompt_and_its_reply(rig: Rig) -> None:
    """Full blocks at the end of the prompt, then the rest with a partial one."""
    first, second, third = named(None, A0, A1, [8, 9])
    assert rig.see(rig.log.stored(None, A0, A1, names=[first, second])) == [
        stored(None, ours(A0, A1))
    ]
    assert rig.see(rig.log.stored(second, [8, 9], names=[third])) == [
        stored(ours(A0, A1)[1], ours(A0, A1, [8, 9])[2:], num_tokens=[2])
    ]
    assert rig.translator.cached_blocks == {"gpu": 3}


def test_empty_items_are_passed_over(rig: Rig) -> None:
    assert rig.see({}, None, rig.log.stored(None, A0), {}) == [stored(None, ours(A0))]


def test_a_block_twice_is_no_news(rig: Rig) -> None:
    names = named(None, A0, A1)
    rig.see(rig.log.stored(None, A0, A1))
    assert rig.see(rig.log.stored(None, A0, A1)) == []
    # What lies beyond the known ones is.
    assert rig.see(rig.log.stored(names[0], A1, A2)) == [
        stored(ours(A0, A1)[1], ours(A0, A1, A2)[2:])
    ]


def test_a_second_telling_may_change_the_priority(rig: Rig) -> None:
    rig.see(rig.log.stored(None, A0, A1))
    assert rig.see(rig.log.stored(None, A0, A1, priority=80)) == [
        Updated(hashes=ours(A0, A1), retention_priority=80, old_retention_priority=35)
    ]


def test_removed_children_first_as_1_2_tells_it(rig: Rig) -> None:
    first, second, third = named(None, A0, A1, A2)
    rig.see(rig.log.stored(None, A0, A1, A2))
    events = [rig.log.removed(third), rig.log.removed(second), rig.log.removed(first)]
    assert rig.see(*events) == [Removed(hashes=ours(A0, A1, A2)[::-1])]
    assert rig.translator.cached_blocks["gpu"] == 0
    assert rig.see(rig.log.removed(third, second, first)) == []


def test_a_removed_parent_takes_its_subtree_as_1_3_leaves_it_out(rig: Rig) -> None:
    first, second, _ = named(None, A0, A1, A2)
    rig.see(rig.log.stored(None, A0, A1, A2), rig.log.stored(first, C1))
    [event] = rig.see(rig.log.removed(first))
    assert isinstance(event, Removed)
    assert sorted(event.hashes) == sorted([*ours(A0, A1, A2), ours(A0, C1)[1]])
    assert event.hashes[-1] == ours(A0)[0]  # children before parents
    # Mentioned late, or never: nothing more is said.
    assert rig.see(rig.log.removed(second)) == []
    assert rig.see(rig.log.stored(None, A0)) == [stored(None, ours(A0))]


def test_host_and_back(rig: Rig) -> None:
    first, second = named(None, A0, A1)
    rig.see(rig.log.stored(None, A0, A1))
    moves = [rig.log.updated(second, level=(0, 1)), rig.log.updated(first, level=(0, 1))]
    assert rig.see(*moves) == [Updated(hashes=ours(A0, A1)[::-1], medium="host", old_medium="gpu")]
    assert rig.translator.cached_blocks == {"gpu": 0, "host": 2}
    assert rig.see(rig.log.updated(first, level=(1, 0), priority=(35, 50))) == [
        Updated(
            hashes=ours(A0),
            medium="gpu",
            old_medium="host",
            retention_priority=50,
            old_retention_priority=35,
        )
    ]
    assert rig.see(rig.log.updated(12345, level=(0, 1))) == []  # not known


def test_a_run_breaks_where_the_medium_does(rig: Rig) -> None:
    first, _ = named(None, A0, A1)
    events = [rig.log.stored(None, A0), rig.log.stored(first, A1, level=1)]
    assert rig.see(*events) == [
        stored(None, ours(A0)),
        stored(ours(A0)[0], ours(A0, A1)[1:], medium="host"),
    ]


def test_a_child_waits_for_its_parent(rig: Rig) -> None:
    first, second, _ = named(None, A0, A1, A2)
    assert rig.see(rig.log.stored(second, A2)) == []
    assert rig.see(rig.log.stored(first, A1)) == []
    assert rig.see(rig.log.stored(None, A0)) == [stored(None, ours(A0, A1, A2))]


def test_a_child_does_not_wait_for_a_parent_that_left(rig: Rig) -> None:
    first, second, third = named(None, A0, A1, A2)
    rig.see(rig.log.stored(second, A2), rig.log.stored(third, C0))
    assert rig.see(rig.log.removed(second)) == []
    assert rig.see(rig.log.stored(None, A0, A1)) == [stored(None, ours(A0, A1))]
    assert rig.translator.counts.num_orphan_events == 2


def test_a_partial_block_is_used_up_by_its_continuation(rig: Rig) -> None:
    """The leaf [8, 9] is taken privately, without a word, and comes back as [8, 9, 10, 11]."""
    _, second, partial = named(None, A0, A1, [8, 9])
    rig.see(rig.log.stored(None, A0, A1, [8, 9]))
    assert rig.see(rig.log.stored(second, A2)) == [
        Removed(hashes=ours(A0, A1, [8, 9])[2:]),
        stored(ours(A0, A1)[1], ours(A0, A1, A2)[2:]),
    ]
    assert rig.see(rig.log.removed(partial)) == []
    assert rig.translator.cached_blocks == {"gpu": 3}


def test_another_partial_block_stays(rig: Rig) -> None:
    _, second = named(None, A0, A1)
    rig.see(rig.log.stored(None, A0, A1, [8, 9]))
    rig.see(rig.log.stored(second, [8, 10, 1, 2]))
    assert rig.translator.cached_blocks == {"gpu": 4}


def test_nothing_hangs_below_a_partial_block(rig: Rig) -> None:
    [partial] = named(None, [8, 9])
    rig.see(rig.log.stored(None, [8, 9]))
    assert rig.see(rig.log.stored(partial, A0)) == []
    assert rig.translator.counts.num_left_out == 1


def test_a_gap_is_lost_at_its_place(rig: Rig) -> None:
    rig.see(rig.log.stored(None, A0))
    before = rig.log.stored(None, C0)
    rig.log.skip(3)
    assert rig.see(before, rig.log.stored(named(None, A0)[0], A1)) == [
        stored(None, ours(C0)),
        Lost(reason="engine_buffer_overflow", first=3, last=5),
        stored(ours(A0)[0], ours(A0, A1)[1:]),
    ]
    assert rig.translator.counts.num_lost_events == 3


def test_the_first_event_may_be_lost_too() -> None:
    rig = Rig(is_new=True)
    rig.log.skip(1)
    assert rig.see(rig.log.stored(None, A0)) == [
        Lost(reason="engine_buffer_overflow", first=0, last=0),
        stored(None, ours(A0)),
    ]


def test_after_a_loss_a_request_shows_what_is_there(rig: Rig) -> None:
    rig.see(rig.log.stored(None, A0, A1, A2))
    rig.log.skip(1)
    rig.see(rig.log.stored(None, C0))
    hashes = block_hashes(as_token_array([*A0, *A1, *A2]), B)
    assert rig.translator.reused(hashes, num_cached_tokens=2 * B + 1) == [
        Removed(hashes=hexes_of(hashes[2:]))
    ]
    assert rig.translator.counts.num_healed == 1
    # The others are no suspects any more, and C0 never was one: it came after the loss.
    assert rig.translator.reused(hashes, num_cached_tokens=0) == []
    assert rig.translator.reused(block_hashes(as_token_array(C0), B), 0) == []


def test_reuse_of_a_part_of_a_block_makes_leaves_suspect(rig: Rig) -> None:
    """The engine may have taken one of them out of its tree, and does not say which."""
    first = named(None, A0)[0]
    rig.see(rig.log.stored(None, A0, A1), rig.log.stored(first, C1), rig.log.stored(None, C0))
    path_a = block_hashes(as_token_array([*A0, *A1]), B)
    path_c = block_hashes(as_token_array([*A0, *C1]), B)
    other = block_hashes(as_token_array([*A0, *A2]), B)
    assert rig.translator.reused(other, num_cached_tokens=B + 1) == []
    # One comes back and finds its block, the other does not.
    assert rig.translator.reused(path_a, num_cached_tokens=2 * B - 1) == [
        Removed(hashes=hexes_of(path_a[1:]))
    ]
    assert rig.translator.reused(path_c, num_cached_tokens=2 * B) == []
    assert rig.translator.cached_blocks == {"gpu": 3}


def test_a_request_says_nothing_of_what_was_stored_after_it_was_asked(rig: Rig) -> None:
    hashes = block_hashes(as_token_array([*A0, *A1]), B)
    rig.translator.translate([rig.log.stored(None, A0, A1)], now=5.0)
    rig.log.skip(1)
    rig.translator.translate([rig.log.stored(None, C0)], now=6.0)
    assert rig.translator.reused(hashes, 0, asked_at=4.0) == []
    # Stored again, and again suspect by another loss: only who asked after that knows.
    rig.translator.translate([rig.log.stored(None, A0, A1)], now=7.0)
    rig.log.skip(1)
    rig.translator.translate([rig.log.stored(None, A2)], now=8.0)
    assert rig.translator.reused(hashes, 0, asked_at=6.5) == []
    assert rig.translator.reused(hashes, 0, asked_at=9.0) == [
        Removed(hashes=hexes_of(hashes)[::-1])
    ]


def test_without_a_loss_nothing_is_doubted(rig: Rig) -> None:
    rig.see(rig.log.stored(None, A0, A1))
    assert rig.translator.reused(block_hashes(as_token_array([*A0, *A1]), B), 0) == []


def test_after_a_loss_no_more_is_believed_than_the_cache_holds() -> None:
    rig = Rig(is_new=True)
    rig.begin(num_gpu=2)
    rig.see(rig.log.stored(None, A0), rig.log.stored(None, C0))
    rig.log.skip(1)
    events = rig.see(rig.log.stored(None, A2))
    assert events == [
        Lost(reason="engine_buffer_overflow", first=3, last=3),
        stored(None, ours(A2)),
        Removed(hashes=ours(A0)),
    ]
    assert rig.translator.cached_blocks == {"gpu": 2}


def test_a_cache_that_is_made_anew(rig: Rig) -> None:
    rig.see(rig.log.stored(None, A0))
    again = Log(is_new=True)
    assert rig.see(again.created(5, 0), again.stored(None, C0)) == [
        Cleared(),
        stored(None, ours(C0)),
    ]
    assert rig.translator.num_blocks == {"gpu": 5, "host": 0}


def test_ids_that_go_back_are_a_loss(rig: Rig) -> None:
    rig.see(rig.log.stored(None, A0))
    again = Log(is_new=True)
    assert rig.see(again.stored(None, C0)) == [
        Lost(reason="event_ids_went_back"),
        stored(None, ours(C0)),
    ]


@pytest.mark.parametrize(
    "event",
    [
        {"event_id": 1},
        {"event_id": 1, "data": {"type": "moved"}, "window_size": 256},
        {"event_id": 1, "data": {"type": "removed"}, "window_size": 256},
        {"event_id": "x", "data": {"type": "removed", "block_hashes": []}},
        {"event_id": 2**70, "data": {"type": "removed", "block_hashes": []}},
        {"event_id": -1, "data": {"type": "removed", "block_hashes": []}},
        {"event_id": 1, "data": {"type": "stored", "parent_hash": None, "blocks": [{}]}},
        {"event_id": 1, "data": None},
        {"event_id": 1, "data": {"type": "removed", "block_hashes": [[7]]}, "window_size": 256},
        {"event_id": 1, "data": {"type": "removed", "block_hashes": [None]}, "window_size": 256},
        {
            "event_id": 1,
            "data": {
                "type": "updated",
                "block_hash": 7,
                "cache_level": {"new_value": -1, "old_value": 0},
                "priority": None,
            },
            "window_size": 256,
        },
        ["a list"],
        "text",
    ],
)
def test_what_cannot_be_read_is_a_hole(event: Any, rig: Rig) -> None:
    assert rig.see(event) == [Lost(reason="unreadable_event", first=1, last=1)]
    assert rig.translator.counts.num_unreadable_events == 1
    rig.log.skip(1)
    assert rig.see(rig.log.stored(None, A0)) == [stored(None, ours(A0))]


def test_only_the_largest_window_counts() -> None:
    rig = Rig(is_new=True)
    small, large = 12, 16
    rig.see(rig.log.created(4, 2, window=small), rig.log.created(8, 2, window=large))
    assert rig.translator.num_blocks == {"gpu": 8, "host": 2}
    [name] = named(None, A0)
    events = [
        rig.log.stored(None, A0, window=small),
        rig.log.stored(None, A0, window=large),
        rig.log.removed(name, window=small),
    ]
    assert rig.see(*events) == [stored(None, ours(A0))]
    # With two windows the engine may reuse less than is there, so that proves nothing.
    rig.log.skip(1)
    rig.see(rig.log.stored(None, C0, window=large))
    assert rig.translator.reused(block_hashes(as_token_array(A0), B), 0) == []


def test_a_window_that_turns_out_not_to_be_the_largest() -> None:
    rig = Rig(is_new=True)
    rig.log.skip(2)
    rig.see(rig.log.stored(None, A0, window=12))
    assert rig.see(rig.log.stored(None, C0, window=16)) == [Cleared(), stored(None, ours(C0))]


def test_layer_groups_of_the_v2_manager() -> None:
    """One event for each group: the first group of the largest window counts. Hashes are text."""
    rig = Rig(is_new=True)
    for group in (0, 1):
        rig.see({**rig.log.created(8, 0), "layer_group_id": group})
    told = []
    for group in (0, 1):
        event = rig.log.stored(None, A0, A1, names=["6e34", "7b89"])
        told += rig.see({**event, "layer_group_id": group})
    assert told == [stored(None, ours(A0, A1))]
    assert rig.see({**rig.log.removed("7b89", "6e34"), "layer_group_id": 0}) == [
        Removed(hashes=ours(A0, A1)[::-1])
    ]


@pytest.mark.parametrize(
    "more", [{"extra_id": 1}, {"mm_keys": [{"type": "mm_key", "hash": "ab", "start_offset": 0}]}]
)
def test_more_than_text_is_left_out_with_all_below(more: dict[str, Any], rig: Rig) -> None:
    first, _ = named(None, A0, A1)
    assert rig.see(rig.log.stored(None, A0, **more), rig.log.stored(first, A1)) == []
    assert rig.see(rig.log.removed(first)) == []
    assert rig.translator.counts.num_left_out == 2
    assert rig.translator.cached_blocks == {}


def test_a_longer_block_than_ours_is_left_out(rig: Rig) -> None:
    assert rig.see(rig.log.stored(None, [*A0, *A1])) == []
    assert rig.translator.counts.num_left_out == 1


def test_the_salt_is_in_the_event_since_1_3() -> None:
    rig = Rig(is_new=True)
    rig.begin()
    rig.request("a", [*A0, 9], salt=7)
    rig.request("b", [*A0, 9], salt=8)
    events = [
        rig.log.stored(None, A0, names=[1], salt=salt_text(7)),
        rig.log.stored(None, A0, names=[2], salt=salt_text(8)),
        rig.log.stored(None, A0, names=[3]),
        rig.log.stored(None, A0, names=[4], salt="somebody else's"),
    ]
    assert rig.see(*events) == [
        stored(None, ours(A0, salt=7)),
        stored(None, ours(A0, salt=8)),
        stored(None, ours(A0)),
    ]
    assert rig.translator.counts.num_left_out == 1


def test_in_1_2_the_only_possible_request_tells_the_salt() -> None:
    rig = Rig(is_new=False)
    rig.begin()
    rig.request("a", [*A0, 9], salt=7)
    rig.request("b", [*C0, 9], salt=8)
    assert rig.see(rig.log.stored(None, A0, names=[1])) == [stored(None, ours(A0, salt=7))]
    assert rig.see(rig.log.stored(1, A1, names=[2])) == [
        stored(ours(A0, salt=7)[0], ours(A0, A1, salt=7)[1:])
    ]


def test_in_1_2_an_ambiguous_prompt_is_not_guessed_at() -> None:
    rig = Rig(is_new=False)
    rig.begin()
    rig.request("a", [*A0, 9], salt=7)
    rig.request("b", [*A0, 9])
    assert rig.see(rig.log.stored(None, A0, A1, names=[1, 2])) == []
    assert rig.translator.counts.num_left_out == 2
    assert rig.see(rig.log.removed(1)) == []


def test_a_label_is_that_of_the_request_in_whose_prompt_the_block_is(rig: Rig) -> None:
    rig.request("a", [*A0, *A1, 9], tier="gold", tenant="acme")
    first, second = named(None, A0, A1)
    gold = {"tier": "gold", "tenant": "acme"}
    assert rig.see(rig.log.stored(None, A0, A1), rig.log.stored(second, C0)) == [
        stored(None, ours(A0, A1, C0), **gold)  # generated blocks follow their prompt
    ]
    assert rig.see(rig.log.stored(first, C1)) == [stored(ours(A0)[0], ours(A0, C1)[1:], **gold)]
    assert rig.see(rig.log.stored(None, C0)) == [stored(None, ours(C0))]


def test_what_is_hidden_is_never_told(rig: Rig) -> None:
    first, second = named(None, A0, A1)
    rig.see(rig.log.stored(None, A0))
    rig.translator.hide_all()
    assert rig.translator.cached_blocks == {}
    assert rig.see(rig.log.stored(first, A1), rig.log.updated(second, level=(0, 1))) == []
    assert rig.see(rig.log.removed(first)) == []
    assert rig.see(rig.log.stored(None, A0)) == [stored(None, ours(A0))]  # anew


def test_overlap(rig: Rig) -> None:
    hashes = block_hashes(as_token_array([*A0, *A1, *A2]), B)
    assert rig.translator.overlap(hashes) == 0
    rig.see(rig.log.stored(None, A0, A1))
    assert rig.translator.overlap(hashes) == 2
    assert hex_of(hashes[0]) == ours(A0)[0]
