"""One trace through Dynamo's own offline replay: its mocked engines and its real router.

Runs in an interpreter of its own that has ai-dynamo-runtime; needs nothing of ours. Prints one JSON
line with the figures of `cachelane simulate`, under the same names. ROUTER is `round_robin` or
`credit/scale/active`: weights of its KV router, `1/1/0` by default.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("DYN_LOG", "error")

from dynamo._core import KvRouterConfig, run_mocker_trace_replay

TRACE_BLOCK = 512


def replay(args: argparse.Namespace, per_request: Path) -> dict[str, Any]:
    """Dynamo's summary; a JSON line for each request goes to the file."""
    engine = {
        "backend": "trtllm",
        "num_gpu_blocks": args.blocks,
        "block_size": args.block_size,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "enable_prefix_caching": True,
    }
    is_kv = args.router != "round_robin"
    result = run_mocker_trace_replay(
        [args.trace],
        extra_engine_args={"engine": engine},
        router_config=router_config(args.router) if is_kv else None,
        num_workers=args.workers,
        router_mode="kv_router" if is_kv else "round_robin",
        trace_format="mooncake",
        trace_block_size=TRACE_BLOCK,
        report_jsonl_path=str(per_request),
    )
    return dict(result.summary)


def router_config(weights: str) -> KvRouterConfig:
    credit, scale, active = map(float, weights.split("/"))
    return KvRouterConfig(
        overlap_score_credit=credit,
        prefill_load_scale=scale,
        decode_active_request_weight=active,
    )


def figures(
    summary: dict[str, Any], requests: Iterable[dict[str, Any]], num_workers: int
) -> dict[str, Any]:
    if summary["completed_requests"] != summary["num_requests"]:
        raise SystemExit(f"only {summary['completed_requests']} requests completed")
    return {
        "num_requests": summary["num_requests"],
        "ttft_ms": _spread(summary, "ttft_ms"),
        "e2e_ms": _spread(summary, "e2e_latency_ms"),
        "reuse": summary["prefix_cache_reused_ratio"],
        "busiest_over_mean": busiest_over_mean(requests, num_workers),
    }


def busiest_over_mean(requests: Iterable[dict[str, Any]], num_workers: int) -> float:
    """By prompt tokens computed: the replay does not say how long prefill took."""
    computed: dict[int, int] = defaultdict(int)
    for request in requests:
        tokens = request["input_length"] - request["reused_input_tokens"]
        computed[request["decode_worker_idx"]] += tokens
    return max(computed.values()) * num_workers / max(1, sum(computed.values()))


def _spread(summary: dict[str, Any], name: str) -> dict[str, float]:
    return {
        "mean": summary[f"mean_{name}"],
        "p50": summary[f"median_{name}"],
        "p99": summary[f"p99_{name}"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", help="Mooncake JSON lines, not compressed")
    parser.add_argument("--router", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--block-size", type=int, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        per_request = Path(folder, "requests.jsonl")
        summary = replay(args, per_request)
        with per_request.open() as lines:
            found = figures(summary, map(json.loads, lines), args.workers)
    print(json.dumps({"version": version("ai-dynamo-runtime"), **found}))


if __name__ == "__main__":
    main()
