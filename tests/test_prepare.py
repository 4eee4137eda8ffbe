"""Bodies to asks: tenant, request type, tokens, limits, retention, hashes, sampling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controllers.blocks import as_token_array, block_hashes, salt_of
from controllers.errors import InvalidRequest, PromptTooLong, UnknownModel
from controllers.prompt_use import PromptUse
from controllers.retention import TokenRange
from infra.settings import to_settings
from serve_app.chat import Chat
from serve_app.executors.base import SamplingParams
from serve_app.fleet import Ask
from serve_app.prepare import MAX_SEQUENCES, Preparer
from serve_app.tokenizer import ByteTokenizer
from serve_app.work import Caller, Work
from tests.edge_fixtures import BLOCK_SIZE, MAX_SEQ_LEN, MODEL, make_info

TOKENIZER = ByteTokenizer()
INFO = make_info()
NOBODY = Caller()
TENANTS = {
    "tenants": {
        "default": {},
        "acme": {"api_keys": ["k-acme"], "salt": "s", "default_request_type": "agent"},
        "small": {"api_keys": ["k-small"], "max_retention_priority": 50},
    }
}


def preparer(settings: dict[str, Any] | None = None, tokenizer: Any = TOKENIZER) -> Preparer:
    return Preparer(tokenizer, Chat(tokenizer), to_settings(settings or TENANTS))


def chat(caller: Caller = NOBODY, **fields: Any) -> Work:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return preparer().chat(json.dumps(body).encode(), caller, INFO)


def completion(caller: Caller = NOBODY, **fields: Any) -> Work:
    return preparer().completion(json.dumps({"prompt": "Hi", **fields}).encode(), caller, INFO)


def only(work: Work) -> Ask:
    (ask,) = work.asks
    return ask


def tokens_of(ask: Ask) -> list[int]:
    return as_token_array(ask.request.token_ids).tolist()


def fault(call: Any, *args: Any, **fields: Any) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        call(*args, **fields)
    return caught.value.field, caught.value.message


def test_a_chat_becomes_one_ask_of_the_rendered_prompt() -> None:
    work = chat(max_tokens=5)
    ask = only(work)
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokens_of(ask) == TOKENIZER.encode(text)
    assert ask.num_tokens == len(tokens_of(ask)) == 21
    assert ask.hashes == block_hashes(as_token_array(ask.request.token_ids), BLOCK_SIZE)
    assert ask.request.request_id == work.request_id
    assert work.request_id.startswith("chatcmpl-")
    assert (work.is_chat, work.model, work.n, work.num_top) == (True, MODEL, 1, None)
    assert (work.is_stream, work.has_usage_event, work.stops) == (False, False, [])


def test_ids_are_unique_even_for_the_same_body() -> None:
    assert len({chat().request_id for _ in range(10)}) == 10


def test_parts_count_as_their_joined_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    of_parts = chat(messages=[{"role": "user", "content": parts}])
    of_text = chat(messages=[{"role": "user", "content": "one\ntwo"}])
    assert tokens_of(only(of_parts)) == tokens_of(only(of_text))


def test_text_and_its_ids_are_the_same_request() -> None:
    text, ids = only(completion(prompt="Hello")), only(completion(prompt=list(b"Hello")))
    assert (text.request.token_ids, text.hashes) == (ids.request.token_ids, ids.hashes)


def test_several_prompts_are_several_asks_in_order() -> None:
    work = completion(prompt=["a", "bc"], n=2)
    assert [tokens_of(ask) for ask in work.asks] == [[97], [98, 99]]
    ids = [ask.request.request_id for ask in work.asks]
    assert ids == [f"{work.request_id}-0", f"{work.request_id}-1"]
    assert [tokens_of(ask) for ask in completion(prompt=[[1, 2], [3]]).asks] == [[1, 2], [3]]


def test_a_model_that_wants_a_first_token_gets_it_before_text_only() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.bos_id = 258
    prepare = preparer(tokenizer=tokenizer).completion
    text = prepare(b'{"prompt": "a"}', Caller(), INFO)
    ids = prepare(b'{"prompt": [97]}', Caller(), INFO)
    assert (tokens_of(only(text)), tokens_of(only(ids))) == ([258, 97], [97])


@pytest.mark.parametrize(
    ("prompt", "path"),
    [([259], "prompt[0]"), ([1, 2**31], "prompt[1]"), ([1, -1], "prompt[1]"),
     ([1, 2**40], "prompt[1]"), ([[1], [1, 300]], "prompt[1][1]"), ([[1], [-5]], "prompt[1][0]"),
     ([10**30], "prompt[0]")],
)  # fmt: skip
def test_token_ids_beyond_the_vocabulary(prompt: list[Any], path: str) -> None:
    assert fault(completion, prompt=prompt)[0] == path


def test_too_many_sequences() -> None:
    assert len(completion(prompt=["a"] * 64, n=16).asks) == 64
    path, message = fault(completion, prompt=["a"] * 65, n=16)
    assert (path, message) == ("prompt", f"65 prompts times n exceed {MAX_SEQUENCES}")


def test_another_model_is_unknown() -> None:
    with pytest.raises(UnknownModel) as caught:
        chat(model="gpt-4")
    assert str(caught.value) == f"model: 'gpt-4' is not served here, '{MODEL}' is"
    assert chat(model=MODEL).model == MODEL
    named = preparer({"model": {"name": "mine"}})
    body = b'{"model": "mine", "prompt": "a"}'
    assert named.completion(body, Caller(), INFO).model == "mine"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, MAX_SEQ_LEN - 21),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": MAX_SEQ_LEN - 21}, MAX_SEQ_LEN - 21),
        ({"max_tokens": MAX_SEQ_LEN - 20}, MAX_SEQ_LEN - 21),
        ({"max_tokens": 10 * MAX_SEQ_LEN}, MAX_SEQ_LEN - 21),
        ({"max_tokens": 2**31}, MAX_SEQ_LEN - 21),
        ({"max_tokens": 10**9}, MAX_SEQ_LEN - 21),
        ({"max_tokens": 10**40}, MAX_SEQ_LEN - 21),
    ],
)
def test_what_a_chat_may_generate(fields: dict[str, int], expected: int) -> None:
    assert only(chat(**fields)).request.sampling.max_tokens == expected


def test_a_completion_without_a_maximum_gets_sixteen_tokens() -> None:
    assert only(completion()).request.sampling.max_tokens == 16
    assert only(completion(prompt="x" * 505)).request.sampling.max_tokens == 7


def test_a_prompt_that_leaves_no_room() -> None:
    assert only(completion(prompt="x" * (MAX_SEQ_LEN - 1))).request.sampling.max_tokens == 1
    with pytest.raises(PromptTooLong) as caught:
        completion(prompt=[1] * MAX_SEQ_LEN, max_tokens=7)
    assert (caught.value.field, caught.value.code) == ("prompt", "context_length_exceeded")
    assert caught.value.message == (
        "the model holds at most 512 tokens; the prompt has 512, which leaves no room for the "
        "7 new tokens asked for"
    )


def test_a_hopelessly_long_text_is_never_tokenized() -> None:
    text = "x" * (MAX_SEQ_LEN * len("<|endoftext|>"))
    for path, call in (
        ("prompt", lambda: completion(prompt=text)),
        ("prompt[1]", lambda: completion(prompt=["a", text])),
        ("messages", lambda: chat(messages=[{"role": "user", "content": text}])),
    ):
        field, message = fault(call)
        assert field == path
        assert message == (
            "the model holds at most 512 tokens; the prompt has at least 512, which leaves no "
            "room for at least 1 new token"
        )


@pytest.mark.parametrize(
    ("key", "header", "body", "expected", "tier", "rank"),
    [
        (None, None, None, "interactive", "interactive", 0),
        ("k-acme", None, None, "agent", "standard", 1),
        ("k-acme", "batch", None, "batch", "batch", 2),
        (None, "batch", "oneoff", "oneoff", "standard", 1),
    ],
)
def test_where_the_request_type_comes_from(
    key: str | None, header: str | None, body: str | None, expected: str, tier: str, rank: int
) -> None:
    caller = Caller(f"Bearer {key}" if key else None, header)
    ask = only(chat(caller, request_type=body))
    assert (ask.request_type, ask.request.tier) == (expected, expected)
    assert (ask.tier, ask.request.service_rank) == (tier, rank)


@pytest.mark.parametrize("given", ["nope", "", "Interactive"])
def test_an_unknown_request_type(given: str) -> None:
    for call in (lambda: chat(request_type=given), lambda: chat(Caller(None, given))):
        path, message = fault(call)
        assert path == "request_type"
        assert message == f"{given!r} is none of: agent, batch, interactive, oneoff, system"


@pytest.mark.parametrize(
    ("authorization", "tenant", "salt"),
    [
        (None, "default", 0), ("Bearer unknown", "default", 0), ("Basic k-acme", "default", 0),
        ("Bearer k-acme", "acme", salt_of("s")), ("bearer  k-acme ", "acme", salt_of("s")),
        ("Bearer k-small", "small", 0), ("k-acme", "default", 0),
    ],
)  # fmt: skip
def test_the_tenant_of_a_key(authorization: str | None, tenant: str, salt: int) -> None:
    ask = only(completion(Caller(authorization), prompt="x" * 20))
    assert (ask.tenant, ask.request.tenant, ask.request.salt) == (tenant, tenant, salt)
    tokens = as_token_array(ask.request.token_ids)
    assert ask.hashes == block_hashes(tokens, BLOCK_SIZE, salt)


def test_a_default_tenant_with_keys_demands_one() -> None:
    strict = preparer({"tenants": {"default": {"api_keys": ["k"]}}})
    assert only(strict.completion(b'{"prompt": "a"}', Caller("Bearer k"), INFO)).tenant == "default"
    for authorization in (None, "Bearer other"):
        with pytest.raises(InvalidRequest) as caught:
            strict.completion(b'{"prompt": "a"}', Caller(authorization), INFO)
        assert caught.value.code == "invalid_api_key"


def test_a_cache_salt_keeps_blocks_apart_within_and_between_tenants() -> None:
    keys = [None, "Bearer k-acme"]
    salts = {
        only(completion(Caller(key), cache_salt=salt)).request.salt
        for key in keys
        for salt in (None, "a", "b")
    }
    assert len(salts) == 6


def test_the_request_type_decides_what_is_kept() -> None:
    messages = [{"role": "system", "content": "S" * 20}, {"role": "user", "content": "Hi"}]
    keep = only(chat(messages=messages)).request.retention
    assert keep.ranges == (
        TokenRange(0, 32, 100, None),
        TokenRange(32, None, 60, 60.0),
    )
    assert (keep.decode_retention_priority, keep.decode_duration_s) == (60, 60.0)
    once = only(completion(prompt="x" * 20, request_type="oneoff")).request.retention
    assert once.ranges == (TokenRange(0, None, 0, None),)
    assert (once.decode_retention_priority, once.decode_duration_s) == (0, None)


def test_explicit_retention_within_the_ceiling_of_the_tenant() -> None:
    ranges = [{"start": 0, "end": 8, "retention_priority": 90, "duration_s": 5}]
    given = only(completion(prompt="x" * 16, retention=ranges)).request.retention
    assert given.ranges[0] == TokenRange(0, 8, 90, 5.0)
    capped = only(completion(Caller("Bearer k-small"), prompt="x" * 16, retention=ranges))
    assert capped.request.retention.ranges[0].retention_priority == 50


BAD_RANGES: list[tuple[Any, str]] = [
    ([{"start": 0, "retention_priority": value}], "retention[0].retention_priority")
    for value in (-1, 101, 35.5, "80", None, True)
] + [
    ([{"start": 5, "end": 5, "retention_priority": 50}], "retention[0].end"),
    ([{"start": 5, "end": 4, "retention_priority": 50}], "retention[0].end"),
    ([{"start": -1, "retention_priority": 50}], "retention[0].start"),
    ([{"start": 0, "end": 99, "retention_priority": 50}], "retention[0].end"),
    ([{"start": "0", "retention_priority": 50}], "retention[0].start"),
    ([{"retention_priority": 50}], "retention[0].start"),
    ([{"start": 0}], "retention[0].retention_priority"),
    ([{"start": 0, "retention_priority": 50, "duration_s": 0}], "retention[0].duration_s"),
    ([{"start": 0, "retention_priority": 50, "duration_s": -5}], "retention[0].duration_s"),
    ([{"start": 0, "retention_priority": 50, "duration_s": "5"}], "retention[0].duration_s"),
    ([{"start": 0, "retention_priority": 50, "priority": 5}], "retention[0].priority"),
    ([{"start": 0, "retention_priority": 50}, {"start": 8, "retention_priority": 40}],
     "retention[0].end"),
    ([{"start": 0, "end": 9, "retention_priority": 50},
      {"start": 8, "end": 12, "retention_priority": 40}], "retention[1].start"),
    ({"start": 0}, "retention"),
    ("high", "retention"),
    ([5], "retention[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("ranges", "path"), BAD_RANGES)
def test_bad_retention_names_the_field(ranges: Any, path: str) -> None:
    assert fault(completion, prompt="x" * 16, retention=ranges)[0] == path


@pytest.mark.parametrize("priority", [0, 35, 100])
def test_bounds_of_retention_priority(priority: int) -> None:
    ranges = [{"start": 0, "retention_priority": priority}]
    kept = only(completion(prompt="x" * 16, retention=ranges)).request.retention
    assert kept.ranges == (TokenRange(0, None, priority, None),)


def sampling(**fields: Any) -> SamplingParams:
    return only(completion(max_tokens=8, **fields)).request.sampling


def test_sampling_as_given_and_by_default() -> None:
    assert sampling() == SamplingParams(max_tokens=8)
    given = sampling(
        temperature=0, top_p=0.5, top_k=3, min_p=0.1, seed=7, stop_token_ids=[1, 2, 1],
        ignore_eos=True, logprobs=2, n=3, logit_bias={"5": -100, "6": 1.5},
        presence_penalty=-2, frequency_penalty=2, min_tokens=4,
    )  # fmt: skip
    assert given == SamplingParams(
        max_tokens=8, temperature=0.0, top_p=0.5, top_k=3, min_p=0.1, seed=7,
        stop_token_ids=(1, 2), ignore_eos=True, logprobs=2, n=3, logit_bias={5: -100.0, 6: 1.5},
        presence_penalty=-2.0, frequency_penalty=2.0, min_tokens=4,
    )  # fmt: skip


def test_sampling_at_the_edges_of_its_ranges() -> None:
    assert sampling(top_p=0, temperature=2) == SamplingParams(max_tokens=8, temperature=0.0)
    assert sampling(top_k=-1).top_k == 0
    assert sampling(top_k=10**30).top_k == TOKENIZER.vocab_size
    assert sampling(seed=-1).seed == 2**63 - 1
    assert sampling(logit_bias={}) == SamplingParams(max_tokens=8)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"logit_bias": {"191222": -100}}, "logit_bias"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"": 5}}, "logit_bias"),
        ({"logit_bias": {"05": 5}}, "logit_bias"),
        ({"logit_bias": {" 5": 5}}, "logit_bias"),
        ({"logit_bias": {"٣": 5}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 5}}, "logit_bias"),
        ({"logit_bias": {"259": 5}}, "logit_bias"),
        ({"stop_token_ids": [259]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
        ({"min_tokens": 9}, "min_tokens"),
    ],
)
def test_what_the_vocabulary_and_the_maximum_refuse(fields: dict[str, Any], path: str) -> None:
    assert fault(sampling, **fields)[0] == path


def test_log_probabilities_of_both_kinds() -> None:
    assert chat(logprobs=True).num_top == 0
    assert chat(logprobs=True, top_logprobs=3).num_top == 3
    assert chat(logprobs=False).num_top is None
    assert completion(logprobs=0).num_top == 0


def test_either_kind_of_body() -> None:
    prepare = preparer().either
    chat_body = b'{"messages": [{"role": "user", "content": "a"}]}'
    assert prepare(chat_body, Caller(), INFO).is_chat
    assert not prepare(b'{"prompt": "a", "messages": null}', Caller(), INFO).is_chat
    assert fault(prepare, b"{}", Caller(), INFO)[0] == "prompt"
    both = b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}'
    assert fault(prepare, both, Caller(), INFO)[0] == "prompt"


def test_a_model_without_a_chat_template_takes_prompts_only() -> None:
    bare = Preparer(TOKENIZER, None, to_settings(TENANTS))
    data = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    with pytest.raises(InvalidRequest, match="no chat template") as raised:
        bare.chat(data, NOBODY, INFO)
    assert raised.value.field == "messages"
    assert len(bare.completion(b'{"prompt": "hi"}', NOBODY, INFO).asks) == 1


def test_a_caller_may_ask_for_a_worker() -> None:
    assert only(chat(Caller(pinned_worker="a-0"))).pinned_worker == "a-0"
    assert only(chat()).pinned_worker is None


def test_learned_retention_gets_what_it_plans_by() -> None:
    learned = preparer({**TENANTS, "retention": {"policy": "learned"}})

    def asked(caller: Caller = NOBODY, **fields: Any) -> Ask:
        body = json.dumps({"prompt": "x" * 20, **fields}).encode()
        return only(learned.completion(body, caller, INFO))

    ask = asked(Caller("Bearer k-small"))
    assert ask.prompt_use == PromptUse(
        ask.hashes, 20, BLOCK_SIZE, "interactive", tenant="small", ceiling=50
    )
    once = asked(request_type="oneoff").prompt_use
    assert once is not None
    assert (once.is_kept, once.keeps_reply) == (False, False)
    batch = asked(request_type="batch").prompt_use
    assert batch is not None
    assert (batch.is_kept, batch.keeps_reply) == (True, False)
    assert asked(retention=[{"start": 0, "retention_priority": 50}]).prompt_use is None
    assert only(completion()).prompt_use is None
