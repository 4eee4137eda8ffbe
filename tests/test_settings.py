from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from controllers.errors import SettingsError, SetupError
from infra.settings import Settings, environment_of, load_settings, to_settings, to_values
from infra.settings_sections import (
    ExecutorSettings,
    KafkaSecurity,
    ModelSettings,
    TenantSettings,
)

SECTIONS = ", ".join(sorted(Settings.__struct_fields__))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cachelane.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def error_of(values: Mapping[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        to_settings(values)
    return str(caught.value)


def file_error(tmp_path: Path, text: str, env: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(written(tmp_path, text), env or {})
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_defaults() -> None:
    assert load_settings(None, {}) == Settings()
    assert to_settings({}) == Settings()
    assert Settings().executor == ExecutorSettings(kind="local", num_replicas=2, block_size=32)


def test_values_round_trip() -> None:
    settings = to_settings(
        {
            "model": {"name": "m"},
            "tenants": {"default": {}, "a": {"salt": "s", "api_keys": ["k"]}},
            "retention": {"request_types": {"mine": {"decode": {"retention_priority": 5}}}},
        }
    )
    assert settings.tenants == {
        "default": TenantSettings(),
        "a": TenantSettings(salt="s", api_keys=["k"]),
    }
    assert to_settings(to_values(settings)) == settings


def test_file_and_environment(tmp_path: Path) -> None:
    path = written(tmp_path, "model: {name: from-file}\nexecutor:\n  block_size: 16\n")
    env = {
        "CACHELANE_MODEL__NAME": "from-env",
        "CACHELANE_EXECUTOR__SCRIPTED__DECODE_MS": "1.5",
        "CACHELANE_TENANTS__DEFAULT__API_KEYS": "[a, b]",
        "CACHELANE_HOME": "not a setting",
        "OTHER__NAME": "not ours",
    }
    settings = load_settings(path, env)
    assert settings.model == ModelSettings(name="from-env")
    assert settings.executor.block_size == 16
    assert settings.executor.scripted.decode_ms == 1.5
    assert settings.tenants == {"default": TenantSettings(api_keys=["a", "b"])}


@pytest.mark.parametrize("text", ["", "# nothing\n", "executor:\n  # block_size: 16\nmodel:\n"])
def test_empty_files_and_sections_are_defaults(tmp_path: Path, text: str) -> None:
    assert load_settings(written(tmp_path, text), {}) == Settings()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"executr": {}},
            f"executr: unknown key; did you mean 'executor'? valid keys: {SECTIONS}",
        ),
        ({"zzz": {}}, f"zzz: unknown key; valid keys: {SECTIONS}"),
        (
            {"executor": {"scripted": {"prefil_ms": 1}}},
            "executor.scripted.prefil_ms: unknown key; did you mean 'prefill_ms'? "
            "valid keys: decode_ms, die_on, hang_on, prefill_ms, prefill_ms_per_token, "
            "slow_factor, slow_on",
        ),
        (
            {"tenants": {"default": {}, "acme": {"slat": "x"}}},
            "tenants.acme.slat: unknown key; did you mean 'salt'? "
            "valid keys: api_keys, default_request_type, limits, max_retention_priority, salt",
        ),
        (
            {"retention": {"request_types": {"mine": {"systm": {}}}}},
            "retention.request_types.mine.systm: unknown key; did you mean 'system'? "
            "valid keys: current, decode, history, system",
        ),
    ],
)
def test_unknown_keys(values: Mapping[str, Any], message: str) -> None:
    assert error_of(values) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"executor": {"block_size": "32"}},
            "executor.block_size: Expected `int`, got `str`; "
            "'32' is text to YAML, the number is written 32, without quotes",
        ),
        (
            {"executor": {"block_size": "x"}},
            "executor.block_size: Expected `int`, got `str`",
        ),
        ({"routing": {"beta": "1e999"}}, "routing.beta: Expected `float`, got `str`"),
        ({"executor": {"block_size": 0}}, "executor.block_size: Expected `int` >= 1, got 0"),
        ({"executor": {"block_size": -1}}, "executor.block_size: Expected `int` >= 1, got -1"),
        ({"executor": {"num_replicas": True}}, "executor.num_replicas: Expected `int`, got `bool`"),
        ({"executor": {"num_replicas": 2.5}}, "executor.num_replicas: Expected `int`, got `float`"),
        (
            {"executor": {"kind": "trt"}},
            "executor.kind: Invalid enum value 'trt'; valid values: 'local', 'scripted', 'trtllm'",
        ),
        (
            {"executor": {"kind": False}},
            "executor.kind: Expected `str`, got `bool`; "
            "valid values: 'local', 'scripted', 'trtllm'",
        ),
        (
            {"model": {"name": True}},
            "model.name: Expected `str | null`, got `bool`; "
            "YAML reads yes, no, on, off, true and false as booleans: quote it",
        ),
        ({"executor": None}, "executor: Expected `object`, got `null`"),
        ({"executor": []}, "executor: Expected `object`, got `array`"),
        ({"http": {"port": 65536}}, "http.port: Expected `int` <= 65535, got 65536"),
        (
            {"kafka": {"topic_prefix": "a b"}},
            "kafka.topic_prefix: Expected `str` matching regex '^[A-Za-z0-9._-]{1,100}$', "
            "got 'a b'",
        ),
        (
            {"kafka": {"security": {"sasl_mechanism": [1]}}},
            "kafka.security.sasl_mechanism: Expected `str | null`, got `array`; "
            "valid values: 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512'",
        ),
        (
            {"kafka": {"max_record_bytes": 600_000_000}},
            "kafka.max_record_bytes: Expected `int` <= 100000000, got 600000000",
        ),
        (
            {"tenants": {"default": {"api_keys": ["a", 1]}}},
            "tenants.default.api_keys[1]: Expected `str`, got `int`; "
            "YAML reads it as a number: quote it",
        ),
        (
            {"tenants": {"default": {"salt": ""}}},
            "tenants.default.salt: Expected `str` of length >= 1, got ''",
        ),
        (
            {"tenants": {"default": {}, 7: {}}},
            "a key of tenants: Expected `str`, got `int`; YAML reads it as a number: quote it",
        ),
        ({1: {}}, "a key of the file: Expected `str`"),
        ({"routing": {"beta": float("nan")}}, "routing.beta: Expected `float` >= 0.0, got nan"),
        ({"routing": {"theta": float("inf")}}, "routing.theta: inf is not a finite number"),
        (
            {"routing": {"policy": "sticky"}},
            "routing.policy: Invalid enum value 'sticky'; valid values: "
            "'kv_aware', 'random', 'round_robin', 'least_requests'",
        ),
        (
            {"retention": {"request_types": {"mine": {"system": {"retention_priority": 101}}}}},
            "retention.request_types.mine.system.retention_priority: Expected `int` <= 100, "
            "got 101",
        ),
    ],
)
def test_wrong_values(values: Mapping[str, Any], message: str) -> None:
    assert error_of(values) == message


