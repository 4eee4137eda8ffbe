from __future__ import annotations

from controllers.suspects import Suspects

ALL = ["a", "b", "c"]


def test_a_worker_is_suspected_for_a_while_after_its_last_failure() -> None:
    suspects = Suspects(5.0)
    suspects.fail("a", 10.0)
    suspects.fail("a", 12.0)
    assert suspects.among(ALL, 16.9) == {"a"}
    assert suspects.among(ALL, 17.0) == set()


def test_one_that_works_again_is_cleared() -> None:
    suspects = Suspects(5.0)
    suspects.fail("a", 10.0)
    suspects.fail("b", 10.0)
    suspects.clear("a")
    suspects.clear("unknown")
    assert suspects.among(ALL, 10.0) == {"b"}


def test_when_all_are_suspected_none_is() -> None:
    suspects = Suspects(5.0)
    for worker in ALL:
        suspects.fail(worker, 10.0)
    assert suspects.among(ALL, 10.0) == set()
    assert suspects.among(["a"], 10.0) == set()
    assert suspects.among([*ALL, "d"], 10.0) == set(ALL)


def test_only_those_asked_about_count() -> None:
    suspects = Suspects(5.0)
    suspects.fail("gone", 10.0)
    assert suspects.among(ALL, 10.0) == set()
