"""The generated code is what the pinned generator makes of the interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.proto import cachelane_pb2 as pb
from serve_app.protocol import ChatBody, CompletionBody

ROOT = Path(__file__).parent.parent


def test_the_committed_code_is_what_make_proto_makes(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    from serve_app.proto.generate import generate

    generate(tmp_path)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert len(made) == 6
    stale = [str(p) for p in sorted(made) if (tmp_path / p).read_text() != (ROOT / p).read_text()]
    assert stale == [], "run `make proto`"


def test_every_field_is_one_of_the_body_that_checks_it() -> None:
    """But for the worker to ask for, which HTTP takes as a header, and the two kinds of prompt."""
    completion = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
    chat = {field.name for field in pb.ChatRequest.DESCRIPTOR.fields}
    assert completion - CompletionBody.model_fields.keys() == {"text", "token_ids", "pin"}
    assert chat - ChatBody.model_fields.keys() == {"pin"}
    # What a message says in another way: by which method is called, or by its only name for it.
    elsewhere = {"stream", "stream_options"}
    assert CompletionBody.model_fields.keys() - completion == {*elsewhere, "prompt"}
    assert ChatBody.model_fields.keys() - chat == {*elsewhere, "max_completion_tokens"}


def test_what_chat_and_completions_share_has_the_same_numbers() -> None:
    def numbers(message: type) -> dict[str, int]:
        fields = message.DESCRIPTOR.fields  # type: ignore[attr-defined]
        return {field.name: field.number for field in fields if field.number >= 10}

    assert numbers(pb.GenerateRequest) == numbers(pb.ChatRequest)
