"""Requests under learned retention: one plan for a worker, another for the next one, one end."""

from __future__ import annotations

from controllers.learned_retention import LearnedRetention
from controllers.prompt_use import PromptUse
from controllers.retention_plans import RetentionPlans

PROMPT = PromptUse(list(range(10)), 40, 4, "interactive")


def plans() -> tuple[LearnedRetention, RetentionPlans]:
    learned = LearnedRetention()
    learned.set_workers({"a": 100, "b": 100})
    return learned, RetentionPlans(learned)


def test_a_plan_stands_while_the_request_stays_with_the_worker() -> None:
    _, made = plans()
    assert made.current("r1", "a") is None
    plan = made.make("r1", PROMPT, "a", 1.0)
    assert plan.is_first
    assert made.current("r1", "a") is plan.retention
    assert made.current("r1", "b") is None
    assert len(made) == 1


def test_for_another_worker_the_same_use_is_planned_anew() -> None:
    _, made = plans()
    first = made.make("r1", PROMPT, "a", 1.0)
    second = made.make("r1", PROMPT, "b", 2.0)
    assert second.use is first.use
    assert (second.use.worker, second.is_first) == ("b", False)
    assert [run.num_uses for run in second.use.path] == [1]
    assert made.current("r1", "a") is None


def test_the_end_teaches_once() -> None:
    _, made = plans()
    plan = made.make("r1", PROMPT, "a", 1.0)
    assert made.end("r1", 0, 5.0) == plan
    assert plan.use.path[0].touch is not None
    assert plan.use.path[0].touch.at == 5.0
    assert made.end("r1", 0, 6.0) is None
    assert plan.use.path[0].touch.at == 5.0
    assert len(made) == 0


def test_of_a_request_that_no_worker_took_nothing_is_learned() -> None:
    learned, made = plans()
    assert made.end("r1", None, 1.0) is None
    assert learned.num_blocks == 0
