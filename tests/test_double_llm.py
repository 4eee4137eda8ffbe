"""The double's generate_async: streaming, ends, errors, abort, shutdown, versions."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from types import ModuleType
from typing import Any

import pytest

from tests.trtllm_calls import END_ID, make_llm, run, sampling

NEW = "1.3.0rc27"
ENDLESS = 100_000


@pytest.fixture
def double(trtllm_double: ModuleType) -> Any:
    trtllm_double.double.configure(is_proxy=False)
    return trtllm_double.double


def big_llm(**options: Any) -> Any:
    return make_llm(num_blocks=900, block_size=128, **options)


async def test_streaming_grows_one_object(double: Any) -> None:
    out = make_llm().generate_async([1, 2, 3], sampling(max_tokens=4), streaming=True)
    diffs = []
    async for part in out:
        assert part is out
        diffs.append(part.outputs[0].token_ids_diff)
    [completion] = out.outputs
    assert [len(diff) for diff in diffs] == [1, 1, 1, 1]
    assert [token for diff in diffs for token in diff] == completion.token_ids
    assert (completion.index, completion.length, completion.finish_reason) == (0, 4, "length")
    assert (out.finished, out.aborted(), out.decoding_iter) == (True, False, 4)
    assert (out.request_id, out.prompt, out.prompt_token_ids) == (1, None, [1, 2, 3])


async def test_a_stream_interval_puts_tokens_together(double: Any) -> None:
    llm = make_llm(stream_interval=3)
    out = llm.generate_async([1, 2, 3], sampling(max_tokens=8), streaming=True)
    assert [len(part.outputs[0].token_ids_diff) async for part in out] == [1, 2, 3, 2]


async def test_without_streaming_there_is_one_response(double: Any) -> None:
    out = make_llm().generate_async([1, 2, 3], sampling(max_tokens=4))
    assert await out is out
    assert out.outputs[0].token_ids_diff == out.outputs[0].token_ids
    assert await out.aresult() is out


def test_made_without_a_loop_it_cannot_be_awaited(double: Any) -> None:
    out = make_llm().generate_async([1, 2, 3], sampling())

    async def wait() -> None:
        await out

    with pytest.raises(AssertionError, match="event loop was not present during initialization"):
        asyncio.run(wait())
    assert out.result().finished


def test_several_prompts_and_text(double: Any) -> None:
    llm = make_llm(skip_tokenizer_init=False)
    one = llm.generate("hello", sampling(max_tokens=3, end_id=None))
    two = llm.generate([[1, 2], "hello"], [sampling(max_tokens=2), sampling(max_tokens=3)])
    assert one.prompt == "hello"
    assert one.outputs[0].text == bytes(one.outputs[0].token_ids).decode()
    assert [out.outputs[0].length for out in two] == [2, 3]
    assert two[1].outputs[0].text == one.outputs[0].text


def test_cached_tokens_leave_the_last_one(double: Any) -> None:
    llm = make_llm()
    found = [run(llm, range(9)).cached_tokens, run(llm, range(9)).cached_tokens]
    assert found == [0, 8]


async def test_several_sequences(double: Any) -> None:
    """Only the request's last response sets a finish reason, and only of its own sequence."""
    llm = make_llm(num_blocks=64)
    params = sampling(n=3, temperature=1.0, max_tokens=4, seed=7)
    out = llm.generate_async([1, 2, 3], params, streaming=True)
    stale = 0
    async for part in out:
        stale += len(part.outputs[0].token_ids_diff)
    assert [completion.length for completion in out.outputs] == [4, 4, 4]
    assert [completion.finish_reason for completion in out.outputs] == [None, None, "length"]
    assert stale > 4


async def test_an_end_token_stays_and_a_stop_token_goes(double: Any) -> None:
    double.configure(is_proxy=False, eos_after=2)
    llm = make_llm()
    ended = await llm.generate_async([1, 2, 3], sampling(max_tokens=9, ignore_eos=False))
    tokens = ended.outputs[0].token_ids
    assert (ended.outputs[0].finish_reason, ended.outputs[0].stop_reason) == ("stop", None)
    assert tokens[2:] == [END_ID]
    stopping = sampling(max_tokens=9, ignore_eos=False, stop_token_ids=[tokens[1]])
    stopped = (await llm.generate_async([1, 2, 3], stopping)).outputs[0]
    assert (stopped.token_ids, stopped.stop_reason) == (tokens[:1], tokens[1])
    kept = sampling(
        max_tokens=9, ignore_eos=False, stop_token_ids=[tokens[1]], include_stop_str_in_output=True
    )
    assert (await llm.generate_async([1, 2, 3], kept)).outputs[0].token_ids == tokens[:2]


