"""Two replicas that run the default model: text, streaming, and a second turn on its worker."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from controllers.errors import ModelFileError, SetupError
from serve_app.engine.model_store import ensure_default_model
from tests.cluster.conftest import OneFleet
from tests.cluster.fleet import Fleet, wait_idle
from tests.default_model import MODEL_PATH

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France? Answer in one short sentence."


@pytest.fixture
def model_fleet(one_fleet: OneFleet) -> Iterator[Fleet]:
    try:
        path = ensure_default_model(MODEL_PATH.parent, lambda line: None)
    except (SetupError, ModelFileError) as error:
        pytest.skip(f"the default model cannot be fetched: {error}")
    executor = {"kind": "local", "num_replicas": 2, "block_size": 16, "num_gpu_blocks": 128}
    running = one_fleet.with_settings({"executor": executor, "model": {"path": str(path)}})
    yield running
    wait_idle(running)


def test_a_real_model_answers_and_its_second_turn_finds_its_prefix(model_fleet: Fleet) -> None:
    with openai.OpenAI(base_url=f"{model_fleet.url}/v1", api_key="any", max_retries=0) as client:
        (model,) = client.models.list().data
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [
            {"role": "user", "content": QUESTION}
        ]
        raw = client.chat.completions.with_raw_response.create(
            model=model.id, messages=messages, max_tokens=24, temperature=0
        )
        answer = raw.parse()
        text = answer.choices[0].message.content
        assert text is not None
        assert "Paris" in text
        stream = client.chat.completions.create(
            model=model.id, messages=messages, max_tokens=24, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": "And of Italy?"},
        ]
        second = client.chat.completions.with_raw_response.create(
            model=model.id, messages=messages, max_tokens=24, temperature=0
        )
    assert second.headers["x-cachelane-worker"] == raw.headers["x-cachelane-worker"]
    assert second.headers["x-cachelane-reason"] == "overlap"
    usage = second.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert answer.usage is not None
    # All of the first turn's full blocks, prompt and answer, but the tokens of the template.
    assert usage.prompt_tokens_details.cached_tokens >= answer.usage.prompt_tokens // 16 * 16