@pytest.mark.parametrize(
    ("text", "read", "number"),
    [
        ("1e-300", "1e-300", "1.0e-300"),
        ("1e308", "1e308", "1.0e+308"),
        ("1.5e3", "1.5e3", "1500.0, without quotes"),
        ("'0.5'", "0.5", "0.5, without quotes"),
    ],
)
def test_a_number_that_yaml_takes_for_text(
    tmp_path: Path, text: str, read: str, number: str
) -> None:
    assert file_error(tmp_path, f"routing: {{beta: {text}}}") == (
        "routing.beta: Expected `float`, got `str`; "
        f"{read!r} is text to YAML, the number is written {number}"
    )
    mended = written(tmp_path, f"routing: {{beta: {number.split(',')[0]}}}")
    assert load_settings(mended, env={}).routing.beta == float(read)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"retention": {"request_types": {"": {}}}},
            "retention.request_types: '' is no name of a request type",
        ),
        (
            {"tiers": {"request_types": {"": "batch"}}},
            "tiers.request_types: '' is no name of a request type",
        ),
        ({"tenants": {"a": {}}}, "tenants: must have 'default', got ['a']"),
        (
            {"grpc": {"enabled": True, "port": 0}},
            "grpc.port: 0 is any free port, which no client can know",
        ),
        ({"grpc": {"enabled": True, "port": 8000}}, "grpc.port: 8000 is http.port too"),
        (
            {"tenants": {"default": {}, "a": {"default_request_type": "fast"}}},
            "tenants.a.default_request_type: 'fast' is none of "
            "['agent', 'batch', 'interactive', 'oneoff', 'system']",
        ),
        (
            {"tenants": {"default": {"api_keys": ["k"]}, "a": {"api_keys": ["k"]}}},
            "tenants: an API key is given twice",
        ),
        (
            {"retention": {"default_request_type": "fast"}},
            "retention.default_request_type: 'fast' is none of "
            "['agent', 'batch', 'interactive', 'oneoff', 'system']",
        ),
    ],
)
def test_laws_between_settings(values: Mapping[str, Any], message: str) -> None:
    assert error_of(values) == message