async def test_ignore_eos_switches_stop_tokens_off(double: Any) -> None:
    llm = make_llm()
    tokens = run(llm, [1, 2, 3], num_tokens=4).outputs[0].token_ids
    both = sampling(max_tokens=4, stop_token_ids=[tokens[1]])
    assert (await llm.generate_async([1, 2, 3], both)).outputs[0].finish_reason == "length"
    only_stop = sampling(max_tokens=4, ignore_eos=False, end_id=-1, stop_token_ids=[tokens[1]])
    assert (await llm.generate_async([1, 2, 3], only_stop)).outputs[0].finish_reason == "stop"


async def test_logprobs(double: Any) -> None:
    llm = make_llm()
    out = llm.generate_async([1, 2, 3], sampling(max_tokens=3, logprobs=2), streaming=True)
    diffs = [part.outputs[0].logprobs_diff async for part in out]
    assert [len(diff) for diff in diffs] == [1, 1, 1]
    for token, tokens in zip(out.outputs[0].token_ids, out.outputs[0].logprobs, strict=True):
        assert len(tokens) == 2
        assert tokens[token].rank == 1
        assert tokens[token].logprob <= 0
    total = sum(max(item.logprob for item in tokens.values()) for tokens in out.outputs[0].logprobs)
    assert out.outputs[0].cumulative_logprob == pytest.approx(total)


async def test_abort_ends_the_request_later(double: Any) -> None:
    llm = big_llm()
    out = llm.generate_async([1, 2, 3], sampling(max_tokens=ENDLESS), streaming=True)
    await out.__anext__()
    out.abort()
    assert (out.aborted(), out.finished) == (True, False)
    async for _ in out:
        pass
    assert (out.finished, out.outputs[0].finish_reason) == (True, "cancelled")
    out.abort()
    assert run(llm, [1, 2, 3]).finished


async def test_all_sequences_of_an_aborted_request_are_cancelled(double: Any) -> None:
    params = sampling(max_tokens=ENDLESS, n=2, temperature=1.0)
    out = big_llm().generate_async([1, 2, 3], params, streaming=True)
    await out.__anext__()
    out.abort()
    await out
    assert [completion.finish_reason for completion in out.outputs] == ["cancelled", "cancelled"]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (
            "1.2.1",
            r"The sum of prompt length \(9.0\), query length \(0\) should not exceed "
            r"max_num_tokens \(8\)",
        ),
        (NEW, r"The prompt length \(9.0\) should not exceed max_num_tokens \(8\)"),
    ],
)
def test_a_prompt_that_is_too_long_for_one_chunk(version: str, words: str, double: Any) -> None:
    from tensorrt_llm.executor import RequestError

    double.configure(version=version, is_proxy=False)
    llm = make_llm(enable_chunked_prefill=False, max_num_tokens=8)
    with pytest.raises(RequestError, match=words):
        llm.generate_async(list(range(9)), sampling())
    assert run(llm, range(8)).finished


@pytest.mark.parametrize("is_proxy", [True, False])
async def test_a_prompt_that_is_too_long_for_the_cache(is_proxy: bool, double: Any) -> None:
    from tensorrt_llm.executor import RequestError

    double.configure(is_proxy=is_proxy)
    llm = make_llm(num_blocks=8, block_size=4)
    words = r"`default_max_tokens` \(0\) must be greater than 0.*max_seq_len \(32\)"
    if is_proxy:
        out = llm.generate_async([1] * 32, sampling())
        with pytest.raises(RequestError, match=words):
            await out
    else:
        with pytest.raises(RequestError, match=words):
            llm.generate_async([1] * 32, sampling())
    assert (await llm.generate_async([1] * 31, sampling(max_tokens=9))).outputs[0].length == 1


