"""The engine gives the tokens of a plain forward pass, whatever the cache and the batch do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from controllers.errors import SettingsError
from controllers.events import Load, Removed, Updated
from tests.engine_fixture import EngineRun, plain_greedy, prompt_of, request

IDLE = {"gpu": 0, "host": 0}


def assert_idle(load: Load) -> None:
    assert (load.num_active, load.num_queued, load.queued_prefill_tokens) == (0, 0, 0)
    assert (load.decode_tokens, load.used_blocks) == (0, IDLE)


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 40])
def test_greedy_tokens_equal_full_attention(num_tokens: int, tmp_path: Path) -> None:
    prompt = prompt_of(num_tokens)
    run = EngineRun(tmp_path)
    assert run.finish(request("a", prompt)) == {"a": plain_greedy(prompt)}
    assert_idle(run.load())


def test_a_batch_gives_what_each_gives_alone(tmp_path: Path) -> None:
    prompts = {f"r{i}": prompt_of(5 + 9 * i, seed=i) for i in range(6)}
    expected = {name: plain_greedy(prompt) for name, prompt in prompts.items()}
    run = EngineRun(tmp_path)
    assert run.finish(*(request(name, prompt) for name, prompt in prompts.items())) == expected


@pytest.mark.parametrize("max_batched_tokens", [2, 5, 64])
def test_a_chunked_prompt_gives_what_a_whole_one_gives(
    max_batched_tokens: int, tmp_path: Path
) -> None:
    prompt = prompt_of(50)
    run = EngineRun(tmp_path, max_batch_size=1, max_batched_tokens=max_batched_tokens)
    assert run.finish(request("a", prompt)) == {"a": plain_greedy(prompt)}


@pytest.mark.parametrize("num_tokens", [24, 27, 32])
def test_a_reused_prompt_gives_what_a_new_one_gives(num_tokens: int, tmp_path: Path) -> None:
    prompt = prompt_of(num_tokens)
    run = EngineRun(tmp_path)
    run.finish(request("first", prompt))
    assert run.finish(request("second", prompt)) == {"second": plain_greedy(prompt)}
    assert run.cached_tokens("first") == 0
    assert run.cached_tokens("second") == num_tokens - 1
    assert (run.load().hit_tokens, run.load().prompt_tokens) == (num_tokens - 1, 2 * num_tokens)


def test_a_block_reused_in_part_gives_what_a_new_one_gives(tmp_path: Path) -> None:
    run = EngineRun(tmp_path)
    prompt = prompt_of(30)
    run.finish(request("first", prompt))
    other = [*prompt[:21], *prompt_of(9, seed=7)]
    assert run.finish(request("second", other)) == {"second": plain_greedy(other)}
    assert run.cached_tokens("second") == 21


def test_the_next_turn_reuses_generated_blocks(tmp_path: Path) -> None:
    run = EngineRun(tmp_path)
    prompt = prompt_of(20)
    reply = run.finish(request("turn 1", prompt))["turn 1"]
    longer = [*prompt, *reply, *prompt_of(6, seed=3)]
    assert run.finish(request("turn 2", longer)) == {"turn 2": plain_greedy(longer)}
    assert run.cached_tokens("turn 2") == len(prompt) + len(reply) - 1


def test_an_evicted_prompt_is_computed_again(tmp_path: Path) -> None:
    run = EngineRun(tmp_path, num_gpu_blocks=8)
    prompt = prompt_of(30)
    run.finish(request("first", prompt))
    run.finish(request("other", prompt_of(50, seed=5)))
    assert any(isinstance(event, Removed) for event in run.drain())
    assert run.finish(request("again", prompt)) == {"again": plain_greedy(prompt)}
    assert run.cached_tokens("again") == 0


def test_a_host_block_comes_back_as_it_was(tmp_path: Path) -> None:
    run = EngineRun(tmp_path, num_gpu_blocks=8, num_host_blocks=8)
    prompt = prompt_of(30)
    run.finish(request("first", prompt))
    run.finish(request("other", prompt_of(50, seed=5)))
    moved = [event for event in run.drain() if isinstance(event, Updated)]
    assert {event.medium for event in moved} == {"host"}
    assert run.finish(request("again", prompt)) == {"again": plain_greedy(prompt)}
    assert run.cached_tokens("again") == 29
    assert "gpu" in {event.medium for event in run.drain() if isinstance(event, Updated)}
    assert run.load().used_blocks["gpu"] == 0


def test_preempted_sequences_go_on_with_the_same_tokens(tmp_path: Path) -> None:
    prompts = {f"r{i}": prompt_of(15, seed=i) for i in range(4)}
    run = EngineRun(tmp_path, num_gpu_blocks=12)
    # Four prompts of two blocks fit with room to spare, four of five blocks do not.
    got = run.finish(*(request(name, p, max_tokens=25) for name, p in prompts.items()))
    assert run.engine.num_preemptions > 0
    assert got == {name: plain_greedy(prompt, 25) for name, prompt in prompts.items()}
    assert_idle(run.load())
    assert {name: run.cached_tokens(name) for name in prompts} == dict.fromkeys(prompts, 0)


@pytest.mark.parametrize("seed", range(3))
def test_any_traffic_gives_the_tokens_of_full_attention(seed: int, tmp_path: Path) -> None:
    """Shared prefixes, little room, a host tier, short steps and aborts, all at once."""
    chosen = random.Random(seed)
    run = EngineRun(
        tmp_path, num_gpu_blocks=11, num_host_blocks=4, max_batch_size=4, max_batched_tokens=9
    )
    prompts = {
        f"r{i}": [*prompt_of(chosen.randrange(30)), *prompt_of(chosen.randrange(1, 15), seed=i)]
        for i in range(14)
    }
    aborted = set(chosen.sample(sorted(prompts), 3))
    for name, prompt in prompts.items():
        run.add(request(name, prompt, ranges=[(0, None, chosen.choice([0, 35, 80]))]))
        for _ in range(chosen.randrange(6)):
            run.step()
        if name in aborted:
            run.engine.abort(name)
    run.finish()
    for name in prompts.keys() - aborted:
        assert run.tokens(name) == plain_greedy(prompts[name])
    assert run.load().used_blocks["gpu"] == 0


def test_tenants_with_different_salts_share_nothing(tmp_path: Path) -> None:
    run = EngineRun(tmp_path)
    prompt = prompt_of(24)
    run.finish(request("a", prompt, salt=1))
    assert run.finish(request("b", prompt, salt=2)) == {"b": plain_greedy(prompt)}
    assert run.cached_tokens("b") == 0


@pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
def test_an_abort_frees_everything_at_once(num_steps: int, tmp_path: Path) -> None:
    run = EngineRun(tmp_path, max_batched_tokens=20)
    run.add(request("a", prompt_of(50), n=3), request("b", prompt_of(30, seed=2)))
    for _ in range(num_steps):
        run.step()
    run.engine.abort("a")
    run.engine.abort("b")
    run.engine.abort("never seen")
    assert not run.engine.has_work
    assert_idle(run.load())
    assert run.finish(request("c", prompt_of(50))) == {"c": plain_greedy(prompt_of(50))}


def test_siblings_share_the_leaders_prompt(tmp_path: Path) -> None:
    run = EngineRun(tmp_path)
    prompt = prompt_of(33)
    tokens = run.finish(request("a", prompt, n=3, max_tokens=4))["a"]
    assert tokens == plain_greedy(prompt, 4) * 3
    assert sorted(run.finish_reasons("a")) == [(0, "length"), (1, "length"), (2, "length")]
    load = run.load()
    assert (load.prompt_tokens, load.hit_tokens) == (33, 0)
    # The first step computes 33 tokens; each sibling only what is not in a full block.
    assert max(shape.new_tokens for shape in load.iterations) == 33
    assert sum(shape.new_tokens * shape.count for shape in load.iterations) == 33 + 2 * 1


def test_siblings_draw_with_seed_plus_index(tmp_path: Path) -> None:
    prompt = prompt_of(10)
    drawn = {"temperature": 1.5, "max_tokens": 6}
    run = EngineRun(tmp_path)
    together = run.finish(request("n", prompt, n=2, seed=40, **drawn))["n"]
    alone = [run.finish(request(f"s{s}", prompt, seed=s, **drawn))[f"s{s}"] for s in (40, 41)]
    assert together == alone[0] + alone[1]
    assert alone[0] != alone[1]


def test_ends(tmp_path: Path) -> None:
    prompt = prompt_of(20)
    tokens = plain_greedy(prompt, 12)
    end = next(t for i, t in enumerate(tokens) if i >= 3 and t not in tokens[:i])
    before = tokens[: tokens.index(end)]
    run = EngineRun(tmp_path, eos_ids=[end])
    got = run.finish(
        request("eos", prompt),
        request("ignored", prompt, ignore_eos=True),
        request("own", prompt, ignore_eos=True, stop_token_ids=(end,)),
        request("one", prompt, max_tokens=1),
    )
    assert got == {"eos": before, "ignored": tokens, "own": before, "one": tokens[:1]}
    reasons = {name: run.finish_reasons(name) for name in got}
    assert reasons == {
        "eos": [(0, "stop")],
        "ignored": [(0, "length")],
        "own": [(0, "stop")],
        "one": [(0, "length")],
    }
    assert [o.stop_token_id for o in run.outputs if o.finish_reason == "stop"] == [end, end]


def test_min_tokens_bans_the_end_until_then(tmp_path: Path) -> None:
    prompt = prompt_of(20)
    first = plain_greedy(prompt, 1)[0]
    run = EngineRun(tmp_path, eos_ids=[first])
    got = run.finish(request("a", prompt), request("b", prompt, min_tokens=3))
    assert got["a"] == []
    assert len(got["b"]) >= 3
    assert first not in got["b"][:3]


def test_the_longest_sequence_ends_by_length(tmp_path: Path) -> None:
    run = EngineRun(tmp_path, num_gpu_blocks=3)
    prompt = prompt_of(20)
    assert run.finish(request("a", prompt, max_tokens=100)) == {"a": plain_greedy(prompt, 4)}
    assert run.finish_reasons("a") == [(0, "length")]


def test_logprobs_come_with_tokens(tmp_path: Path) -> None:
    run = EngineRun(tmp_path)
    run.finish(request("a", prompt_of(10), logprobs=2, max_tokens=3), request("b", prompt_of(5)))
    with_logprobs = [o.sample for o in run.outputs if o.request_id == "a"]
    assert len(with_logprobs) == 3
    for sample in with_logprobs:
        assert sample is not None
        assert sample.logprobs is not None
        assert sample.logprobs.top[0] == (sample.token_id, sample.logprobs.chosen)
        assert len(sample.logprobs.top) == 2
    assert all(o.sample and o.sample.logprobs is None for o in run.outputs if o.request_id == "b")


def test_decoding_goes_on_beside_a_long_prompt(tmp_path: Path) -> None:
    run = EngineRun(tmp_path, max_batch_size=4, max_batched_tokens=10)
    run.add(request("short", prompt_of(5), max_tokens=20))
    run.step()
    run.add(request("long", prompt_of(80, seed=2)))
    for _ in range(5):
        assert [output.request_id for output in run.step()] == ["short"]
    # Nine prompt tokens a step beside one decode.
    assert run.load().queued_prefill_tokens == 80 - 5 * 9


def test_load_of_running_and_waiting_work(tmp_path: Path) -> None:
    run = EngineRun(tmp_path, max_batch_size=1, max_batched_tokens=64)
    run.finish(request("warm", prompt_of(16), max_tokens=1))
    run.add(request("runs", prompt_of(12, seed=2)), request("waits", prompt_of(20)))
    run.step()
    load = run.load()
    assert (load.num_active, load.num_queued) == (1, 1)
    assert load.queued_prefill_tokens == 20 - 16
    assert load.decode_tokens == 13
    assert load.used_blocks == {"gpu": 2, "host": 0}
    assert load.cached_blocks == {"gpu": 4, "host": 0}
    assert load.total_blocks == {"gpu": 64, "host": 0}


def test_limits_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="max_batched_tokens is 8, must exceed"):
        EngineRun(tmp_path, max_batch_size=8, max_batched_tokens=8)
    with pytest.raises(SettingsError, match="max_seq_len is 600"):
        EngineRun(tmp_path, max_seq_len=600)
