"""Figures of cells of the routing benchmark, made up."""

from __future__ import annotations

from typing import Any


def figures(
    ttft: float,
    p99: float = 100.0,
    e2e: float = 1000.0,
    busiest: float = 1.1,
    num_rerun: int = 0,
) -> dict[str, Any]:
    """Ten requests."""
    return {
        "num_requests": 10,
        "num_rerun": num_rerun,
        "ttft_ms": {"mean": ttft, "p50": ttft / 2, "p99": p99},
        "e2e_ms": {"mean": e2e, "p50": e2e / 2, "p99": 2 * e2e},
        "reuse": 0.5,
        "busiest_over_mean": busiest,
        "ttft_quantiles_ms": [1.0, 2.0, p99],
        "wall_s": 3.0,
    }
