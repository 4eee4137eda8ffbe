from __future__ import annotations

import math

from controllers.grants import SHARE, Grant, Room
from controllers.promises import Promise


def held(room: Room, priority: int, num_blocks: int, guard_s: float = 5.0) -> Grant:
    grant = Grant(Promise(priority, 60.0), guard_s, "t")
    room.hold(grant, num_blocks)
    return grant


def test_room_is_what_the_same_and_higher_levels_leave() -> None:
    room = Room(100)
    assert room.left(40) == int(100 * SHARE)
    held(room, 42, 30)
    held(room, 40, 20)
    assert [room.left(p) for p in (39, 40, 41, 42, 43)] == [35, 35, 55, 55, 85]


def test_what_fits_at_the_lowest_level_fits_at_any() -> None:
    room = Room(100)
    grant = held(room, 42, 30)
    held(room, 37, 20)
    for num_blocks in (0, 34, 35, 36):
        assert room.fits(num_blocks) == (num_blocks <= room.left(37) == 35)
    room.free(grant, 10)
    assert (room.fits(45), room.fits(46)) == (True, False)
    room.evicted(grant, 1000)
    assert (room.fits(65), room.fits(66)) == (True, False)


def test_guards_free_their_room_in_time() -> None:
    room = Room(100)
    grant = held(room, 40, 50)
    room.expire(1e9)
    assert room.left(40) == 35  # the request still runs
    room.start(grant, 10.0)
    room.expire(14.9)
    assert room.left(40) == 35
    room.expire(15.0)
    assert (room.left(40), grant.num_held) == (85, 0)


def test_a_guard_ends_with_its_promise_at_the_latest() -> None:
    room = Room(100)
    grant = held(room, 40, 50, guard_s=1000.0)
    room.start(grant, 0.0)
    room.expire(60.0)
    assert room.left(40) == 85


def test_evictions_take_what_was_refused_first() -> None:
    room = Room(100)
    grant = held(room, 40, 20)
    grant.num_spare = 10
    room.evicted(grant, 8)
    assert grant.num_held == 20
    room.evicted(grant, 8)
    assert (grant.num_held, room.left(40)) == (14, 71)
    room.evicted(grant, 99)
    assert (grant.num_held, room.left(40)) == (0, 85)


def test_what_is_left_of_a_promise() -> None:
    grant = Grant(Promise(40, 60.0), 5.0, "t")
    assert grant.left(1e9) == Promise(40, 60.0)
    Room(100).start(grant, 10.0)
    assert grant.left(30.0) == Promise(40, 40.0)
    assert grant.left(70.0) is None
    assert math.isinf(Grant(Promise(40, math.inf), 0.0, "t").until_s)


def test_a_joined_run_holds_for_both() -> None:
    room = Room(100)
    first, second = held(room, 40, 20), held(room, 40, 10)
    first.take_over(second, 10)
    assert (first.num_held, second.num_held, room.left(40)) == (30, 0, 55)
    first.take_over(first, 10)
    assert first.num_held == 30
