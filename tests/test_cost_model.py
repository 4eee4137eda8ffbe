from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from controllers.cost_model import (
    FLOOR_MS,
    MAX_SPEED_AGE_SAMPLES,
    MAX_TRACE,
    NUM_SURPRISES,
    PRIOR,
    CostModel,
)
from controllers.events import Iteration


class Engine(NamedTuple):
    """True timing in ms."""

    prefill_ms: Callable[[float], float]
    decode_ms: Callable[[float], float]
    max_batched_tokens: int
    num_blocks: int

    def iteration(self, rng: random.Random, noise: float, slow: float = 1.0) -> Iteration:
        new_tokens = rng.choice([0, 0, rng.randint(1, self.max_batched_tokens)])
        num_decodes = rng.choice([0, 4]) if new_tokens else 4
        active = rng.randint(0, self.num_blocks)
        ms = self.prefill_ms(new_tokens) if new_tokens else 0.0
        ms += self.decode_ms(active / self.num_blocks) if num_decodes else 0.0
        return Iteration(new_tokens, num_decodes, active, ms * slow * (1 + rng.gauss(0, noise)))


GPU = Engine(
    lambda n: 16.5 + 124.4 * n / 8192 + 28.3 * (n / 8192) ** 2,
    lambda p: 5.74 + 54.0 * p - 25.7 * p * p,
    8192,
    65_536,
)
CPU = Engine(lambda n: 3.0 * n + 2.0, lambda p: 40.0 + 20.0 * p, 512, 512)


def fitted(engine: Engine, num_samples: int, noise: float, seed: int = 0) -> CostModel:
    rng = random.Random(seed)
    model = CostModel(engine.max_batched_tokens)
    for i in range(num_samples):
        model.observe(f"w{i % 4}", engine.iteration(rng, noise), engine.num_blocks)
    return model


def errors_of(model: CostModel, engine: Engine) -> list[float]:
    """Relative errors at an eighth, a half and all of the range."""
    shares = (0.125, 0.5, 1.0)
    sizes = [share * engine.max_batched_tokens for share in shares]
    return [
        *(float(model.prefill_ms(n, 0.0, 1.0)) / engine.prefill_ms(n) - 1 for n in sizes),
        *(float(model.decode_ms(p, 1.0)) / engine.decode_ms(p) - 1 for p in shares),
    ]


def test_the_prior_is_a_gpu() -> None:
    model = CostModel(8192)
    assert model.coefficients == PRIOR
    assert float(model.prefill_ms(4096.0, 0.0, 1.0)) == 10.0 + 200.0 / 2
    assert float(model.decode_ms(0.5, 1.0)) == 10.0 + 30.0 / 2
    assert model.speed("unknown") == 1.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("engine", [GPU, CPU], ids=["gpu", "cpu"])
def test_it_converges_on_a_gpu_and_on_a_laptop(engine: Engine, seed: int) -> None:
    soon = max(abs(e) for e in errors_of(fitted(engine, 80, 0.02, seed), engine))
    later = max(abs(e) for e in errors_of(fitted(engine, 2_000, 0.02, seed), engine))
    assert soon < 0.2
    assert later < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_after_ten_samples_a_laptop_is_no_gpu_any_more(seed: int) -> None:
    model = fitted(CPU, 10, 0.02, seed)
    assert 0.5 < float(model.prefill_ms(512.0, 0.0, 1.0)) / CPU.prefill_ms(512) < 2.0


@pytest.mark.parametrize("seed", range(5))
def test_more_tokens_never_cost_less(seed: int) -> None:
    rng = random.Random(seed)
    model = CostModel(512)
    for _ in range(300):
        new_tokens = rng.choice([480, 500, 512])
        ms = CPU.prefill_ms(new_tokens) * max(0.3, rng.gauss(1.0, 0.25))
        model.observe("w", Iteration(new_tokens, 0, 0, ms), 512)
        curve = model.prefill_ms(np.array([1.0, 64.0, 256.0, 512.0, 513.0, 5000.0]), 0.0, 1.0)
        assert (np.diff(curve) >= 0).all()


