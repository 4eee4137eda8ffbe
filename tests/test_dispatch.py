"""When requests that wait are sent, by a real Placement."""

from __future__ import annotations

import math

import msgspec
import pytest

from controllers.dispatch import MIN_PAUSE_S, RUN_EVERY_S
from controllers.errors import NotReady, Overloaded
from controllers.placement_types import PlacementSettings, Refused, Sent
from controllers.starting import Rules, piece_tokens, rules_of
from tests.placement_rig import BLOCK, Fleet, load


def prompt(number: int, num_blocks: int = 200) -> list[int]:
    """Of its own; longer than what may share a start, shorter than a piece."""
    return [number * 100_000 + at for at in range(num_blocks)]


def submit(fleet: Fleet, name: str, hashes: list[int], **fields: object) -> None:
    fleet.placement.submit(fleet.query(hashes, request_id=name, **fields), fleet.now)


def run(fleet: Fleet) -> dict[str, str]:
    """Who was sent where, in order."""
    results = fleet.placement.run(fleet.table, fleet.now)
    assert all(isinstance(result, Sent) for result in results)
    return {r.request_id: r.placed.worker for r in results if isinstance(r, Sent)}


def test_one_waits_until_the_one_before_has_its_first_token() -> None:
    fleet = Fleet(1)
    submit(fleet, "one", prompt(1))
    submit(fleet, "two", prompt(2))
    assert run(fleet) == {"one": "r0-0"}
    assert (fleet.placement.num_reserved, fleet.placement.num_waiting) == (1, 1)
    assert run(fleet) == {}
    fleet.placement.first_token("one", fleet.now)
    assert run(fleet) == {"two": "r0-0"}
    assert (fleet.placement.num_reserved, fleet.placement.num_waiting) == (2, 0)


def test_without_holding_all_go_at_once() -> None:
    fleet = Fleet(1, hold=False)
    for number in range(3):
        submit(fleet, f"q{number}", prompt(number))
    assert set(run(fleet)) == {"q0", "q1", "q2"}


def test_short_prompts_start_together_up_to_a_number_of_tokens() -> None:
    fleet = Fleet(1)
    for number in range(5):  # 327 tokens each, of 1,536
        submit(fleet, f"q{number}", prompt(number, 10))
    assert set(run(fleet)) == {"q0", "q1", "q2", "q3"}


def test_the_shortest_goes_first_but_waiting_counts() -> None:
    fleet = Fleet(1)
    submit(fleet, "long", prompt(1, 250))
    submit(fleet, "short", prompt(2, 150))
    assert list(run(fleet)) == ["short"]
    fleet.placement.release("short", fleet.now)
    patient = fleet.query(prompt(3, 250), request_id="patient")
    fleet.placement.release("long", fleet.now)
    fleet.placement.submit(patient, fleet.now, since_s=fleet.now - 10.0)
    submit(fleet, "short", prompt(4, 150))
    assert list(run(fleet)) == ["patient"]


def test_the_longest_of_a_burst_does_not_wait_for_the_shortest() -> None:
    """With four for three workers one of them waits: one that the shortest goes before."""
    fleet = Fleet(3)
    for name, num_blocks in (("long", 1000), ("short", 150), ("middle", 160), ("longer", 170)):
        submit(fleet, name, prompt(num_blocks, num_blocks))
    sent = run(fleet)
    assert list(sent) == ["long", "longer", "short"]
    assert len(set(sent.values())) == 3
    fleet.now += 0.1
    fleet.placement.first_token("short", fleet.now)
    assert run(fleet) == {"middle": sent["short"]}


def test_the_longest_of_a_burst_leaves_a_worker_to_the_turn_whose_prefix_is_there() -> None:
    for seed in range(8):
        fleet = Fleet(3, seed=seed)
        fleet.store("r1-0", prompt(1, 200))
        submit(fleet, "long", prompt(2, 1000))
        submit(fleet, "turn", [*prompt(1, 200), *prompt(3, 100)])
        sent = run(fleet)
        assert sent["turn"] == "r1-0"
        assert sent["long"] != "r1-0"


def test_in_a_burst_a_better_rank_still_goes_first() -> None:
    fleet = Fleet(2)
    submit(fleet, "batch", prompt(1, 1000), rank=2)
    submit(fleet, "chat", prompt(2, 150))
    submit(fleet, "longer chat", prompt(3, 160))
    assert list(run(fleet)) == ["longer chat", "chat"]


