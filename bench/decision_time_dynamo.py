"""Decision time of Dynamo's in-process selection service on the workload of decision_workload.

Runs in an interpreter of its own that has ai-dynamo-runtime, pyzmq, msgspec and numpy; prints one
JSON line. Needs nothing of ours. Three ways to a reserved worker: `tokens` hands over the array as
the list of ids that the service takes; `hashed` computes hashes from it with the package's own
function and hands over those; `hashes` has them ready, so that hashing does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

os.environ.setdefault("DYN_LOG", "error")

import msgspec
import xxhash
import zmq
from decision_workload import (
    BLOCK_SIZE,
    Stored,
    Times,
    Tokens,
    Workload,
    add_arguments,
    workload_of,
)
from dynamo.llm import SelectionService, compute_block_hash_for_seq

MODEL = "bench"
MAX_WAIT_S = 120.0
Ask = Callable[[], dict[str, Any]]
Figures = dict[str, Any]


class Publisher:
    """One ZMQ socket for each worker, as an engine has."""

    def __init__(self, num_workers: int) -> None:
        context = zmq.Context()
        self._sockets = [context.socket(zmq.PUB) for _ in range(num_workers)]
        for socket in self._sockets:
            socket.set_hwm(0)
        self.ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in self._sockets]
        self._seqs = [0] * num_workers

    def publish(self, run: Stored) -> None:
        event = {
            "type": "BlockStored",
            "block_hashes": run.names,
            "parent_block_hash": run.parent,
            "token_ids": run.tokens.tolist(),
            "block_size": BLOCK_SIZE,
        }
        seq = self._seqs[run.worker].to_bytes(8, "big")
        payload = msgspec.msgpack.encode([0.0, [event], 0])
        self._sockets[run.worker].send_multipart([b"", seq, payload])
        self._seqs[run.worker] += 1


async def start(workload: Workload, num_threads: int) -> SelectionService:
    """A service that knows what the workers hold."""
    service = SelectionService(indexer_threads=num_threads)
    publisher = Publisher(workload.num_workers)
    for worker, port in enumerate(publisher.ports):
        await service.upsert_worker(
            {
                "worker_id": worker,
                "model_name": MODEL,
                "endpoint": f"http://worker-{worker}",
                "block_size": BLOCK_SIZE,
                "data_parallel_size": 1,
                "kv_events_endpoints": {0: f"tcp://127.0.0.1:{port}"},
                "max_num_batched_tokens": 8192,
                "total_kv_blocks": 1_000_000,
            }
        )
    await asyncio.sleep(1.5)  # subscriptions are not confirmed
    for run in workload.stored:
        publisher.publish(run)
    for run in {run.worker: run for run in workload.stored}.values():
        await _seen(service, run)
    return service


async def _seen(service: SelectionService, last: Stored) -> None:
    prompt = last.chain.tokens[: last.end * BLOCK_SIZE].tolist()
    deadline = time.monotonic() + MAX_WAIT_S
    while time.monotonic() < deadline:
        scores = await service.overlap_scores({"model_name": MODEL, "token_ids": prompt})
        blocks = {row["worker_id"]: row["device_blocks"] for row in scores["workers"]}
        if blocks.get(last.worker) == last.end:
            return
        await asyncio.sleep(0.02)
    raise SystemExit(f"worker {last.worker} never showed {last.end} blocks")


def from_tokens(tokens: Tokens) -> dict[str, Any]:
    return {"token_ids": tokens.tolist()}


def from_hashes(tokens: Tokens) -> dict[str, Any]:
    """The service takes signed hashes, its own hashing returns unsigned ones."""
    local = compute_block_hash_for_seq(tokens.tolist(), BLOCK_SIZE)
    return {
        "block_hashes": list(_signed(local)),
        "sequence_hashes": list(_signed(_chained(local))),
        "isl_tokens": len(tokens),
    }


def _chained(local: list[int]) -> Iterator[int]:
    """Dynamo's sequence hashes: the hash of the pair of the one before and the block's own."""
    last = local[0]
    yield last
    for block_hash in local[1:]:
        last = xxhash.xxh3_64_intdigest(struct.pack("<QQ", last, block_hash), seed=1337)
        yield last


def _signed(hashes: Iterable[int]) -> Iterator[int]:
    return (h - (1 << 64) if h >> 63 else h for h in hashes)


async def reserve(service: SelectionService, number: int, asked: dict[str, Any]) -> dict[str, Any]:
    request = {"model_name": MODEL, "selection_id": f"selection-{number}", **asked}
    answer: dict[str, Any] = await service.select_and_reserve(request)
    return answer


async def measure(workload: Workload, num_threads: int, num_passes: int) -> Figures:
    """Microseconds by way, length and whether there is an overlap."""
    service = await start(workload, num_threads)
    for number, tokens in enumerate(workload.running):
        answer = await reserve(service, number, from_tokens(tokens))
        await service.prefill_complete(answer["selection_id"])
    times, number = Times(), len(workload.running)
    for length, prompts in workload.prompts.items():
        for index, tokens in [*enumerate(prompts)] * num_passes:
            for way, ask in _ways(tokens).items():
                number += 1
                started = time.perf_counter()
                answer = await reserve(service, number, ask())
                times.add(way, length, index, time.perf_counter() - started)
                await service.free_reservation(answer["selection_id"])
                _check(length, index, answer["overlap"]["gpu"])
    service.shutdown()
    return times.figures()


def _ways(tokens: Tokens) -> dict[str, Ask]:
    ready = from_hashes(tokens)
    return {
        "tokens": lambda: from_tokens(tokens),
        "hashed": lambda: from_hashes(tokens),
        "hashes": lambda: ready,
    }


def _check(length: int, index: int, num_tokens: int) -> None:
    """It went where its first half is."""
    expected = length // 2 * BLOCK_SIZE if index % 2 == 0 else 0
    if num_tokens != expected:
        raise SystemExit(f"prompt {index} of {length} blocks met {num_tokens} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=4, help="of its indexer")
    args = parser.parse_args()
    found = asyncio.run(measure(workload_of(args), args.threads, args.passes))
    print(json.dumps({"version": version("ai-dynamo-runtime"), **found}))


if __name__ == "__main__":
    main()