def test_decode_stays_flat_beyond_what_was_seen() -> None:
    rng = random.Random(0)
    model = CostModel(512)
    for _ in range(300):
        active = rng.randint(0, 100)
        ms = CPU.decode_ms(active / 512) * rng.gauss(1.0, 0.2)
        model.observe("w", Iteration(0, 4, active, ms), 512)
    assert float(model.decode_ms(1.0, 1.0)) == float(model.decode_ms(100 / 512, 1.0))
    assert 20.0 < float(model.decode_ms(1.0, 1.0)) < 90.0


def test_prefill_is_cut_into_iterations_that_carry_decodes() -> None:
    model = CostModel(1024)
    whole, rest = 10.0 + 200.0, 10.0 + 200.0 / 2
    tokens = np.array([0.0, 1024.0, 1536.0, 2048.0])
    expected = [0.0, whole + 3, whole + rest + 6, 2 * whole + 6]
    assert model.prefill_ms(tokens, 3.0, 1.0).tolist() == expected
    by_worker = model.prefill_ms(tokens, np.array([0.0, 3.0, 3.0, 3.0]), np.array([1, 2, 2, 1.0]))
    assert by_worker.tolist() == [0.0, 2 * whole + 3, 2 * (whole + rest) + 6, 2 * whole + 6]


def test_nothing_costs_less_than_the_floor() -> None:
    model = CostModel(512)
    for _ in range(200):
        model.observe("w", Iteration(1, 0, 0, 0.001), 512)
        model.observe("w", Iteration(0, 1, 0, 0.001), 512)
    assert float(model.prefill_ms(1.0, 0.0, 1.0)) == FLOOR_MS
    assert float(model.decode_ms(0.0, 1.0)) == FLOOR_MS


def fitted_with_slow_w0(rng: random.Random, num_samples: int) -> CostModel:
    """Eight GPUs; the first takes three times as long."""
    model = CostModel(GPU.max_batched_tokens)
    for i in range(num_samples):
        slow = 3.0 if i % 8 == 0 else 1.0
        model.observe(f"w{i % 8}", GPU.iteration(rng, 0.02, slow), GPU.num_blocks)
    return model


def test_a_slow_worker_is_found_and_forgotten() -> None:
    model = fitted_with_slow_w0(random.Random(0), 2_000)
    ratio = model.speed("w0") / model.speed("w1")
    assert 2.0 < ratio < 4.0
    before = model.coefficients
    model.forget("w0")
    model.forget("nobody")
    assert model.speed("w0") == 1.0
    assert model.coefficients == before


@pytest.mark.parametrize("factor", [20.0, 3.0])
def test_a_worker_that_got_slow_is_known_at_once_and_so_is_its_recovery(factor: float) -> None:
    rng = random.Random(0)
    model = fitted(GPU, 4_000, 0.05)
    assert model.speed("w0") == 1.0
    for _ in range(NUM_SURPRISES):
        model.observe("w0", GPU.iteration(rng, 0.05, factor), GPU.num_blocks)
    assert 0.5 * factor < model.speed("w0") < 1.5 * factor
    assert model.speed("w1") == 1.0
    for _ in range(2 * NUM_SURPRISES):
        model.observe("w0", GPU.iteration(rng, 0.05), GPU.num_blocks)
    assert model.speed("w0") < 1.5


def test_a_few_slow_iterations_make_no_slow_worker() -> None:
    rng = random.Random(0)
    model = fitted(GPU, 4_000, 0.05)
    for i in range(400):
        slow = 10.0 if i % 100 < NUM_SURPRISES - 1 else 1.0
        model.observe("w0", GPU.iteration(rng, 0.05, slow), GPU.num_blocks)
    assert model.speed("w0") < 2.0


def test_a_speed_that_nothing_confirms_does_not_last() -> None:
    rng = random.Random(0)
    model = fitted_with_slow_w0(rng, 1_000)
    assert model.speed("w0") > 2.0
    for i in range(MAX_SPEED_AGE_SAMPLES + 8):
        model.observe(f"w{1 + i % 7}", GPU.iteration(rng, 0.02), GPU.num_blocks)
    assert model.speed("w0") == 1.0


