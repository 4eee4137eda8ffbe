"""Generates the Python code of `cachelane.proto`: `make proto`. Needs grpcio-tools.

The service's own copy is importable as `serve_app.proto.cachelane_pb2`; the one of the example
client stands alone, so that a client needs nothing of this package.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent.parent
PROTO = Path("serve_app/proto/cachelane.proto")
CLIENT = Path("examples/grpc_client")


def generate(target: Path) -> None:
    """Writes both copies under `target`, at their places in the repository."""
    (target / CLIENT).mkdir(parents=True, exist_ok=True)
    _protoc(ROOT, target, PROTO)
    _protoc(ROOT / PROTO.parent, target / CLIENT, Path(PROTO.name))


def _protoc(include: Path, target: Path, file: Path) -> None:
    common = str(files("grpc_tools") / "_proto")
    outs = [f"--{kind}={target}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    command = ["protoc", f"-I{include}", f"-I{common}", *outs, str(file)]
    if protoc.main(command) != 0:
        raise SystemExit(f"protoc failed: {' '.join(command)}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
