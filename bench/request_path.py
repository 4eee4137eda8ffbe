"""Latency, requests/s and CPU time of the whole request path, beside others, in the same minutes.

    python -m bench.request_path [--dynamo DIR] [--rounds 3] [--json OUT.json]

Ours: HAProxy -> ingress (validate, template, tokenize, hash, plan, place) -> gate -> scripted
executor and back, two replicas. Beside it: a bare FastAPI application, a Serve application with
Serve's default router in the same cluster behind the same HAProxy (neither tokenizes or routes by
prefix), and NVIDIA Dynamo's front end with mocked engines if DIR holds `venv/` and `tiny/` (a
tokenizer folder, which ours then uses too). Every server gets the same bodies from the same client,
in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from bench.arguments import folder_with, new_file, positive_int
from bench.fleet import Fleet, running_fleet
from bench.load import Result, run
from bench.report import write_json
from bench.request_path_cpu import Parts, cpu_ms, parts_of, parts_of_others, with_children
from infra.ports import free_ports
from infra.service_url import open_url
from infra.settings import environment

PATH = "/v1/chat/completions"
TEXT = "a sentence of filler for a prompt that has some length "
CONCURRENCIES = {1: 300, 16: 1000}  # concurrency -> requests of a round
NUM_REPLICAS = 2
NUM_BLOCKS = 4096
NUM_CONVERSATIONS = 20
START_TIMEOUT_S = 90.0


class Server(NamedTuple):
    """`model` is what its requests name."""

    url: str
    model: str
    parts: Parts


class Round(NamedTuple):
    """`cpu_ms`: of a request, by part of the server."""

    result: Result
    cpu_ms: dict[str, float]


def bodies(model: str, num: int) -> list[dict[str, Any]]:
    """Prompts of some 3 kB; the first line tells 20 conversations apart."""
    return [
        {
            "model": model,
            "messages": [
                {"role": "user", "content": f"conversation {i % NUM_CONVERSATIONS} " + TEXT * 55}
            ],
            "max_tokens": 4,
            "stream": True,
        }
        for i in range(num)
    ]


@contextlib.contextmanager
def plain_server() -> Iterator[Server]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.request_path_peers", "plain", str(port)]
    with _process(command) as pid:
        url = f"http://127.0.0.1:{port}"
        _wait_for(urllib.request.Request(url + "/openapi.json"))
        yield Server(url + PATH, "plain", {"server": with_children([pid])})


@contextlib.contextmanager
def serve_default(fleet: Fleet) -> Iterator[Server]:
    """Deployed into our fleet's cluster by a process with that cluster's environment."""
    state = fleet.state()
    url = f"{fleet.url}/plain{PATH}"
    command = [sys.executable, "-m", "bench.request_path_peers", "serve", state.ray_address]
    subprocess.run(
        [*command, str(NUM_REPLICAS), "/plain"],
        env=psutil.Process(state.sessions["ray"].pid).environ(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    _wait_for(urllib.request.Request(url, b"{}", {"Content-Type": "application/json"}))
    yield Server(url, "plain", parts_of_others(fleet))


@contextlib.contextmanager
def dynamo(folder: Path) -> Iterator[Server]:
    """Front end with its KV router, and two mocked TensorRT-LLM engines at 1,000x speed."""
    (port,) = free_ports(1)
    python = folder / "venv/bin/python"
    store = folder / "filekv"
    store.mkdir(exist_ok=True)
    env = environment(
        DYN_LOG="error",
        DYN_FILE_KV=str(store),
        DYN_DISCOVERY_BACKEND="file",
        DYN_EVENT_PLANE="zmq",
        DYN_REQUEST_PLANE="tcp",
        DYN_TCP_RPC_HOST="127.0.0.1",
        DYN_HTTP_RPC_HOST="127.0.0.1",
        DYN_SYSTEM_HOST="127.0.0.1",
        HF_HUB_OFFLINE="1",
    )
    mocker = [str(python), "-m", "dynamo.mocker", "--model-path", "tiny", "--model-name", "tiny"]
    mocker += ["--engine-type", "trtllm", "--num-workers", str(NUM_REPLICAS)]
    mocker += ["--block-size", "32", "--num-gpu-blocks", str(NUM_BLOCKS), "--speedup-ratio", "1000"]
    front = [str(python), "-m", "dynamo.frontend", "--http-host", "127.0.0.1"]
    front += ["--http-port", str(port), "--router-mode", "kv"]
    with _process(mocker, env, folder) as engines, _process(front, env, folder) as front_end:
        url = f"http://127.0.0.1:{port}"
        _wait_for(urllib.request.Request(url + "/v1/models"), "tiny")
        parts = {"front end": with_children([front_end]), "engines": with_children([engines])}
        yield Server(url + PATH, "tiny", parts)


def measure(folder: Path | None, rounds: int) -> dict[str, dict[int, list[Round]]]:
    """Server -> concurrency -> rounds."""
    settings: dict[str, Any] = {
        "executor": {
            "kind": "scripted",
            "num_replicas": NUM_REPLICAS,
            "num_gpu_blocks": NUM_BLOCKS,
            "max_batched_tokens": 8192,
            "max_batch_size": 64,
        },
        "model": {"path": str(folder / "tiny") if folder is not None else None},
    }
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(settings))
        others = {
            "fastapi": stack.enter_context(plain_server()),
            "serve default router": stack.enter_context(serve_default(fleet)),
        }
        if folder is not None:
            others["dynamo"] = stack.enter_context(dynamo(folder))
        # Last, as the other application has given HAProxy another process.
        ours = Server(fleet.url + PATH, "scripted", parts_of(fleet))
        servers = {"cachelane": ours, **others}
        results: dict[str, dict[int, list[Round]]] = {name: {} for name in servers}
        for server in servers.values():
            one_round(server, 100, 4)
        for concurrency, num in CONCURRENCIES.items():
            for _ in range(rounds):
                for name, server in servers.items():
                    done = one_round(server, num, concurrency)
                    results[name].setdefault(concurrency, []).append(done)
        return results


def one_round(server: Server, num: int, concurrency: int) -> Round:
    before = cpu_ms(server.parts)
    result = asyncio.run(run(server.url, bodies(server.model, num), concurrency))
    after = cpu_ms(server.parts)
    return Round(result, {name: (after[name] - before[name]) / num for name in before})


def figures(rounds: list[Round]) -> dict[str, float]:
    """Medians over the rounds."""
    results = [done.result for done in rounds]
    cpu = {
        f"cpu_ms {name}": round(median(done.cpu_ms[name] for done in rounds), 2)
        for name in rounds[0].cpu_ms
    }
    return {
        "requests_per_s": round(median(r.requests_per_s for r in results), 1),
        "ttft_p50_ms": round(median(r.ttft_ms(0.5) for r in results), 2),
        "ttft_p99_ms": round(median(r.ttft_ms(0.99) for r in results), 2),
        "total_p50_ms": round(median(r.total_ms(0.5) for r in results), 2),
        "cpu_ms": round(median(sum(done.cpu_ms.values()) for done in rounds), 2),
        **cpu,
    }


@contextlib.contextmanager
def _process(
    command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None
) -> Iterator[int]:
    """Its id."""
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, env=env, cwd=cwd, stdout=quiet, stderr=quiet)
    try:
        yield child.pid
    finally:
        child.terminate()
        child.wait(20)


def _wait_for(request: urllib.request.Request, text: str = "") -> None:
    """Until it is answered with 200 and the text."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), open_url(request, 5.0) as response:
            if text in response.read().decode():
                return
        time.sleep(0.2)
    raise TimeoutError(f"{request.full_url} does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dynamo", type=folder_with("venv/bin/python", "tiny"))
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    results = measure(args.dynamo and args.dynamo.resolve(), args.rounds)
    table = {
        name: {str(c): figures(rounds) for c, rounds in by_concurrency.items()}
        for name, by_concurrency in results.items()
    }
    write_json("request_path", table, args.json)
    for concurrency in CONCURRENCIES:
        print(f"\nconcurrency {concurrency}")
        ours = table["cachelane"][str(concurrency)]
        for name, by_concurrency in table.items():
            row = by_concurrency[str(concurrency)]
            ratio = ours["requests_per_s"] / row["requests_per_s"]
            shown = "  ".join(f"{key} {value:>8}" for key, value in row.items())
            print(f"  {name:22} {shown}   ours/it {ratio:.2f}")


if __name__ == "__main__":
    main()
