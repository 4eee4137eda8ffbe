"""The formulas of other projects, on figures worked out by hand."""

from __future__ import annotations

import pytest

from controllers.errors import SettingsError
from controllers.simulation.peers import PEERS, Sight, formula_of
from tests.simulation_rig import sessions, simulated

SIGHT = Sight(
    num_tokens=330,  # 11 blocks
    block_size=32,
    num_before=4,
    matched_blocks=[10, 0, 4],
    queued_tokens=[640, 0, 320],
    num_requests=[5, 1, 3],
    prompt_blocks=[50, 10, 30],
    shared_blocks=[6, 0, 0],
    used_share=[0.5, 0.1, 0.2],
)


def test_dynamo() -> None:
    # (queued + uncached + reused) / 32 - credit x matched, + prompt blocks + 11 - shared
    prefill = [(640 + 330) / 32, 330 / 32, (320 + 330) / 32]
    assert formula_of("dynamo")(SIGHT) == pytest.approx(
        [prefill[0] - 10 + 55, prefill[1] + 21, prefill[2] - 4 + 41]
    )
    assert formula_of("dynamo_tuned")(SIGHT) == pytest.approx(
        [
            32 * (prefill[0] - 20) + 55 + 32 * 5,
            32 * prefill[1] + 21 + 32,
            32 * (prefill[2] - 8) + 41 + 32 * 3,
        ]
    )


def test_llmd() -> None:
    assert formula_of("llmd")(SIGHT) == pytest.approx(
        [-3 * 10 / 11 - 0 - 1.0, 0 - 2 - 1.8, -3 * 4 / 11 - 1 - 1.6]
    )
    level = SIGHT._replace(queued_tokens=[7, 7, 7])
    assert formula_of("llmd:0/2/0")(level) == [-2.0, -2.0, -2.0]


def test_sglang_follows_the_match_unless_it_is_short_or_loads_are_uneven() -> None:
    formula = formula_of("sglang")
    assert formula(SIGHT) == [5 - 1e5, 1, 3 - 4e4]
    assert formula(SIGHT._replace(matched_blocks=[3, 0, 0])) == [5, 1, 3]
    assert formula(SIGHT._replace(num_requests=[80, 1, 3])) == [80, 1, 3]


def test_the_shorter_ones() -> None:
    assert formula_of("trtllm")(SIGHT) == [1.25 - 10, 0.25, 0.75 - 4]
    assert formula_of("mooncake")(SIGHT) == [320 + 10, 330, 160 + 202]
    assert formula_of("lmetric")(SIGHT) == [11 * 6, 331 * 2, 203 * 4]
    assert formula_of("least_requests")(SIGHT) == [5, 1, 3]
    assert formula_of("round_robin")(SIGHT) == [2, 0, 1]  # four were sent: the next is 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        "kv",
        "dynamo:",
        "dynamo:1/2",
        "mooncake:x",
        "lmetric:1",
        "dynamo:nan/nan/nan",
        "dynamo:1/inf/0",
        "llmd:1e308/-1e308/1",
    ],
)
def test_an_unknown_router_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match="router"):
        formula_of(name)


@pytest.mark.parametrize("router", [name for name in PEERS if name != "trtllm"])
def test_every_peer_uses_every_worker_under_load(router: str) -> None:
    run = simulated(sessions(80), router)
    assert set(run.worker.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dynamo:1/2", "dynamo takes 3 numbers, its own are dynamo:1/1/0"),
        ("lmetric:1", "lmetric takes no weights"),
    ],
)
def test_how_weights_are_given_is_shown(name: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        formula_of(name)


def test_own_weights() -> None:
    assert formula_of("trtllm_old:0")(SIGHT) == formula_of("trtllm_old:1")(SIGHT)
    assert formula_of("dynamo:2/32/32")(SIGHT) == formula_of("dynamo_tuned")(SIGHT)