def test_a_tenant_may_use_a_type_of_its_own() -> None:
    values = {
        "tenants": {"default": {}, "a": {"default_request_type": "mine"}},
        "retention": {"request_types": {"mine": {}}},
    }
    assert to_settings(values).tenants["a"].default_request_type == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "cachelane.yaml: key 'a' is given twice (line 2)"),
        (
            "executor:\n  kind: local\n  kind: local\n",
            "cachelane.yaml: key 'kind' is given twice (line 3)",
        ),
        ("? [a]\n: 1\n", "cachelane.yaml: a key must be a plain word (line 1)"),
        ("- 1\n", "cachelane.yaml must hold sections, got list"),
        ("just text\n", "cachelane.yaml must hold sections, got str"),
    ],
)
def test_files_of_wrong_shape(tmp_path: Path, text: str, message: str) -> None:
    assert file_error(tmp_path, text) == message


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: 1\n---\nb: 2\n", "a: 2020-13-45\n", "a: !!python/object:os.system x\n", "\t: x"],
)
def test_files_that_are_not_yaml(tmp_path: Path, text: str) -> None:
    assert file_error(tmp_path, text).startswith("cachelane.yaml is not YAML: ")


def test_a_yaml_boolean_in_a_file(tmp_path: Path) -> None:
    assert file_error(tmp_path, "model:\n  name: on\n") == (
        "model.name: Expected `str | null`, got `bool`; "
        "YAML reads yes, no, on, off, true and false as booleans: quote it"
    )


PROTOCOLS = "valid values: 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "security_protocl: SSL",
            "security_protocl: unknown key; did you mean 'security_protocol'? valid keys: "
            + ", ".join(sorted(KafkaSecurity.__struct_fields__)),
        ),
        ("security_protocol: FOO", f"security_protocol: Invalid enum value 'FOO'; {PROTOCOLS}"),
        ("security_protocol: ssl", f"security_protocol: Invalid enum value 'ssl'; {PROTOCOLS}"),
        (
            "security_protocol: 1",
            f"security_protocol: Expected `str | null`, got `int`; {PROTOCOLS}",
        ),
        (
            'ssl_check_hostname: "maybe"',
            "ssl_check_hostname: Expected `bool | null`, got `str`",
        ),
        (
            "sasl_plain_password: 123456",
            "sasl_plain_password: Expected `str | null`, got `int`; "
            "YAML reads it as a number: quote it",
        ),
        (
            "sasl_plain_password: 1.5",
            "sasl_plain_password: Expected `str | null`, got `float`; "
            "YAML reads it as a number: quote it",
        ),
        (
            "sasl_plain_password: 2020-01-02",
            "sasl_plain_password: Expected `str | null`, got `date`; "
            "YAML reads it as a date: quote it",
        ),
        ('ssl_cafile: ""', "ssl_cafile: Expected `str` of length >= 1, got ''"),
    ],
)
def test_wrong_kafka_security(tmp_path: Path, text: str, message: str) -> None:
    found = file_error(tmp_path, f"kafka:\n  security:\n    {text}\n")
    assert found == f"kafka.security.{message}"