def test_noise_makes_no_worker_the_fastest() -> None:
    model = fitted(GPU, 3_000, 0.05)
    assert [model.speed(f"w{i}") for i in range(4)] == [1.0] * 4


BAD = [
    Iteration(100, 0, 0, float("nan")),
    Iteration(100, 0, 0, float("inf")),
    Iteration(100, 0, 0, 0.0),
    Iteration(100, 0, 0, -5.0),
    Iteration(100, 0, 0, 600_001.0),
    Iteration(-1, 1, 0, 5.0),
    Iteration(0, -1, 0, 5.0),
    Iteration(0, 0, 0, 5.0),
    Iteration(10_000_001, 0, 0, 5.0),
    Iteration(100, 0, -1, 5.0),
]


def test_impossible_samples_are_counted_and_change_nothing() -> None:
    model = fitted(GPU, 50, 0.02)
    before = (model.coefficients, model.num_samples, model.speed("w0"))
    for i, sample in enumerate(BAD):
        model.observe("w0", sample, GPU.num_blocks)
        assert model.num_bad_samples == i + 1
    model.observe("w0", Iteration(100, 0, 0, 20.0), 0)
    assert model.num_bad_samples == len(BAD) + 1
    assert (model.coefficients, model.num_samples, model.speed("w0")) == before


def test_a_quiet_hour_does_not_blow_it_up() -> None:
    model = CostModel(8192)
    for _ in range(40_000):
        model.observe("w", Iteration(0, 4, 655, 6.0), 65_536)
    assert float(np.trace(model._covariance)) <= MAX_TRACE * (1 + 1e-9)
    assert abs(float(model.decode_ms(0.01, 1.0)) - 6.0) < 0.01
    rng = random.Random(0)
    for _ in range(100):
        model.observe("w", GPU.iteration(rng, 0.02), GPU.num_blocks)
    assert max(abs(e) for e in errors_of(model, GPU)) < 0.2


def test_a_covariance_that_is_no_longer_definite_starts_anew() -> None:
    model = fitted(GPU, 500, 0.02)
    before = model.coefficients
    model._covariance = -model._covariance
    model.observe("w0", Iteration(100, 0, 0, 18.0), GPU.num_blocks)
    assert model.coefficients == before
    for _ in range(50):
        model.observe("w0", Iteration(100, 0, 0, 18.0), GPU.num_blocks)
    assert abs(float(model.prefill_ms(100.0, 0.0, 1.0)) - 18.0) < 1.0


def test_curve_and_speeds_do_not_drift_apart() -> None:
    """One slow worker of four: half the curve and twice all speeds would explain it as well."""
    rng = random.Random(5)
    model = CostModel(8192)
    for _ in range(4000):
        for i, slowness in enumerate((3.0, 1.0, 1.0, 1.0)):
            new_tokens, active = rng.choice((0, 300, 2000, 8000)), rng.randrange(20_000)
            ms = 16.5 * (new_tokens > 0) + 124.0 * new_tokens / 8192 + 5.7 + 54.0 * active / 65_536
            sample = Iteration(new_tokens, 4, active, ms * slowness * rng.uniform(0.9, 1.1), 1)
            model.observe(f"w{i}", sample, 65_536)
    assert [model.speed(f"w{i}") for i in (1, 2, 3)] == [1.0, 1.0, 1.0]
    assert model.speed("w0") == pytest.approx(3.0, rel=0.05)
    assert float(model.prefill_ms(8192.0, 0.0, 1.0)) == pytest.approx(140.5, rel=0.03)


def test_a_worker_of_another_speed_teaches_the_curve_nothing() -> None:
    model = CostModel(8192)
    for _ in range(60):
        for worker, ms in (("w0", 50.0), ("w1", 50.0), ("w2", 200.0)):
            model.observe(worker, Iteration(2000, 0, 0, ms, 1), 1000)
    before = model.coefficients
    assert model.speed("w2") > 2.5
    model.observe("w2", Iteration(2000, 0, 0, 400.0, 1), 1000)
    assert model.coefficients == before
