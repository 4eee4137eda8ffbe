"""A model with a sliding attention window: the right tokens, and blocks that come back early."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from controllers.errors import ModelFileError
from controllers.events import Stored
from serve_app.engine.attention import VALUE_SPAN, plan_attention
from serve_app.engine.batch import Batch, SequenceSlice
from serve_app.engine.build import EngineLimits, WindowPool, build_engine
from serve_app.engine.scripted_model import ScriptedModel
from serve_app.engine.tiers import NoStorage
from tests.engine_fixture import BLOCK, TENSORS, EngineRun, plain_greedy, prompt_of, request
from tests.engine_fixture import tiny_model as make_model
from tests.tiny_llama import plain_logits

LIMITS = EngineLimits(block_size=BLOCK, num_gpu_blocks=200)
LONG = 540  # spans several query tiles and value spans


@cache
def expected_logits(window: int) -> list[float]:
    return list(plain_logits(TENSORS, prompt_of(LONG), window=window)[-1])


@pytest.mark.parametrize("window", [1, 21, 300])
@pytest.mark.parametrize("cuts", [(), (150, 500, 539)])
def test_prefill_equals_plain_attention(window: int, cuts: tuple[int, ...], tmp_path: Path) -> None:
    model = make_model(tmp_path, LIMITS, window)
    tokens, table = prompt_of(LONG), list(range(LONG // BLOCK + 1))
    edges = [0, *cuts, LONG]
    for start, end in zip(edges, edges[1:], strict=False):
        batch = Batch.pack([SequenceSlice(tokens[start:end], start, table)], BLOCK)
        logits = model.forward(batch)[0]
    expected = expected_logits(window)
    assert int(logits.argmax()) == int(np.argmax(expected))
    np.testing.assert_allclose(logits, expected, atol=2e-4)


def test_spans_before_the_window_are_left_out() -> None:
    table = list(range(200))
    slices = [SequenceSlice([1], at, table) for at in (600, 620)]
    batch = Batch.pack(slices, BLOCK)
    [task] = plan_attention(batch, BLOCK, window=60)
    assert task.tables[0, 0] == 2 * VALUE_SPAN // BLOCK
    [task] = plan_attention(batch, BLOCK, window=100)  # the first one still sees the second span
    assert task.tables[0, 0] == VALUE_SPAN // BLOCK
    [odd] = plan_attention(Batch.pack(slices, 7), 7, window=100)  # spans do not end with a block
    assert odd.tables[0, 0] == 0


def test_a_batch_with_and_without_spans_left_out_is_computed_alike(tmp_path: Path) -> None:
    """What a row gets does not depend on where its task begins."""
    model = make_model(tmp_path, LIMITS, window=40)
    tokens = prompt_of(600)
    table, other = list(range(76)), list(range(80, 156))
    model.forward(Batch.pack([SequenceSlice(tokens, 0, table)], BLOCK))
    model.forward(Batch.pack([SequenceSlice(tokens[:310], 0, other)], BLOCK))
    decode, early = SequenceSlice([5], 600, table), SequenceSlice([7], 310, other)
    alone = model.forward(Batch.pack([decode], BLOCK))[0].copy()
    both = model.forward(Batch.pack([decode, early], BLOCK))
    assert int(both[0].argmax()) == int(alone.argmax())
    np.testing.assert_allclose(both[0], alone, atol=1e-5)


@pytest.mark.parametrize("num_tokens", [5, 23, 24, 40])
def test_greedy_tokens_equal_plain_attention(num_tokens: int, tmp_path: Path) -> None:
    run = EngineRun(tmp_path, window=20)
    prompt = prompt_of(num_tokens)
    got = run.finish(request("a", prompt, max_tokens=40))
    assert got == {"a": plain_greedy(prompt, 40, window=20)}
    assert run.load().used_blocks["gpu"] == 0


def test_blocks_behind_the_window_serve_others(tmp_path: Path) -> None:
    """Three replies of 64 tokens each: 24 blocks of full attention, in a pool of 16."""
    run = EngineRun(tmp_path, window=16, num_gpu_blocks=16)
    prompts = {f"r{i}": prompt_of(9, seed=i) for i in range(3)}
    requests = [request(name, prompt, max_tokens=55) for name, prompt in prompts.items()]
    assert run.finish(*requests) == {
        name: plain_greedy(prompt, 55, window=16) for name, prompt in prompts.items()
    }
    assert run.engine.num_preemptions == 0
    full = EngineRun(tmp_path, num_gpu_blocks=16)
    full.finish(*requests)
    assert full.engine.num_preemptions > 0


@pytest.mark.parametrize("seed", range(3))
def test_any_traffic_gives_the_tokens_of_plain_attention(seed: int, tmp_path: Path) -> None:
    """Shared prefixes, little room, a host tier, short steps and aborts, with a window."""
    chosen = random.Random(seed)
    run = EngineRun(
        tmp_path,
        window=13,
        num_gpu_blocks=11,
        num_host_blocks=4,
        max_batch_size=4,
        max_batched_tokens=9,
    )
    prompts = {
        f"r{i}": [*prompt_of(chosen.randrange(30)), *prompt_of(chosen.randrange(1, 15), seed=i)]
        for i in range(12)
    }
    aborted = set(chosen.sample(sorted(prompts), 2))
    for name, prompt in prompts.items():
        run.add(request(name, prompt, max_tokens=25))
        for _ in range(chosen.randrange(6)):
            run.step()
        if name in aborted:
            run.engine.abort(name)
    run.finish()
    for name in prompts.keys() - aborted:
        assert run.tokens(name) == plain_greedy(prompts[name], 25, window=13)
    assert run.load().used_blocks["gpu"] == 0


@pytest.mark.parametrize(
    ("window", "expected"), [(None, None), (0, None), (17, 17), (8191, 8191), (8192, None)]
)
def test_the_window_of_a_model_file(
    window: int | None, expected: int | None, tmp_path: Path
) -> None:
    assert make_model(tmp_path, LIMITS, window).attention_window == expected


def test_a_window_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"'llama.attention.sliding_window' is -3"):
        make_model(tmp_path, LIMITS, window=-3)


def test_an_engine_with_several_windows() -> None:
    """Without a model: what the router hears of is the largest window, what is reused the least."""
    limits = EngineLimits(
        block_size=8,
        num_gpu_blocks=40,
        max_batched_tokens=64,
        small_windows=(WindowPool(window=16, num_gpu_blocks=12),),
    )
    model = ScriptedModel(eos_id=257)
    engine, events = build_engine(limits, model, NoStorage(), model_max_seq_len=1000, eos_ids=())
    cached_tokens = {}
    prompt = list(range(32))
    for name, tokens in (("a", prompt), ("b", prompt), ("c", list(range(100, 190))), ("d", prompt)):
        engine.add_request(request(name, tokens, max_tokens=3))
        while engine.has_work:
            for output in engine.step():
                cached_tokens[name] = output.cached_tokens
        assert engine.load().used_blocks == {"gpu": 0, "host": 0}
    # "c" took all of the small window; the largest still has the prompt of "a".
    assert cached_tokens == {"a": 0, "b": 31, "c": 0, "d": 0}
    told = [event for event in events.drain(0) if isinstance(event, Stored)]
    assert sum(len(event.hashes) for event in told) == 5 + 12
    assert engine.load().total_blocks == {"gpu": 40, "host": 0}


def test_smaller_windows_bound_the_longest_sequence() -> None:
    limits = EngineLimits(
        block_size=8, num_gpu_blocks=100, small_windows=(WindowPool(window=16, num_gpu_blocks=10),)
    )
    assert limits.seq_len(8192) == 80
