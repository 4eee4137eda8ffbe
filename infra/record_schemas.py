"""JSON Schema of every topic's records, generated from their types.

`python -m infra.record_schemas` writes them to `infra/schemas/`; a test fails when they are old.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from controllers.events import EventBatch
from controllers.records import BookingBatch, Decision, PrefixUse, ScalingDecision

FOLDER = Path(__file__).with_name("schemas")

TOPIC_TO_TYPE: dict[str, type[msgspec.Struct]] = {
    "kv-events": EventBatch,
    "decisions": Decision,
    "scaling": ScalingDecision,
    "bookings": BookingBatch,
    "uses": PrefixUse,
}


def schema_of(topic: str) -> dict[str, Any]:
    """Draft 2020-12 schema of one record of the topic (named without its prefix)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(TOPIC_TO_TYPE[topic]),
    }


def path_of(topic: str) -> Path:
    return FOLDER / f"{topic}.json"


def text_of(topic: str) -> str:
    return json.dumps(schema_of(topic), indent=2, sort_keys=True) + "\n"


def main() -> None:
    for topic in TOPIC_TO_TYPE:
        path_of(topic).write_text(text_of(topic), encoding="utf-8")


if __name__ == "__main__":
    main()