def test_in_a_burst_nobody_is_refused_so_that_a_longer_one_can_start() -> None:
    fleet = Fleet(2)
    submit(fleet, "long", prompt(1, 1000))
    submit(fleet, "short", prompt(2, 100))
    submit(fleet, "middle", prompt(3, 150), max_ttft_ms=200.0)
    assert list(run(fleet)) == ["short", "middle"]
    assert fleet.placement.num_waiting == 1


def test_in_a_burst_workers_that_take_nobody_do_not_count() -> None:
    fleet = Fleet(4)
    for name, num_blocks in (("long", 1000), ("short", 100), ("middle", 150)):
        submit(fleet, name, prompt(num_blocks, num_blocks))
    results = fleet.placement.run(fleet.table, fleet.now, lambda query: {"r2-0", "r3-0"})
    assert [result.request_id for result in results] == ["long", "short"]


def test_in_a_burst_the_pinned_one_has_its_worker_to_itself() -> None:
    for seed in range(8):
        fleet = Fleet(3, seed=seed)
        submit(fleet, "long", prompt(1, 1000))
        submit(fleet, "pinned", prompt(2, 100), pinned="r0-0")
        sent = run(fleet)
        assert sent["pinned"] == "r0-0"
        assert sent["long"] != "r0-0"


def test_in_a_burst_a_long_one_does_not_use_up_its_tenants_turn() -> None:
    fleet = Fleet(3)
    submit(fleet, "long", prompt(1, 1000), tenant="a")
    submit(fleet, "short", prompt(2, 60), tenant="a")
    submit(fleet, "middle", prompt(3, 200), tenant="b")
    submit(fleet, "longer", prompt(4, 240), tenant="b")
    assert list(run(fleet)) == ["short", "longer", "long"]


def test_in_a_burst_those_that_share_a_prefix_take_all_workers_that_have_it() -> None:
    fleet = Fleet(4)
    for worker in ("r0-0", "r1-0"):
        fleet.store(worker, prompt(1, 400))
    for number in (2, 3):
        submit(fleet, f"turn {number}", [*prompt(1, 400), *prompt(number, 160)])
    for name, num_blocks in (("short", 60), ("middle", 70), ("long", 1000)):
        submit(fleet, name, prompt(num_blocks, num_blocks))
    sent = run(fleet)
    assert list(sent) == ["turn 2", "turn 3", "long", "short"]
    assert len(set(sent.values())) == 4


def test_where_room_is_missing_the_shortest_goes_first() -> None:
    fleet = Fleet(2, max_running=1)
    submit(fleet, "runs", prompt(1))
    run(fleet)
    fleet.placement.first_token("runs", fleet.now)
    submit(fleet, "long", prompt(2, 1000))
    submit(fleet, "short", prompt(3, 150))
    assert list(run(fleet)) == ["short"]
    fleet.placement.release("runs", fleet.now)
    assert list(run(fleet)) == ["long"]


def test_a_better_rank_goes_first_and_passes_what_waits() -> None:
    fleet = Fleet(1)
    submit(fleet, "batch", prompt(1, 150), rank=2)
    submit(fleet, "chat", prompt(2, 250), rank=0)
    assert run(fleet) == {"chat": "r0-0"}
    fleet.placement.release("chat", fleet.now)
    assert run(fleet) == {"batch": "r0-0"}
    submit(fleet, "chat", prompt(3), rank=0)  # the gate lets it pass the unstarted batch
    assert run(fleet) == {"chat": "r0-0"}


def test_a_pinned_one_is_not_held() -> None:
    fleet = Fleet(2)
    submit(fleet, "one", prompt(1), pinned="r1-0")
    submit(fleet, "two", prompt(2), pinned="r1-0")
    assert run(fleet) == {"one": "r1-0", "two": "r1-0"}


def test_who_waits_for_a_worker_keeps_its_time() -> None:
    """Another long one would come after it and after what runs, so it takes the other worker."""
    fleet = Fleet(2)
    submit(fleet, "one", prompt(1))
    submit(fleet, "two", prompt(2))
    submit(fleet, "three", prompt(3))
    submit(fleet, "four", prompt(4))
    assert sorted(run(fleet).values()) == ["r0-0", "r1-0"]
    assert fleet.placement.num_waiting == 2
    for name in ("one", "two", "three", "four"):
        fleet.placement.first_token(name, fleet.now)
    assert sorted(run(fleet).values()) == ["r0-0", "r1-0"]


