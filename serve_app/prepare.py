"""A request body -> Work: what to ask the fleet for each prompt, and how to write the answer.

Owns everything that can be said about a request before it is placed: tenant, request type, tokens,
limits, retention, block hashes. Pure apart from the request's id and time, so it may run in a
thread. Knows no HTTP beyond three header values, and no worker.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import numpy as np

from controllers.blocks import TokenArray, as_token_array, block_hashes
from controllers.errors import InvalidRequest, PromptTooLong
from controllers.promises import DEFAULT_RETENTION_PRIORITY
from controllers.prompt_use import PromptUse
from controllers.retention import Retention, Spans, plan, rule_of
from controllers.retention_ranges import parse_ranges
from infra.settings import Settings
from serve_app.chat import Chat
from serve_app.executors.base import ExecutorInfo, GenerateRequest
from serve_app.fleet import Ask
from serve_app.protocol import ChatBody, CompletionBody, GenerationBody, parse
from serve_app.protocol_checks import (
    check_chat,
    check_completion,
    plain_message,
    prompts_of,
    stop_strings,
)
from serve_app.sampling import sampling_of
from serve_app.served_models import ServedModels
from serve_app.stop_strings import StopAutomaton
from serve_app.tenancy import Tenant, Tenants
from serve_app.tokenizer import Tokenizer
from serve_app.work import Caller, Prompt, Terms, Work

MAX_SEQUENCES = 1024  # prompts times n, of one request
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions


class Preparer:
    """Reads bodies for one tokenizer, template and settings. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, template: Chat | None, settings: Settings) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._settings = settings
        self._tenants = Tenants(settings)
        self.models = ServedModels(settings)
        sizes = (len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
        self._longest_token = max(1, *sizes)  # bytes

    def chat(self, data: bytes, caller: Caller, info: ExecutorInfo) -> Work:
        """Body of /v1/chat/completions. Raises InvalidRequest."""
        body = parse(ChatBody, data)
        check_chat(body)
        self.models.adapter(body.model, info)  # before anything that takes longer
        if self._template is None:
            raise InvalidRequest(
                "messages", "this model has no chat template; /v1/completions takes a prompt"
            )
        messages = [plain_message(message, i) for i, message in enumerate(body.messages)]
        num_bytes = sum(len(message["content"].encode()) for message in messages)
        self._check_size(num_bytes, "messages", info.max_seq_len)
        rendered = self._template.prompt(messages)
        tokens = as_token_array(rendered.token_ids, "messages")
        spans = Spans(rendered.spans.system_end, rendered.spans.history_end, len(tokens))
        prompt = Prompt(tokens, spans, "messages")
        num_top = (body.top_logprobs or 0) if body.logprobs else None
        wanted = body.max_completion_tokens or body.max_tokens
        return self._work(body, [prompt], caller, info, wanted, num_top)

    def completion(self, data: bytes, caller: Caller, info: ExecutorInfo) -> Work:
        """Body of /v1/completions. Raises InvalidRequest."""
        body = parse(CompletionBody, data)
        check_completion(body)
        self.models.adapter(body.model, info)
        given = prompts_of(body.prompt)
        if len(given) * (body.n or 1) > MAX_SEQUENCES:
            raise InvalidRequest("prompt", f"{len(given)} prompts times n exceed {MAX_SEQUENCES}")
        is_one = not isinstance(body.prompt, list) or isinstance(body.prompt[0], int)
        prompts = [
            self._completion_prompt(item, "prompt" if is_one else f"prompt[{index}]", info)
            for index, item in enumerate(given)
        ]
        wanted = body.max_tokens or COMPLETION_MAX_TOKENS
        return self._work(body, prompts, caller, info, wanted, body.logprobs)

    def either(self, data: bytes, caller: Caller, info: ExecutorInfo) -> Work:
        """A chat body if it has messages, else a completion body. Raises InvalidRequest."""
        body = parse(GenerationBody, data)
        extra = body.model_extra or {}
        if extra.get("messages") is None:
            return self.completion(data, caller, info)
        return self.chat(data, caller, info)

    def _check_size(self, num_bytes: int, field: str, max_seq_len: int) -> None:
        """Spares the tokenizer a text that is too long however it is cut into tokens."""
        at_least = num_bytes // self._longest_token
        if at_least >= max_seq_len:
            raise _too_long(field, f"at least {at_least}", None, max_seq_len)

    def _completion_prompt(self, given: str | list[int], field: str, info: ExecutorInfo) -> Prompt:
        if isinstance(given, str):
            self._check_size(len(given.encode()), field, info.max_seq_len)
            start = () if self._tokenizer.bos_id is None else (self._tokenizer.bos_id,)
            tokens = as_token_array([*start, *self._tokenizer.encode(given)], field)
        else:
            tokens = as_token_array(given, field)
            _check_vocabulary(tokens, self._tokenizer.vocab_size, field)
        if not len(tokens):
            raise InvalidRequest(field, "has no tokens")
        return Prompt(tokens, Spans(0, 0, len(tokens)), field)

    def _work(
        self,
        body: GenerationBody,
        prompts: Sequence[Prompt],
        caller: Caller,
        info: ExecutorInfo,
        wanted: int | None,
        num_top: int | None,
    ) -> Work:
        stops = [StopAutomaton(stop) for stop in stop_strings(body.stop)]
        terms = self._terms(body, caller, info, wanted, num_top)
        return Work(
            request_id=terms.request_id,
            is_chat=isinstance(body, ChatBody),
            model=terms.adapter or self.models.base(info),
            created=int(time.time()),
            asks=[
                self._ask(terms, prompt, "" if len(prompts) == 1 else f"-{index}")
                for index, prompt in enumerate(prompts)
            ],
            n=body.n or 1,
            stops=stops,
            num_top=num_top,
            is_stream=bool(body.stream),
            has_usage_event=bool(body.stream_options and body.stream_options.include_usage),
        )

    def _terms(
        self,
        body: GenerationBody,
        caller: Caller,
        info: ExecutorInfo,
        wanted: int | None,
        num_top: int | None,
    ) -> Terms:
        tenant = self._tenants.of(caller.authorization)
        adapter = self.models.adapter(body.model, info)
        kind = "chatcmpl" if isinstance(body, ChatBody) else "cmpl"
        return Terms(
            body=body,
            info=info,
            tenant=tenant,
            adapter=adapter,
            salt=tenant.salt(body.cache_salt, adapter),
            request_type=self._request_type(body, caller, tenant),
            request_id=f"{kind}-{uuid.uuid4().hex}",
            pinned_worker=caller.pinned_worker,
            wanted=wanted,
            num_top=num_top,
        )

    def _ask(self, terms: Terms, prompt: Prompt, suffix: str) -> Ask:
        info, num_tokens = terms.info, len(prompt.tokens)
        max_tokens = _max_tokens(prompt, terms.wanted, info.max_seq_len)
        tiers = self._settings.tiers
        tier = tiers.tier_of(terms.request_type)
        hashes = block_hashes(prompt.tokens, info.block_size, terms.salt)
        request = GenerateRequest(
            request_id=terms.request_id + suffix,
            token_ids=prompt.tokens.tobytes(),
            sampling=sampling_of(terms.body, max_tokens, self._tokenizer.vocab_size, terms.num_top),
            retention=self._retention(terms, prompt),
            salt=terms.salt,
            adapter=terms.adapter,
            tier=terms.request_type,
            tenant=terms.tenant.name,
            service_rank=tiers.rule(tier).rank,
        )
        return Ask(
            request=request,
            hashes=hashes,
            num_tokens=num_tokens,
            request_type=terms.request_type,
            tier=tier,
            tenant=terms.tenant.name,
            pinned_worker=terms.pinned_worker,
            spans=prompt.spans,
            prompt_use=self._prompt_use(terms, hashes, num_tokens),
        )

    def _prompt_use(self, terms: Terms, hashes: list[int], num_tokens: int) -> PromptUse | None:
        """None if the retention that was planned from the tiers stands."""
        policy = self._settings.retention
        if policy.policy == "static" or terms.body.retention is not None:
            return None
        rule = rule_of(policy, terms.request_type)
        decode = rule.decode.retention_priority
        return PromptUse(
            hashes=hashes,
            num_tokens=num_tokens,
            block_size=terms.info.block_size,
            request_type=terms.request_type,
            tenant=terms.tenant.name,
            ceiling=terms.tenant.settings.max_retention_priority,
            is_kept=rule.current.retention_priority != 0,
            keeps_reply=decode is None or decode >= DEFAULT_RETENTION_PRIORITY,
        )

    def _retention(self, terms: Terms, prompt: Prompt) -> Retention:
        return plan(
            self._settings.retention,
            terms.request_type,
            prompt.spans,
            terms.info.block_size,
            parse_ranges(terms.body.retention, len(prompt.tokens)),
            terms.tenant.settings.max_retention_priority,
            is_shared=terms.tenant.salt(terms.body.cache_salt) == 0,
        )

    def _request_type(self, body: GenerationBody, caller: Caller, tenant: Tenant) -> str:
        """The body's, else the header's, else the tenant's, else the policy's default."""
        for given in (body.request_type, caller.request_type, tenant.settings.default_request_type):
            if given is not None:
                return given
        return self._settings.retention.default_request_type


def _max_tokens(prompt: Prompt, wanted: int | None, max_seq_len: int) -> int:
    """Tokens that may be generated: what was asked for, at most what the model can still hold."""
    room = max_seq_len - len(prompt.tokens)
    if room < 1:
        raise _too_long(prompt.field, str(len(prompt.tokens)), wanted, max_seq_len)
    return room if wanted is None else min(wanted, room)


def _too_long(field: str, num_tokens: str, wanted: int | None, max_seq_len: int) -> PromptTooLong:
    asked = "at least 1 new token" if wanted is None else f"the {wanted} new tokens asked for"
    return PromptTooLong(
        field,
        f"the model holds at most {max_seq_len} tokens; the prompt has {num_tokens}, which leaves "
        f"no room for {asked}",
        "context_length_exceeded",
    )


def _check_vocabulary(tokens: TokenArray, vocab_size: int, field: str) -> None:
    bad = np.flatnonzero(tokens >= vocab_size)
    if len(bad):
        raise InvalidRequest(
            f"{field}[{bad[0]}]",
            f"token id {tokens[bad[0]]} is beyond the vocabulary of {vocab_size}",
        )
