from __future__ import annotations

from controllers.cache_watch import CacheWatch
from controllers.events import Cleared, Event, Removed, Stored, Updated, hexes_of
from controllers.retention import Retention, TokenRange

WANTED = Retention(ranges=(TokenRange(0, None, 80, 300.0),))
HASHES = hexes_of([11, 12, 13])


def stored(hashes: list[str], priority: int = 80) -> Event:
    num = len(hashes)
    return Stored(
        parent=None, hashes=hashes, num_tokens=[32] * num, retention_priority=[priority] * num
    )


def watch(*events: Event, now: float = 100.0) -> CacheWatch:
    found = CacheWatch(1000)
    found.on_request(WANTED)
    found.on_events(events, now)
    return found


def test_blocks_weigh_by_their_retention_priority() -> None:
    cache = watch(stored(HASHES), stored(hexes_of([20]), 35))
    assert cache.content_blocks == 2.75
    cache.on_events([Updated(hashes=HASHES[:1], retention_priority=100)], 101.0)
    cache.on_events([Removed(hashes=HASHES[1:])], 102.0)
    assert cache.content_blocks == 1.0 + 0.35
    cache.on_events([Cleared()], 103.0)
    assert cache.content_blocks == 0.0


def test_evicted_while_wanted_and_asked_for_again() -> None:
    cache = watch(stored(HASHES), Removed(hashes=HASHES))
    assert cache.on_events([stored(HASHES[:2])], 399.0) == 64
    assert cache.on_events([stored(HASHES[:2])], 399.0) == 0  # it is here
    assert cache.on_events([stored(HASHES[2:])], 401.0) == 0  # nobody wanted it that long


def test_what_expired_or_was_never_wanted_is_no_loss() -> None:
    expired = Updated(hashes=HASHES, retention_priority=35)
    cache = watch(stored(HASHES), expired, Removed(hashes=HASHES))
    assert cache.on_events([stored(HASHES)], 101.0) == 0
    cache = watch(stored(HASHES, 50), Removed(hashes=HASHES))
    assert cache.on_events([stored(HASHES)], 101.0) == 0


def test_a_block_that_is_stored_twice_is_one() -> None:
    cache = watch(stored(HASHES), stored(HASHES))
    assert cache.content_blocks == 2.4
    assert cache.sample() == watch(stored(HASHES)).sample()


def test_the_books_are_bounded() -> None:
    cache = CacheWatch(10)
    cache.on_request(WANTED)
    for i in range(100):
        cache.on_events([stored(hexes_of([i]))], 1.0)
    assert cache.content_blocks == 16.0
