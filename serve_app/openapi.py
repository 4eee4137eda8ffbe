"""The OpenAPI description of the HTTP edge, from the models of the bodies and the answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from serve_app.protocol import Body, ChatBody, CompletionBody
from serve_app.responses import ChatCompletion, Completion, ErrorBody, ModelCard, ModelList

_REF = "#/components/schemas/{model}"
_ANSWERS = {
    "ChatCompletion": ChatCompletion,
    "Completion": Completion,
    "ErrorBody": ErrorBody,
    "ModelCard": ModelCard,
    "ModelList": ModelList,
}
_BODIES: dict[str, type[Body]] = {"ChatBody": ChatBody, "CompletionBody": CompletionBody}


def describe_api(app: FastAPI) -> dict[str, Any]:
    """An OpenAPI 3.1 document; made once per application."""
    if app.openapi_schema is None:
        app.openapi_schema = {
            "openapi": "3.1.0",
            "info": {"title": app.title, "version": app.version},
            "paths": _paths(),
            "components": {"schemas": _schemas()},
        }
    return app.openapi_schema


def _paths() -> dict[str, Any]:
    return {
        "/v1/chat/completions": _post("Chat completion", ["ChatBody"], "ChatCompletion", True),
        "/v1/completions": _post("Text completion", ["CompletionBody"], "Completion", True),
        "/fleet/route": _post("Explain where a request would go", list(_BODIES), None, False),
        "/v1/models": _get("Models served here", "ModelList"),
        "/v1/models/{model}": _get("One model", "ModelCard", has_model=True),
        "/health": _get("This process is alive", None),
        "/ready": _get("Requests can be served (503 with a reason if not)", None),
        "/fleet": _get("Workers, caches, loads and routing counters", None),
    }


def _post(summary: str, bodies: list[str], answer: str | None, has_stream: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _schema_of(answer)}}
    if has_stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    refs = [_schema_of(body) for body in bodies]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {"200": {"description": summary, "content": content}, **_errors()},
        }
    }


def _get(summary: str, answer: str | None, has_model: bool = False) -> dict[str, Any]:
    content = {"application/json": {"schema": _schema_of(answer)}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}},
    }
    if has_model:
        model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [model]
    return {"get": operation}


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": _schema_of("ErrorBody")}}
    meanings = {
        "400": "The request breaks a rule; `param` names the field",
        "401": "The API key is missing or unknown",
        "404": "The model is not served here",
        "413": "The body is too large",
        "429": "The tenant is over a limit of its own; see Retry-After",
        "503": "Too much work is waiting, or no worker can serve yet; see Retry-After",
    }
    return {
        status: {"description": meaning, "content": content} for status, meaning in meanings.items()
    }


def _schema_of(name: str | None) -> dict[str, Any]:
    return {"type": "object"} if name is None else {"$ref": _REF.format(model=name)}


def _schemas() -> dict[str, Any]:
    _, bodies = models_json_schema(
        [(body, "validation") for body in _BODIES.values()], ref_template=_REF
    )
    schemas: dict[str, Any] = dict(bodies.get("$defs", {}))
    for name, answer in _ANSWERS.items():
        schema = TypeAdapter(answer).json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
    return schemas
