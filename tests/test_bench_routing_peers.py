from __future__ import annotations

import json

from bench.routing_peers import mean_of, mooncake_lines, timed
from controllers.simulation.trace import Row, arrivals_ms, build

ROWS = [
    Row(timestamp=2000.0, input_length=700, output_length=3, hash_ids=[7, 9]),
    Row(timestamp=0.0, input_length=1100, output_length=0, hash_ids=[7, 8]),
    Row(timestamp=500.0, input_length=512, output_length=1, hash_ids=[7]),
]


def test_arrivals_are_those_of_the_simulator() -> None:
    found = timed(ROWS, 32, speedup=2.0, jitter=0.01, seed=5)
    expected = arrivals_ms(build(ROWS, 32), 2.0, 0.01, 5).tolist()
    assert [row.timestamp for row in found] == expected
    assert [row.input_length for row in found] == [1100, 512, 700]
    assert [row.timestamp for row in timed(ROWS, 32, 1.0, 0.0, 0)] == [0.0, 500.0, 2000.0]


def test_a_partial_last_block_without_an_id_gets_its_own() -> None:
    assert [json.loads(line) for line in mooncake_lines(ROWS)] == [
        {"timestamp": 2000.0, "input_length": 700, "output_length": 3, "hash_ids": [7, 9]},
        {"timestamp": 0.0, "input_length": 1100, "output_length": 1, "hash_ids": [7, 8, 10]},
        {"timestamp": 500.0, "input_length": 512, "output_length": 1, "hash_ids": [7]},
    ]


def test_means_over_runs() -> None:
    runs = [
        {"version": "1", "num_requests": 2, "reuse": 0.5, "ttft_ms": {"mean": 1.0}},
        {"version": "1", "num_requests": 2, "reuse": 0.7, "ttft_ms": {"mean": 4.0}},
    ]
    assert mean_of(runs) == {
        "version": "1",
        "num_requests": 2,
        "reuse": 0.6,
        "ttft_ms": {"mean": 2.5},
    }
