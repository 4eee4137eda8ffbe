"""Names of the model and its adapters, and what asking for an adapter means."""

from __future__ import annotations

import json

import pytest

from controllers.errors import InvalidRequest, UnknownModel
from infra.settings import Settings, to_settings
from serve_app.chat import Chat
from serve_app.prepare import Preparer
from serve_app.served_models import ServedModels
from serve_app.tokenizer import ByteTokenizer
from serve_app.work import Caller
from tests.routing_rig import INFO

LORAS = {"executor": {"kind": "trtllm", "trtllm": {"loras": {"legal": "/l", "poems": "/p"}}}}


def settings(**more: object) -> Settings:
    return to_settings({**LORAS, **more})


def test_names() -> None:
    models = ServedModels(settings())
    assert models.names(INFO) == ["m", "legal", "poems"]
    assert ServedModels(settings(model={"name": "ours"})).names(INFO) == ["ours", "legal", "poems"]
    asked = [None, "m", "legal", "poems"]
    assert [models.adapter(name, INFO) for name in asked] == [None, None, "legal", "poems"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("trtllm", "model: 'prose' is not served here, 'm' or 'legal' or 'poems' are"),
        ("scripted", "model: 'prose' is not served here, 'm' is"),
    ],
)
def test_an_unknown_name(kind: str, message: str) -> None:
    executor = {**LORAS["executor"], "kind": kind}
    with pytest.raises(UnknownModel) as caught:
        ServedModels(to_settings({"executor": executor})).adapter("prose", INFO)
    assert str(caught.value) == message


def test_an_adapter_has_blocks_of_its_own_for_each_tenant() -> None:
    tenants = {"default": {}, "acme": {"api_keys": ["k"], "salt": "s"}}
    tokenizer = ByteTokenizer()
    preparer = Preparer(tokenizer, Chat(tokenizer), settings(tenants=tenants))
    salts = set()
    for model in ("m", "legal", "poems"):
        for authorization in (None, "Bearer k"):
            for extra in ("", ', "cache_salt": "mine"'):
                body = f'{{"model": "{model}", "prompt": "the same text"{extra}}}'.encode()
                work = preparer.completion(body, Caller(authorization, None), INFO)
                (asked,) = work.asks
                assert work.model == model
                assert asked.request.adapter == (None if model == "m" else model)
                salts.add(asked.request.salt)
    assert len(salts) == 12
    assert 0 in salts  # the model itself, without any salt


def test_a_system_prompt_stays_protected_under_an_adapter() -> None:
    """Tenants without a salt share an adapter's blocks as they share the model's."""
    preparer = Preparer(ByteTokenizer(), Chat(ByteTokenizer()), settings())
    messages = [{"role": "system", "content": "s" * 60}, {"role": "user", "content": "u"}]
    low = [{"start": 0, "end": 8, "retention_priority": 1}]
    for model in ("m", "legal"):
        with pytest.raises(InvalidRequest, match="kept at for all who share it"):
            preparer.chat(body_of(model, messages, low), Caller(None, None), INFO)


def body_of(model: str, messages: list[dict[str, str]], retention: object) -> bytes:
    return json.dumps({"model": model, "messages": messages, "retention": retention}).encode()
