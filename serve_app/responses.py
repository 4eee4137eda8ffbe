"""Shapes of what the OpenAI-style endpoints answer."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class CachedTokens(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    """Tokens. A prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenEntry]
    refusal: None


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[CompletionChoice]
    usage: Usage


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int  # tokens, prompt and answer together
    parent: str | None  # an adapter's model


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class Problem(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: Problem
