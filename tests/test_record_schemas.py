from __future__ import annotations

import json

import jsonschema
import pytest

from controllers.record_codec import encode
from infra.record_schemas import TOPIC_TO_TYPE, path_of, text_of
from tests.records import RECORDS


@pytest.mark.parametrize("topic", list(TOPIC_TO_TYPE))
def test_the_committed_schema_is_the_one_of_the_types(topic: str) -> None:
    assert path_of(topic).read_text(encoding="utf-8") == text_of(topic)


@pytest.mark.parametrize("topic", list(TOPIC_TO_TYPE))
def test_records_are_valid_and_a_missing_field_is_not(topic: str) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(path_of(topic).read_text()))
    for record in RECORDS[topic]:
        values = json.loads(encode(record))
        assert list(validator.iter_errors(values)) == []
        del values["schema"]
        assert [error.validator for error in validator.iter_errors(values)] == ["required"]