async def test_token_ids_beyond_the_vocabulary(double: Any) -> None:
    from tensorrt_llm.executor import RequestError

    llm = make_llm()
    with pytest.raises(RequestError, match="Token ID out of range"):
        await llm.generate_async([1, 259], sampling())
    double.configure(version=NEW, is_proxy=False)
    out = make_llm().generate_async([1, 259], sampling())
    with pytest.raises(RequestError, match="Token ID out of range"):
        await out
    assert (out.error, out.finished) == ("Token ID out of range", True)


def test_other_requests_that_are_refused(double: Any) -> None:
    llm = make_llm()
    with pytest.raises(ValueError, match=r"n \(5\) should not exceed max_batch_size \(4\)"):
        llm.generate_async([1], sampling(n=5, temperature=1.0))
    with pytest.raises(ValueError, match="tokenizer is required"):
        llm.generate_async([1], sampling(end_id=None))
    with pytest.raises(ValueError, match="tokenizer is required"):
        llm.generate_async("text", sampling())
    with pytest.raises(TypeError, match="sampling_params must be type"):
        llm.generate_async([1], {"max_tokens": 3})
    with pytest.raises(TypeError, match="inputs must be type str or list"):
        llm.generate_async(7, sampling())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 2}, "Greedy decoding"),
        ({"n": 2, "temperature": 0.0}, "Greedy decoding"),
        ({"n": 2, "top_k": 1, "temperature": 1.0}, "Greedy decoding"),
        ({"n": 2, "best_of": 1, "temperature": 1.0}, "best_of"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"temperature": -0.1}, "temperature"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_sampling_that_is_refused(options: dict[str, Any], words: str, double: Any) -> None:
    with pytest.raises(ValueError, match=words):
        sampling(**options)


def test_shutdown(double: Any) -> None:
    llm = big_llm()
    out = llm.generate_async([1, 2, 3], sampling(max_tokens=ENDLESS))
    assert llm._check_health()
    assert double.running() == [llm]
    llm.shutdown()
    llm.shutdown()
    assert out.result().outputs[0].finish_reason == "cancelled"
    with pytest.raises(RuntimeError, match="LLM is shutting down"):
        llm.generate_async([1], sampling())
    assert not llm._check_health()
    assert (llm.get_kv_cache_events(0), llm.get_stats(0), double.running()) == ([], [], [])


def test_an_llm_cannot_be_pickled(double: Any) -> None:
    with make_llm() as llm, pytest.raises(RuntimeError, match="can not be pickled"):
        pickle.dumps(llm)


def test_unknown_arguments_are_refused(double: Any) -> None:
    import tensorrt_llm
    from pydantic import ValidationError
    from tensorrt_llm.llmapi import KvCacheConfig

    with pytest.raises(ValidationError, match="no_such"):
        tensorrt_llm.LLM("model", no_such=1)
    with pytest.raises(ValidationError, match="kv_cache_event_hash_algo"):
        KvCacheConfig(kv_cache_event_hash_algo="auto")
    with pytest.raises(ValidationError, match="max_attention_window"):
        KvCacheConfig(max_attention_window=[])
    assert double.running() == []


def test_configurations_may_be_dicts(double: Any) -> None:
    from pydantic import ValidationError

    cache = {"max_tokens": 64, "tokens_per_block": 8, "onboard_blocks": False}
    llm = make_llm(enable_iter_perf_stats=True)
    other = type(llm)("model", skip_tokenizer_init=True, kv_cache_config=cache)
    assert other.args.kv_cache_config.onboard_blocks is False
    assert run(other, range(9)).finished
    with pytest.raises(ValidationError, match="disk_cache_size"):
        type(llm)("model", kv_cache_config=cache | {"disk_cache_size": 1})


