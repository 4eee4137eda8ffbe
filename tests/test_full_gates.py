from __future__ import annotations

from controllers.full_gates import REMEMBER_S, FullGates


def test_a_refusal_is_remembered_for_its_rank_and_tenant_and_not_for_long() -> None:
    gates = FullGates()
    gates.refused("a", 2, "t", now=5.0)
    assert gates.among("ab", 2, "t", 5.0) == {"a"}
    assert gates.among("ab", 0, "t", 5.0) == set()
    assert gates.among("ab", 2, "other", 5.0) == set()
    assert gates.among("b", 2, "t", 5.0) == set()
    assert gates.among("ab", 2, "t", 5.0 + REMEMBER_S) == set()


def test_what_is_over_is_forgotten() -> None:
    gates = FullGates()
    for i in range(5000):
        gates.refused(f"w{i}", 0, "t", now=float(i))
    assert len(gates._until) <= 1001