def test_a_long_prompt_goes_out_in_pieces() -> None:
    fleet = Fleet(1)
    hashes = prompt(1, 2000)
    submit(fleet, "long", hashes)
    (sent,) = fleet.placement.run(fleet.table, fleet.now)
    assert isinstance(sent, Sent)
    slice_tokens = rules_of(fleet.settings, 8192, math.inf).slice_tokens
    assert sent.num_tokens == slice_tokens - slice_tokens % BLOCK
    assert sent.placed.predicted_service_ms < sent.placed.predicted_ttft_ms
    submit(fleet, "long", hashes, is_whole=True)
    (whole,) = fleet.placement.run(fleet.table, fleet.now)
    assert isinstance(whole, Sent)
    assert whole.num_tokens is None


@pytest.mark.parametrize(
    ("num_tokens", "cached", "slice_tokens", "expected"),
    [
        (10_000, 0, 0, None),  # pieces are off
        (1_500, 0, 1000, None),  # not much longer than a piece
        (1_501, 0, 1000, 992),  # whole blocks
        (10_000, 9_000, 1000, None),  # most of it is cached
        (10_000, 3_200, 1000, 4_192),
    ],
)
def test_pieces(num_tokens: int, cached: int, slice_tokens: int, expected: int | None) -> None:
    assert piece_tokens(num_tokens, cached, BLOCK, slice_tokens) == expected


def test_rules() -> None:
    settings = PlacementSettings(slice_iterations=2)
    assert rules_of(settings, 8192, 256) == Rules(True, 1536, 2 * (8192 - 256))
    assert rules_of(settings, 8192, math.inf).slice_tokens == 8192
    random = msgspec.structs.replace(settings, policy="random", slice_iterations=0)
    assert rules_of(random, 8192, 256) == Rules(False, 1536, 0)


def test_who_cannot_be_sent_is_refused_and_waits_no_longer() -> None:
    fleet = Fleet(1)
    submit(fleet, "one", prompt(1))
    submit(fleet, "late", prompt(2), max_ttft_ms=1.0)
    sent, refused = fleet.placement.run(fleet.table, fleet.now)
    assert (sent.request_id, refused.request_id) == ("one", "late")
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, Overloaded)
    submit(fleet, "nowhere", prompt(3))
    (refused,) = fleet.placement.run(fleet.table, fleet.now, lambda query: fleet.workers)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, NotReady)
    assert (fleet.placement.num_reserved, fleet.placement.num_waiting) == (1, 0)


def test_a_full_batch_lets_nobody_in() -> None:
    fleet = Fleet(1, max_running=1)
    submit(fleet, "one", prompt(1))
    assert run(fleet) == {"one": "r0-0"}
    fleet.placement.first_token("one", fleet.now)
    submit(fleet, "two", prompt(2))
    assert run(fleet) == {}
    fleet.placement.release("one", fleet.now)
    assert run(fleet) == {"two": "r0-0"}


def test_wake() -> None:
    fleet = Fleet(1)
    assert fleet.placement.wake_s(fleet.now) is None
    submit(fleet, "one", prompt(1, 140))
    submit(fleet, "two", prompt(2, 140))
    (sent,) = fleet.placement.run(fleet.table, fleet.now)
    assert isinstance(sent, Sent)
    ends_s = fleet.now + sent.placed.predicted_service_ms / 1000.0
    assert fleet.placement.wake_s(fleet.now) == fleet.now + RUN_EVERY_S
    assert fleet.placement.wake_s(ends_s - 0.05) == pytest.approx(ends_s)
    assert fleet.placement.wake_s(ends_s - 1e-6) == pytest.approx(ends_s + MIN_PAUSE_S, abs=2e-6)
    assert fleet.placement.wake_s(ends_s + 1.0) == ends_s + 1.0 + RUN_EVERY_S


def test_loads_change_nothing_about_who_waits() -> None:
    fleet = Fleet(1)
    submit(fleet, "one", prompt(1))
    fleet.placement.on_load("r0-0", load(), fleet.now)
    assert (fleet.placement.num_reserved, fleet.placement.num_waiting) == (0, 1)


def test_a_worker_that_hangs_is_not_sent_everything_that_waits() -> None:
    fleet = Fleet(1)
    sent = []
    for number in range(5):
        submit(fleet, f"q{number}", prompt(number))
        sent.append(list(run(fleet)))
        fleet.now += 60.0  # long after its first token was expected
    assert sent == [["q0"], ["q1"], ["q2"], [], []]
    for number in range(3):
        fleet.placement.first_token(f"q{number}", fleet.now)
    assert len(run(fleet)) == 1