def test_what_the_versions_have(trtllm_double: ModuleType) -> None:
    def names(version: str) -> tuple[str, set[str], set[str], bool]:
        trtllm_double.double.configure(version=version)
        import tensorrt_llm
        from tensorrt_llm.llmapi import KvCacheConfig

        parameters = set(inspect.signature(tensorrt_llm.LLM.generate_async).parameters)
        has_capacity = hasattr(tensorrt_llm.LLM, "get_kv_cache_capacity")
        fields = set(KvCacheConfig.model_fields)
        return tensorrt_llm.__version__, parameters, fields, has_capacity

    old_version, old_parameters, old_fields, old_capacity = names("1.2.1")
    new_version, new_parameters, new_fields, new_capacity = names(NEW)
    newest = names("1.4.0rc1")
    assert (old_version, new_version, newest[0]) == ("1.2.1", NEW, "1.4.0rc1")
    assert new_parameters - old_parameters == {"conversation_params", "priority"}
    assert (old_capacity, new_capacity, newest[3]) == (False, True, True)
    assert old_fields - new_fields == {"onboard_blocks"}
    assert {"kv_cache_event_hash_algo", "disk_cache_size"} <= new_fields - old_fields
    assert "cold_tier_offload_min_priority" in newest[2] - new_fields


def test_capacity(double: Any) -> None:
    double.configure(version=NEW, is_proxy=False)
    expected = {"maxNumBlocks": 8, "tokensPerBlock": 4, "maxNumTokens": 32}
    assert make_llm().get_kv_cache_capacity() == expected
    assert make_llm(free_gpu_memory_fraction=0.005).get_kv_cache_capacity()["maxNumBlocks"] == 5


async def test_a_queue_ordered_by_priority(double: Any) -> None:
    double.configure(version=NEW, is_proxy=False)
    from tensorrt_llm.llmapi import SchedulerConfig

    config = SchedulerConfig(waiting_queue_policy="priority")
    llm = make_llm(num_blocks=900, max_batch_size=1, scheduler_config=config)
    order: list[float] = []

    async def ask(priority: float) -> None:
        await llm.generate_async([1, 2, 3], sampling(max_tokens=40), priority=priority)
        order.append(priority)

    llm.faults.hang()
    asked = asyncio.gather(*(ask(priority) for priority in (0.1, 0.5, 0.9)))
    await asyncio.sleep(0)
    llm.faults.resume()
    await asked
    assert order == [0.9, 0.5, 0.1]
    with pytest.raises(ValueError, match="priority"):
        llm.generate_async([1], sampling(), priority=1.5)


def test_the_old_scheduler_knows_one_policy(double: Any) -> None:
    from pydantic import ValidationError
    from tensorrt_llm.llmapi import CapacitySchedulerPolicy, SchedulerConfig

    given = SchedulerConfig(waiting_queue_policy="fcfs")
    assert given.capacity_scheduler_policy is CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    with pytest.raises(ValidationError, match="waiting_queue_policy"):
        SchedulerConfig(waiting_queue_policy="priority")


def test_the_environment_chooses_the_version(monkeypatch: pytest.MonkeyPatch, double: Any) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_VERSION", "1.4.0rc1")
    monkeypatch.setenv("TRTLLM_DOUBLE", '{"die_on": [1, 2], "eos_after": 3}')
    settings = double.configure()
    assert (settings.version, settings.die_on, settings.eos_after) == ("1.4.0rc1", (1, 2), 3)
    with pytest.raises(ValueError, match="'1.x'"):
        double.configure(version="1.x")


def test_names_that_documentation_imports(double: Any) -> None:
    from tensorrt_llm.bindings.executor import KvCacheRetentionConfig as Bound
    from tensorrt_llm.executor import LoRARequest, RequestError
    from tensorrt_llm.executor.request import LoRARequest as SameRequest
    from tensorrt_llm.llmapi import KvCacheRetentionConfig
    from tensorrt_llm.lora_helper import LoraConfig
    from tensorrt_llm.lora_manager import LoraConfig as SameConfig

    assert (Bound, SameRequest, SameConfig) == (KvCacheRetentionConfig, LoRARequest, LoraConfig)
    assert issubclass(RequestError, RuntimeError)
    assert LoraConfig(lora_dir=["a"]).max_lora_rank == 64


async def test_the_loop_runs_while_the_engine_works(double: Any) -> None:
    """An iteration takes its pretended time in a thread of its own."""
    double.configure(is_proxy=False, decode_ms=20.0)
    task = asyncio.ensure_future(make_llm().generate_async([1], sampling(max_tokens=3)).aresult())
    num_turns = 0
    while not task.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    assert num_turns > 3
