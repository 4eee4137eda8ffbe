from __future__ import annotations

import random
from collections import Counter

from controllers.tenant_ring import TenantRing
from controllers.waiting import Waiting

QUANTUM = 1000


def taken(ring: TenantRing, most: int = 10**9) -> list[Waiting]:
    order: list[Waiting] = []
    while len(order) < most and (item := ring.first()) is not None:
        assert ring.first() is item
        ring.take(item)
        order.append(item)
    return order


def fill(ring: TenantRing, tenant: str, costs: list[int], weight: float = 1.0) -> None:
    for i, tokens in enumerate(costs):
        ring.add(Waiting(f"{tenant}{i}", tokens, 0.0, tenant=tenant, weight=weight))


def test_tenants_take_turns_of_a_quantum() -> None:
    ring = TenantRing(QUANTUM)
    fill(ring, "a", [400] * 4)
    fill(ring, "b", [1000, 500])
    assert "".join(item.tenant for item in taken(ring)) == "aabaab"
    assert (ring.num_waiting, ring.tokens, ring.first()) == (0, 0, None)


def test_shares_follow_weights_within_a_quantum_and_a_request() -> None:
    rng = random.Random(1)
    weights = {"a": 3.0, "b": 1.0, "c": 0.5}
    ring = TenantRing(QUANTUM)
    for tenant, weight in weights.items():
        fill(ring, tenant, [rng.randrange(1, 2500) for _ in range(3000)], weight)
    shares = dict.fromkeys(weights, 0.0)
    for item in taken(ring, 2500):
        shares[item.tenant] += item.charge / item.weight
        # A request of 2,500 tokens is 5,000 of c's weight.
        assert max(shares.values()) - min(shares.values()) <= 2 * QUANTUM + 2500 + 5000
    assert min(shares.values()) > 100 * QUANTUM


def test_a_prompt_of_many_quanta_has_its_turn_without_as_many_steps() -> None:
    ring = TenantRing(1)
    fill(ring, "huge", [10**9], weight=0.01)
    fill(ring, "small", [10**8] * 3, weight=0.01)
    assert [item.tenant for item in taken(ring)] == ["small", "small", "small", "huge"]


def test_skipping_rounds_gives_the_order_of_taking_them() -> None:
    def order(quantum: int) -> list[str]:
        rng = random.Random(3)
        ring = TenantRing(quantum)
        for tenant, weight in (("a", 1.0), ("b", 2.0), ("c", 5.0)):
            fill(ring, tenant, [rng.randrange(1, 40) * 100 for _ in range(50)], weight)
        return [item.request_id for item in taken(ring)]

    assert order(7) == order(7)
    by_hand = _plain_rounds(7)
    assert order(7) == by_hand


def _plain_rounds(quantum: int) -> list[str]:
    """The textbook's deficit round robin, a round at a time."""
    rng = random.Random(3)
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    lines = {
        tenant: sorted(((rng.randrange(1, 40) * 100, i) for i in range(50)), key=lambda cost: cost)
        for tenant in weights
    }
    credit = dict.fromkeys(weights, 0.0)
    order = []
    while any(lines.values()):
        for tenant, costs in lines.items():
            if not costs:
                continue
            credit[tenant] += quantum * weights[tenant]
            while costs and credit[tenant] >= costs[0][0]:
                cost, i = costs.pop(0)
                credit[tenant] -= cost
                order.append(f"{tenant}{i}")
    return order


def test_credit_is_not_saved_by_waiting_for_nothing() -> None:
    ring = TenantRing(QUANTUM)
    fill(ring, "a", [10])
    taken(ring)
    fill(ring, "b", [600] * 20)
    taken(ring, 10)
    fill(ring, "a", [600] * 20)
    assert Counter(item.tenant for item in taken(ring, 10)) == {"a": 5, "b": 5}


def test_hits_pass_by_credit_and_are_paid_for() -> None:
    ring = TenantRing(QUANTUM)
    for tenant in "ab":
        fill(ring, tenant, [5000])
        for i in range(40):
            ring.add(Waiting(f"{tenant}-hit{i}", 0, 1.0, tenant=tenant))
    tenants: Counter[str] = Counter()
    for _ in range(20):
        hit = ring.first_hit()
        assert hit is not None
        ring.take(hit)
        tenants[hit.tenant] += 1
    assert tenants == {"a": 10, "b": 10}


def test_who_leaves_is_not_paid_for_and_takes_no_turn_along() -> None:
    ring = TenantRing(QUANTUM)
    fill(ring, "a", [900, 900])
    fill(ring, "b", [900])
    first = ring.first()
    assert first is not None
    assert first.request_id == "a0"
    ring.remove(first)
    assert [item.request_id for item in taken(ring)] == ["a1", "b0"]
