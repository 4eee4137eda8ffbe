"""What prompts would lose where their plans are refused."""

from __future__ import annotations

import random

import pytest

from controllers.learned_retention import LearnedRetention
from controllers.prompt_use import PromptUse
from controllers.refusals import Refusals

B = 4
FULL, EMPTY = "full:0", "empty:0"
START_S = 6_000.0


def prompt(tokens: list[int], kind: str = "agent", **more: object) -> PromptUse:
    hashes, at = [], 0
    for token in tokens:
        at = hash((at, token))
        hashes.append(at)
    return PromptUse(hashes, B * len(tokens) + 1, B, kind, "a", **more)  # type: ignore[arg-type]


OLD, NEW = prompt([7777, *range(19)]), prompt([8888, *range(9)])


def serve(learned: LearnedRetention, use: PromptUse, worker: str, now: float) -> int:
    """Returns the blocks that were refused."""
    under_way = learned.use(use, now)
    learned.promise(under_way, worker, now)
    learned.finished(under_way, None, now)
    learned.fit_if_due(now)
    return under_way.num_refused


def taught() -> LearnedRetention:
    """Agents come again after 5 s two times of three, documents never."""
    learned = LearnedRetention()
    for i in range(60):
        for turn in range(3):
            serve(learned, prompt([i, *range(turn + 2)]), "none", 100.0 * i + 5.0 * turn)
        serve(learned, prompt([1000 + i, 1, 2], "document"), "none", 100.0 * i + 50.0)
    learned.fit_if_due(START_S)
    return learned


def crowded(num_blocks: int = 25) -> tuple[LearnedRetention, Refusals]:
    """One of two workers has promised 20 of the 21 blocks that it may."""
    learned = taught()
    learned.set_workers({FULL: num_blocks, EMPTY: num_blocks})
    assert serve(learned, OLD, FULL, START_S) == 0
    return learned, Refusals(learned)


def chance(learned: LearnedRetention, kind: str = "agent", idle_s: float = 0.0) -> float:
    """Of a prompt that is new."""
    survival = learned.survival
    return survival.chance_after(survival.class_of(kind, "a", 1), idle_s)


def test_what_a_plan_refuses_is_lost_as_far_as_it_comes_again() -> None:
    learned, refusals = crowded()
    lost = refusals.lost_tokens(NEW, START_S + 1.0)
    assert lost == {FULL: pytest.approx(9 * B * chance(learned))}
    assert lost[FULL] == pytest.approx(9 * B * 0.62, rel=0.01)
    assert serve(learned, NEW, FULL, START_S + 1.0) == 9


@pytest.mark.parametrize("seed", range(3))
def test_plans_refuse_where_a_loss_was_expected(seed: int) -> None:
    """Conversations that go on, and others that have their first words in common with them."""
    rng = random.Random(seed)
    learned = taught()
    learned.set_workers({FULL: 100})
    refusals = Refusals(learned)
    turns = [[rng.randrange(5), number] for number in range(20)]
    outcomes = []
    for step in range(400):
        now = START_S + 0.7 * step
        tokens = rng.choice(turns)
        tokens.extend(rng.randrange(1000) for _ in range(rng.randrange(6)))
        use = prompt(tokens, rng.choice(["agent", "agent", "document"]))
        lost = refusals.lost_tokens(use, now)
        num_refused = serve(learned, use, FULL, now)
        outcomes.append((num_refused > 0, bool(lost)))
        learned.removed(FULL, use.hashes[len(use.hashes) - num_refused :], now)
        if len(tokens) > 40:
            del tokens[2:]
    assert 50 < sum(is_refused for is_refused, _ in outcomes) < 350
    num_wrong = sum(is_refused != is_lost for is_refused, is_lost in outcomes)
    assert num_wrong <= 20  # one more use can make a run be worth another level


