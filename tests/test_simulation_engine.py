"""The simulated engine: iterations, pieces of prefill, admission, full hits."""

from __future__ import annotations

import math
from random import Random

import pytest

from controllers.errors import SettingsError
from controllers.events import EventBatch, Iteration
from controllers.simulation.cache import Ask
from controllers.simulation.cache_store import CacheShape
from controllers.simulation.engine import Engine, EngineShape, Job
from controllers.simulation.timing import (
    DYNAMO_MOCKER,
    TimingCurve,
    fit_curve,
    parse_curve,
)
from controllers.simulation.worker_log import WorkerLog
from tests.batches import load

PREFILL, DECODE = DYNAMO_MOCKER.prefill_ms, DYNAMO_MOCKER.decode_ms


def engine(num_blocks: int = 1000, **fields: object) -> Engine:
    return Engine(EngineShape(CacheShape(num_blocks), DYNAMO_MOCKER, 32, 1000, **fields))  # type: ignore[arg-type]


def job(index: int, tokens: int, output: int, keys: tuple[int, ...] = ()) -> Job:
    num_more = -(-tokens // 32) - 16 * len(keys) + -(-output // 32)
    return Job(index, tokens, output, Ask(keys, [16] * len(keys), num_more))


def run(served: Engine, *jobs: Job) -> dict[int, tuple[float, float]]:
    """By job: (first token, end), all submitted at 0."""
    served.waiting.extend(jobs)
    served.wake(0.0)
    first: dict[int, float] = {}
    end: dict[int, float] = {}
    while math.isfinite(served.end_ms):
        now = served.end_ms
        ended = served.finish()
        first |= {each.index: now for each in ended.first}
        end |= {each.index: now for each in ended.done}
        served.plan(now)
    return {index: (first[index], end[index]) for index in end}


def test_the_built_in_curve_is_that_of_dynamos_mocker() -> None:
    assert PREFILL(0) == 0.0
    for n in (1, 512, 8192):
        assert PREFILL(n) == pytest.approx(4.209989e-07 * n * n + 1.518344e-02 * n + 16.50142)
    assert DECODE(0.25) == pytest.approx(-25.74 * 0.0625 + 54.01 * 0.25 + 5.74)


def test_a_prompt_is_prefilled_in_pieces_and_then_decodes() -> None:
    served = engine()
    first, end = run(served, job(0, 20_000, 5))[0]
    prefill_ms = 2 * PREFILL(8192) + PREFILL(20_000 - 2 * 8192)
    assert first == pytest.approx(prefill_ms)
    assert end == pytest.approx(prefill_ms + 4 * DECODE(626 / 1000))
    assert served.prefill_ms == pytest.approx(prefill_ms)
    assert served.cache.num_used_blocks == served.num_running == 0


def test_prompts_that_fit_share_an_iteration_and_decodes_take_from_its_tokens() -> None:
    times = run(engine(), job(0, 1000, 2), job(1, 2000, 2))
    assert times[0][0] == times[1][0] == pytest.approx(PREFILL(3000))


def test_a_full_hit_costs_a_step_of_decoding() -> None:
    served = engine()
    run(served, job(0, 1024, 1, (16, 32)))
    served.waiting.append(job(1, 1024, 1, (16, 32)))
    served.wake(1000.0)
    assert served.end_ms == pytest.approx(1000.0 + DECODE(33 / 1000))
    assert served.cache.num_hit_blocks == 32


def test_a_request_that_does_not_fit_waits_for_room() -> None:
    times = run(engine(100), job(0, 1600, 64), job(1, 1600, 64))
    assert times[1][0] > times[0][1]


def test_alone_a_request_runs_whatever_it_needs() -> None:
    assert run(engine(10), job(0, 1600, 1))[0][1] == pytest.approx(PREFILL(1600))


def test_decoding_alone_is_one_run_that_a_request_cuts_short() -> None:
    served = engine()
    served.waiting.append(job(0, 64, 100))
    served.wake(0.0)
    start = served.end_ms
    served.finish()
    served.plan(start)
    step = DECODE(6 / 1000)
    assert served.end_ms == pytest.approx(start + 99 * step)
    served.waiting.append(job(1, 64, 1))
    served.wake(start + 2.5 * step)
    assert served.end_ms == pytest.approx(start + 3 * step)
    [prefill, decode] = served.take_iterations() + _after(served)
    assert (prefill.new_tokens, prefill.num_decodes, prefill.count) == (64, 0, 1)
    assert (decode.new_tokens, decode.num_decodes, decode.count) == (0, 1, 3)


def _after(served: Engine) -> list[Iteration]:
    served.finish()
    return served.take_iterations()


def test_no_more_sequences_than_allowed_run_together() -> None:
    times = run(engine(max_sequences=2), *(job(i, 64, 10) for i in range(3)))
    assert times[2][0] > min(times[0][1], times[1][1])


def test_what_is_aborted_leaves_with_the_iteration_and_its_blocks_stay_cached() -> None:
    served = engine(max_sequences=2)
    jobs = [job(0, 9000, 5), job(1, 600, 5, (7,)), job(2, 600, 5, (8,))]
    served.waiting.extend(jobs)
    served.wake(0.0)
    assert served.num_running == 1  # the first takes the whole iteration
    served.abort(jobs[0])
    served.abort(jobs[2])
    assert list(served.waiting) == jobs[1:2]
    now = served.end_ms
    assert served.finish() == ([], [])
    assert served.num_running == served.cache.num_used_blocks == 0
    assert served.cache.num_cached_blocks["gpu"] > 0
    served.plan(now)
    assert served.num_running == 1
    served.abort(jobs[1])
    served.abort(jobs[2])  # gone already
    assert served.finish() == ([], [])
    served.plan(now)
    assert math.isinf(served.end_ms)
    assert served.cache.num_in_use([7]) == 0
    assert served.cache.has_room(Ask([7], [16], 1000 - 16))


def test_a_curve_is_fitted_to_what_workers_report() -> None:
    log = WorkerLog("w0", CacheShape(1000))
    batches: list[EventBatch] = []
    for n in range(200):
        new, share = (n % 20) * 400, (n % 7) / 10
        ms = PREFILL(new) + DECODE(share)
        timing = Iteration(new, 3, int(share * 1000), ms)
        batches.append(log.batch([load(iterations=[timing])], 0.0))
    fitted = fit_curve(batches, 1000)
    for new in (1000, 5000):
        assert fitted.prefill_ms(new) == pytest.approx(PREFILL(new), rel=0.05)
    assert fitted.decode_ms(0.3) == pytest.approx(DECODE(0.3), rel=0.1)
    with pytest.raises(SettingsError, match="3 timings"):
        fit_curve(batches[:3], 1000)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_a_curve_is_fitted_to_iterations_of_512_tokens(noise: float, seed: int) -> None:
    """A laptop's: 3 ms for a token, of a cache that is never more than a quarter full. Larger
    iterations go on in proportion, and fuller caches as what was seen."""
    rng, log, batches = Random(seed), WorkerLog("w0", CacheShape(512)), []
    for _ in range(300):
        new = rng.choice([0, 0, 0, rng.randint(1, 512), 512])
        num_decodes, active = rng.choice([0, 2, 4]) if new else 2, rng.randint(4, 120)
        ms = (3.0 * new + 2.0 if new else 0.0) + (40.0 + active / 25 if num_decodes else 0.0)
        timing = Iteration(new, num_decodes, active, ms * max(0.3, rng.gauss(1.0, noise)))
        batches.append(log.batch([load(iterations=[timing])], 0.0))
    fitted = fit_curve(batches, 512)
    for new in (128, 512, 2048, 8192):
        assert fitted.prefill_ms(new) == pytest.approx(3.0 * new + 2.0, rel=0.05 + noise)
    assert fitted.max_tokens == 512
    assert fitted.decode_ms(1.0) == fitted.decode_ms(fitted.max_share) > 0.0
    assert fitted.prefill_ms(1) > 0.0
    rising = [fitted.prefill_ms(new) for new in range(1, 2000)]
    assert rising == sorted(rising)


def test_timings_without_prompts_or_without_decodes_are_too_few() -> None:
    log = WorkerLog("w0", CacheShape(512))
    for timing in (Iteration(0, 2, 10, 40.0), Iteration(100, 0, 0, 300.0)):
        batches = [log.batch([load(iterations=[timing])], 0.0) for _ in range(100)]
        with pytest.raises(SettingsError, match="100 timings .* with prompts and with decodes"):
            fit_curve(batches, 512)


def test_more_work_never_takes_less_time() -> None:
    """Both parabolas have their top at a half."""
    curve = TimingCurve((10.0, 100.0, -100.0), (5.0, 40.0, -40.0))
    assert [curve.prefill_ms(num) for num in (4096, 8192, 10**6)] == [35.0] * 3
    assert [curve.decode_ms(share) for share in (0.0, 0.5, 1.0, 50.0)] == [5.0, 15.0, 15.0, 15.0]
    assert DECODE(1.0) == DECODE(2.5) == DECODE(1e9) == pytest.approx(5.74 + 54.01 - 25.74)


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4,5,x", "1,2,3,4,5,nan", "1,2,3,4,5,6,7"])
def test_a_bad_curve_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="timing curve"):
        parse_curve(text)


def test_a_curve_by_which_work_takes_no_time_is_refused() -> None:
    assert parse_curve("1,2,3,4,5,6") == TimingCurve((1, 2, 3), (4, 5, 6))
    with pytest.raises(SettingsError, match="gives iterations of"):
        parse_curve("0,0,0,5,0,0")


def test_a_run_is_never_cut_in_the_past() -> None:
    """0.3 + 2 * 0.3 is a little less than 0.9: the iteration that ends there ends now."""
    curve = TimingCurve(prefill=(0.3, 0.0, 0.0), decode=(0.3, 0.0, 0.0))
    served = Engine(EngineShape(CacheShape(1000), curve, 32, 1000))
    served.waiting.append(job(0, 10, 1000))
    served.wake(0.0)
    served.finish()
    served.plan(0.3)
    served.waiting.append(job(1, 10, 2))
    served.wake(0.9)
    assert served.end_ms == 0.9