@pytest.mark.parametrize("secret", ["123456", "0123", "yes", "null", "p: w", "[a", "{b}", " c# "])
def test_secrets_from_the_environment_are_taken_as_they_stand(secret: str) -> None:
    env = {"CACHELANE_KAFKA__SECURITY__SASL_PLAIN_PASSWORD": secret}
    settings = load_settings(None, env)
    assert settings.kafka.security == KafkaSecurity(sasl_plain_password=secret)
    assert to_values(settings)["kafka"]["security"] == {"sasl_plain_password": secret}
    assert to_settings(to_values(settings)) == settings


def test_other_kafka_security_from_the_environment(tmp_path: Path) -> None:
    path = written(tmp_path, "kafka: {security: {ssl_cafile: /ca, sasl_plain_username: u}}\n")
    env = {
        "CACHELANE_KAFKA__SECURITY__SSL_CHECK_HOSTNAME": "false",
        "CACHELANE_KAFKA__SECURITY__SECURITY_PROTOCOL": "SSL",
        "CACHELANE_KAFKA__SECURITY__SSL_CAFILE": "",
    }
    assert load_settings(path, env).kafka.security == KafkaSecurity(
        security_protocol="SSL", ssl_check_hostname=False, sasl_plain_username="u"
    )
    with pytest.raises(SettingsError, match="ssl_check_hostname: Expected `bool"):
        load_settings(path, {"CACHELANE_KAFKA__SECURITY__SSL_CHECK_HOSTNAME": "maybe"})


def test_merge_keys_and_their_overrides(tmp_path: Path) -> None:
    text = (
        "tenants:\n  default: &base {salt: s, max_retention_priority: 50}\n"
        "  a:\n    <<: *base\n    salt: t\n"
    )
    assert load_settings(written(tmp_path, text), {}).tenants == {
        "default": TenantSettings(salt="s", max_retention_priority=50),
        "a": TenantSettings(salt="t", max_retention_priority=50),
    }


def test_unreadable_files(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(SettingsError, match=re.escape(f"cannot read settings file {missing}: ")):
        load_settings(missing, {})
    with pytest.raises(SettingsError, match=re.escape(f"cannot read settings file {tmp_path}: ")):
        load_settings(tmp_path, {})
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SettingsError, match=re.escape(f"cannot read settings file {binary}: ")):
        load_settings(binary, {})


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {"CACHELANE_EXECUTOR__BLOCK_SIZE": "many"},
            "executor.block_size: Expected `int`, got `str`",
        ),
        (
            {"CACHELANE_EXECUTOR__BLOKSIZE": "8"},
            "executor.bloksize: unknown key; did you mean 'block_size'? valid keys: "
            + ", ".join(sorted(ExecutorSettings.__struct_fields__)),
        ),
        ({"CACHELANE_MODEL__NAME__X": "1"}, "CACHELANE_MODEL__NAME__X: name is not a section"),
        (
            {"CACHELANE_TENANTS__DEFAULT": "{salt: a, salt: b}"},
            "CACHELANE_TENANTS__DEFAULT: key 'salt' is given twice (line 1)",
        ),
    ],
)
def test_bad_environment(tmp_path: Path, env: Mapping[str, str], message: str) -> None:
    assert file_error(tmp_path, "model: {name: m}\n", env) == message


def test_environment_of_a_process_that_is_gone() -> None:
    assert environment_of(os.getpid())["PATH"]
    with pytest.raises(SetupError, match="cannot read the environment of process 4194305"):
        environment_of(2**22 + 1)


def test_environment_that_is_not_yaml(tmp_path: Path) -> None:
    message = file_error(tmp_path, "", {"CACHELANE_MODEL__NAME": "["})
    assert message.startswith("CACHELANE_MODEL__NAME is not YAML: ")


def test_an_iteration_has_room_for_a_token_of_each_sequence() -> None:
    values = {"executor": {"max_batched_tokens": 16, "max_batch_size": 16}}
    with pytest.raises(SettingsError, match=r"executor\.max_batched_tokens: 16 must be larger"):
        to_settings(values)
    values["executor"]["max_batched_tokens"] = 17
    assert to_settings(values).executor.max_batched_tokens == 17