def test_what_never_comes_again_is_no_loss() -> None:
    learned, refusals = crowded()
    document = prompt([9999, *range(9)], "document")
    lost = refusals.lost_tokens(document, START_S)
    assert lost == {FULL: pytest.approx(9 * B * chance(learned, "document"))}
    assert lost[FULL] < 0.05 * 9 * B
    assert refusals.lost_tokens(prompt([9999, *range(9)], is_kept=False), START_S) == {}


def test_nothing_is_lost_where_there_is_room() -> None:
    _, refusals = crowded(num_blocks=100)
    assert refusals.lost_tokens(NEW, START_S) == {}


def test_room_of_its_own_is_the_prompts_again() -> None:
    learned, refusals = crowded()
    longer = prompt([7777, *range(20)])
    assert refusals.lost_tokens(longer, START_S) == {}
    much_longer = prompt([7777, *range(29)])
    lost = refusals.lost_tokens(much_longer, START_S)
    assert lost == {name: pytest.approx(9 * B * chance(learned)) for name in (FULL, EMPTY)}


def test_room_comes_free_when_guards_end_and_blocks_go() -> None:
    learned, refusals = crowded()
    assert refusals.lost_tokens(NEW, START_S + 1000.0) == {}
    learned, refusals = crowded()
    learned.removed(FULL, OLD.hashes[10:], START_S)
    assert refusals.lost_tokens(NEW, START_S) == {}


def test_asking_changes_nothing() -> None:
    learned, refusals = crowded()
    grants = [dict(run.grants) for run, _ in learned.known_runs(OLD.hashes)]
    num_blocks = learned.num_blocks
    for use in (OLD, NEW, prompt([7777, 1, 2, 3], "document")):
        refusals.lost_tokens(use, START_S + 1.0)
    assert [dict(run.grants) for run, _ in learned.known_runs(OLD.hashes)] == grants
    assert learned.num_blocks == num_blocks
    assert serve(learned, OLD, FULL, START_S + 1.0) == 0


def test_unpromised_blocks_that_stay_until_they_are_used_are_not_lost() -> None:
    """They are seen to be evicted when they have been idle for much longer than agents take."""
    learned, refusals = crowded()
    before = refusals.lost_tokens(NEW, START_S)
    serve(learned, prompt([6666, *range(9)]), FULL, START_S - 100.0)  # 9 blocks are refused
    refusals.removed(FULL, prompt([6666, *range(9)]).hashes[-1:], START_S)
    lost = refusals.lost_tokens(NEW, START_S)
    assert lost == {FULL: pytest.approx(9 * B * chance(learned, idle_s=100.0))}
    assert lost[FULL] < 0.001 * before[FULL]


def test_workers_that_are_gone_are_forgotten() -> None:
    learned, refusals = crowded()
    gone = prompt([6666, *range(9)])
    serve(learned, gone, FULL, START_S)
    for names in ([FULL, EMPTY], [EMPTY, "new:0"]):
        learned.set_workers(dict.fromkeys(names, 25))
        for worker in ("stranger:0", *names):
            refusals.removed(worker, gone.hashes[-1:], START_S + 100.0)
    assert refusals._stay_s == {EMPTY: 100.0, "new:0": 100.0}


def test_what_was_promised_or_is_not_known_says_nothing_of_how_long_others_stay() -> None:
    learned, refusals = crowded()
    before = refusals.lost_tokens(NEW, START_S)
    refusals.removed(FULL, [12345, OLD.hashes[-1]], START_S + 1.0)
    refusals.removed(FULL, OLD.hashes[-1:], START_S + 1.0)
    assert refusals.lost_tokens(NEW, START_S) == before


def test_a_ceiling_that_forbids_promises_loses_the_same_everywhere() -> None:
    learned, refusals = crowded()
    lost = refusals.lost_tokens(prompt([8888, *range(29)], ceiling=35), START_S)
    assert lost == {name: pytest.approx(30 * B * chance(learned)) for name in (FULL, EMPTY)}
