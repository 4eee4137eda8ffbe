"""Rows of a trace to requests: forms, sharing, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from controllers.errors import SettingsError
from controllers.retention import Spans
from controllers.routing_table import RoutingTable
from controllers.simulation.cache import Ask, Cache
from controllers.simulation.cache_store import CacheShape
from controllers.simulation.prompt_blocks import PrefixTable, PromptBlocks
from controllers.simulation.trace import Row, arrivals_ms, build, read_rows
from controllers.simulation.worker_log import WorkerLog
from controllers.worker_state import Overlap


def line(**fields: object) -> str:
    base = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    return json.dumps(base | fields)


DELTA = json.dumps(
    {"t": 10, "i": 1536, "o": 0, "s": 4, "a": "main", "k": 0, "r": [[7, 2], [20, 1]]}
)


def test_requests_share_equal_leading_ids_and_only_full_blocks_count() -> None:
    lines = [line(timestamp=7), "", line(timestamp=5, input_length=1030, hash_ids=[1, 3, 4])]
    trace = build(read_rows(lines, "t"), 32)
    early, late = trace.requests
    assert (early.number, early.arrival_ms, late.arrival_ms) == (0, 0.0, 2.0)
    assert early.trace_blocks == (1, 2)  # 6 tokens of the third are no block
    assert late.trace_blocks == (1, 3)
    assert (early.num_blocks, late.num_blocks) == (32, 18)
    assert trace.num_blocks_of == [0, 16, 16, 2]


def test_an_id_is_equal_only_behind_equal_ids_and_in_equal_length() -> None:
    rows = [Row(0, 1024, 1, [1, 2]), Row(1, 1024, 1, [3, 2]), Row(2, 800, 1, [1, 2])]
    blocks = [request.trace_blocks for request in build(rows, 32).requests]
    assert blocks == [(1, 2), (3, 4), (1, 5)]


def test_rows_may_say_whose_they_are() -> None:
    plain, named = build(
        read_rows([line(), line(timestamp=1, tenant="acme", tier="batch")], "t"), 32
    ).requests
    assert (plain.tenant, plain.tier) == ("default", None)
    assert (named.tenant, named.tier) == ("acme", "batch")
    assert named.piece(512, 32).tenant == "acme"


def test_delta_rows_build_on_the_session_before() -> None:
    base = {"t": 10, "i": 1536, "o": 0, "s": 4, "a": "main", "k": 0, "r": [[7, 2], [20, 1]]}
    rows = read_rows([json.dumps(base), json.dumps(base | {"t": 20, "k": 2, "r": [[30, 1]]})], "t")
    assert [row.hash_ids for row in rows] == [[7, 8, 20], [7, 8, 30]]
    assert rows[1].request_type == "agent"
    request = build(rows, 32).requests[1]
    assert request.spans == Spans(0, 1024, 1536)
    assert request.output_tokens == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "t has no requests"),
        (["{"], "t line 1 is no row of a trace"),
        ([line(), "[]"], "t line 2 is no row of a trace"),
        ([line(input_length=0)], "line 1 is no row of a trace.*input_length"),
        ([line(output_length=-1)], "output_length"),
        ([line(output_length=10**16)], r"line 1 .*<= 10000000 - at `\$.output_length`"),
        ([line(), line(input_length=10**16)], r"line 2 .*<= 10000000 - at `\$.input_length`"),
        (
            [DELTA, DELTA.replace("[20, 1]", "[20, 9999999]")],
            "line 2 .*10000001 trace blocks in k and r, 3 in 1536 tokens",
        ),
        ([line(hash_ids="x")], "hash_ids"),
        ([b"\xff\xfe"], "line 1"),
    ],
)
def test_a_bad_file_is_one_clear_error(lines: list[str | bytes], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_rows(lines, "t")


@pytest.mark.parametrize("size", [0, 48, 1024])
def test_blocks_must_fill_trace_blocks(size: int) -> None:
    with pytest.raises(SettingsError, match=f"block size {size}"):
        build([Row(0, 10, 1, [])], size)


def test_arrivals_keep_bursts_and_differ_by_seed() -> None:
    trace = build([Row(at, 10, 1, []) for at in (0, 0, 1000, 3000)], 32)
    assert arrivals_ms(trace, 2.0, 0.0, 0).tolist() == [0.0, 0.0, 500.0, 1500.0]
    first, again, other = (arrivals_ms(trace, 2.0, 0.01, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first[:2].tolist() == [0.0, 0.0]
    assert abs(first[3] - 1500.0) <= 15.0


@pytest.mark.parametrize(("last_ms", "speedup"), [(1e15, 1.0), (1e9, 0.1), (1e9, 1e-308)])
def test_a_trace_of_more_than_a_month_is_refused(last_ms: float, speedup: float) -> None:
    trace = build([Row(at, 10, 1, []) for at in (0, 1000, last_ms)], 32)
    with pytest.raises(SettingsError, match=r"request [23] of the trace.* 31 days at speedup"):
        arrivals_ms(trace, speedup, 0.01, 0)
    assert arrivals_ms(trace, 1e9, 0.0, 0)[2] == last_ms / 1e9


def test_prompt_blocks_are_a_sequence_of_ints() -> None:
    blocks = PromptBlocks((3, 9), 20, 16)
    whole = [*range(48, 64), *range(144, 148)]
    assert list(blocks) == whole
    for at in (slice(None), slice(5, None), slice(15, 18), slice(-3, None), slice(4, 4)):
        assert blocks[at] == whole[at]
    assert blocks[::16] == whole[::16] == blocks.first_of_each()
    assert (blocks[0], blocks[17], blocks[-1]) == (48, 145, 147)
    with pytest.raises(IndexError):
        blocks[20]


def test_a_table_of_trace_blocks_answers_in_blocks() -> None:
    blocks = PromptBlocks((3, 9), 20, 16)
    shape = CacheShape(100)
    cache, log, table = Cache(shape), WorkerLog("w0", shape), RoutingTable(512)
    view = PrefixTable(table, 32)
    table.apply(log.start(0.0))
    for num, overlap in ((1, Overlap(16, 16, 0, 0)), (2, Overlap(20, 20, 0, 0))):
        keys, sizes = blocks.first_of_each()[:num], [16, 4][:num]
        cache.admit(Ask(keys, sizes, 0), 0.0)
        table.apply(log.batch(cache.drain(), 0.0))
        assert view.overlap(blocks) == view.overlap(blocks[:]) == {"w0": overlap}
    assert (view.block_size, view.is_stale("w0"), view.is_stale("w1")) == (32, False, True)
    assert view.overlap(PromptBlocks((4,), 16, 16)) == {}


def test_a_snapshot_repairs_the_table() -> None:
    shape = CacheShape(100)
    cache, log, table = Cache(shape), WorkerLog("w0", shape), RoutingTable(512)
    table.apply(log.start(0.0))
    for number, keys in enumerate(([16, 32], [16, 48], [64])):
        cache.release(cache.admit(Ask(keys, [16] * len(keys), 1), 0.0), 0.0)
        batch = log.batch(cache.drain(), 0.0)
        if number != 1:  # lost
            table.apply(batch)
    assert table.is_stale("w0")
    table.apply(log.snapshot(cache, 0.0))
    assert not table.is_stale("w0")
    assert set(table.blocks_of("w0")) == {16, 32, 48, 64}
