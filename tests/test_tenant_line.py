from __future__ import annotations

import random

from controllers.tenant_line import TenantLine
from controllers.waiting import MIN_CHARGE_TOKENS, Waiting


def taken(line: TenantLine) -> list[str]:
    """All of it, in order."""
    order = []
    while (item := line.first()) is not None:
        order.append(line.remove(item.request_id).request_id)
    return order


def test_shortest_first_and_equals_in_order_of_arrival() -> None:
    line = TenantLine()
    for name, tokens in (("long", 5000), ("b", 100), ("a", 100), ("short", 1)):
        line.add(Waiting(name, tokens, 0.0))
    assert line.charge == 5000 + 200 + MIN_CHARGE_TOKENS
    assert taken(line) == ["short", "b", "a", "long"]
    assert (len(line), line.charge, line.first()) == (0, 0, None)


def test_who_waits_longer_goes_first_in_the_end() -> None:
    line = TenantLine()
    for name, tokens, submitted in (("long", 64_000, 0.0), ("early", 100, 0.9), ("late", 100, 1.1)):
        line.add(Waiting(name, tokens, submitted))
    assert taken(line) == ["early", "long", "late"]


def test_hits_are_found_by_themselves_and_in_their_place() -> None:
    line = TenantLine()
    line.add(Waiting("short", 10, 0.0))
    line.add(Waiting("hit", 0, 60.0))
    hit = line.first_hit()
    assert hit is not None
    assert hit.request_id == "hit"
    assert taken(line) == ["short", "hit"]


def test_the_youngest_is_the_last_to_arrive_of_those_there() -> None:
    line = TenantLine()
    for name in "abcd":
        line.add(Waiting(name, 1, 0.0))
    line.remove("d")
    line.remove("b")
    assert [item.request_id for item in line.youngest_first()] == ["c", "a"]


def test_an_id_may_come_again() -> None:
    line = TenantLine()
    line.add(Waiting("a", 1, 0.0))
    line.remove("a")
    line.add(Waiting("b", 2, 0.0, weight=3.0))
    line.add(Waiting("a", 5000, 0.0))
    assert taken(line) == ["b", "a"]


def test_removing_leaves_nothing_behind() -> None:
    line, rng = TenantLine(), random.Random(0)
    for i in range(5_000):
        line.add(Waiting(f"r{i}", rng.randrange(3), i / 1000))
        if i >= 10:
            line.remove(f"r{i - 10}")
    assert len(line._hits) + len(line._prefills) <= 2 * 10 + 64 + 1
    assert sorted(taken(line)) == sorted(f"r{i}" for i in range(4990, 5000))
