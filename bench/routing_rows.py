"""What the routing benchmark runs, as data: rows, settings of peers, cases, targets.

Knows nothing of how a row is run. A row is a trace at so many times its speed, written
`conversation:4`; a router is `cachelane` or a peer with its weights, written `dynamo:2/32/32`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from controllers.errors import SettingsError
from controllers.simulation.settings import Outage

NUM_WORKERS = 8
NUM_BLOCKS = 65_536
BLOCK_SIZE = 32
JITTER = 0.01
OURS = "cachelane"
CLEAN = "clean"
SHORT = "short"  # not a file: made up, the number behind it is requests a second

TRACE_FILES = {
    "conversation": ("mooncake_conversation.jsonl.gz", "conversation_trace.jsonl"),
    "synthetic": ("mooncake_synthetic.jsonl.gz", "synthetic_trace.jsonl"),
    "weka": ("weka_merged_512_12k.delta.jsonl.gz",),
}


class Row(NamedTuple):
    trace: str
    speedup: float

    @property
    def name(self) -> str:
        return f"{self.trace}:{self.speedup:g}"

    @property
    def label(self) -> str:
        unit = "/s" if self.trace == SHORT else "x"
        return f"{self.trace} {self.speedup:g}{unit}"


def parse_row(text: str) -> Row:
    """Raises SettingsError."""
    trace, _, speedup = text.strip().partition(":")
    if trace not in (*TRACE_FILES, SHORT):
        raise SettingsError(f"--rows: {text!r} names none of: {', '.join(TRACE_FILES)}, {SHORT}")
    try:
        return Row(trace, float(speedup))
    except ValueError:
        raise SettingsError(f"--rows: {text!r} is not TRACE:SPEEDUP") from None


class Goal(NamedTuple):
    """`most_ttft`: of the best tuned peer's mean. `reference_ms`: mean TTFT of an independent
    implementation of the policy on a simulator of its own, `noise` the share that seeds move it."""

    most_ttft: float
    reference_ms: float
    noise: float


MOST_E2E = 1.02  # of the best tuned peer's
MOST_P99 = 1.02
GOALS = {
    "conversation:1": Goal(0.93, 195.7, 0.005),
    "conversation:2": Goal(0.90, 203.9, 0.005),
    "conversation:4": Goal(0.89, 215.6, 0.005),
    "synthetic:1": Goal(1.01, 130.6, 0.01),
    "synthetic:2": Goal(1.01, 137.4, 0.01),
    "synthetic:4": Goal(1.01, 150.7, 0.01),
    "weka:1": Goal(0.86, 170.2, 0.03),
    "weka:2": Goal(0.80, 201.3, 0.03),
    "weka:3": Goal(0.80, 312.0, 0.08),
}
ROWS = tuple(parse_row(name) for name in GOALS)
P99_ROWS = ("conversation:1", "conversation:2", "conversation:4")

# As their projects ship them, and the strongest single setting of all.
STANDARD = {
    "dynamo:2/32/32": "Dynamo 2/32/32",
    "dynamo:1/8/32": "Dynamo 1/8/32",
    "dynamo:1/1/0": "Dynamo default",
    "llmd:3/2/2": "llm-d 3/2/2",
    "sglang:64/1.5/0.3": "SGLang",
    "trtllm:0.25": "TensorRT-LLM .25",
    "mooncake:0.5": "Mooncake .5",
    "lmetric": "LMetric",
    "least_queued": "least queued tokens",
    "least_requests": "least requests",
    "round_robin": "round robin",
}
FAMILIES = {
    "dynamo": "Dynamo",
    "llmd": "llm-d",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "trtllm_old": "TensorRT-LLM (old)",
    "mooncake": "Mooncake",
    "lmetric": "LMetric",
    "least_queued": "least queued tokens",
    "least_requests": "least requests",
    "round_robin": "round robin",
}


def _grid() -> tuple[str, ...]:
    dynamo = [
        f"dynamo:{credit}/{scale}/{active}"
        for credit in (1, 2)
        for scale in (1, 4, 8, 16, 32)
        for active in (0, 32, 64)
    ]
    triples = (
        "3/2/2", "1/1/1", "3/1/1", "5/2/2", "3/5/2", "3/2/5", "1/3/1", "3/2/0", "2/1/2", "8/2/2",
        "3/1/3", "3/4/4", "2/2/4",
    )  # fmt: skip
    gates = ("64/1.5", "32/1.5", "8/1.5", "4/1.2", "2/1.1")
    return (
        *dynamo,
        *(f"llmd:{triple}" for triple in triples),
        *(f"sglang:{gate}/{match}" for gate in gates for match in (0.1, 0.3, 0.5)),
        *(f"trtllm:{weight:g}" for weight in (0.25, 2, 8, 16, 32, 64, 128, 256)),
        *(f"trtllm_old:{size}" for size in (4, 8, 16, 32, 64, 256)),
        *(f"mooncake:{weight:g}" for weight in (0.25, 0.5, 1, 2)),
        "lmetric",
        "least_queued",
        "least_requests",
        "round_robin",
    )


GRID = _grid()


def family_of(router: str) -> str:
    return router.partition(":")[0]


def label_of(router: str) -> str:
    if router == OURS:
        return "ours"
    weights = router.partition(":")[2]
    return STANDARD.get(router) or f"{FAMILIES[family_of(router)]} {weights}".strip()


Changes: TypeAlias = dict[str, Any]  # fields of FleetSettings
Against: TypeAlias = Literal["best peer", "clean", "balance"]


class Case(NamedTuple):
    """One thing that goes wrong. `limits`: row -> most that ours may be: of the best peer's mean
    TTFT in the same case, of our own clean one, or busiest over mean. `changes` takes when the last
    request arrives, s. `with_tuned`: the row's best tuned peer runs too."""

    name: str
    title: str
    against: Against
    limits: Mapping[str, float]
    changes: Callable[[float], Changes] = lambda last_s: {}
    peers: tuple[str, ...] = ("dynamo:2/32/32", "dynamo:1/8/32", "llmd:3/2/2")
    with_tuned: bool = False
    system_tokens: int = 0  # of a system prompt put before every request


_THREE = ("conversation:4", "synthetic:4", "weka:2")
_ROUTER_LIMITS = {"conversation:4": 1.12, "synthetic:4": 1.05, "weka:2": 1.05, "weka:3": 1.10}
_ALL_PEERS = ("dynamo:2/32/32", "dynamo:1/8/32", "llmd:3/2/2", "least_requests")


def _routers(num: int) -> Case:
    return Case(
        f"routers-{num}",
        f"{num} routers",
        "clean",
        _ROUTER_LIMITS,
        lambda last_s: {"num_routers": num},
    )


ROUTER_CASES = tuple(_routers(num) for num in (2, 4, 8))
CASES = (
    Case("short", "short prompts", "best peer", {f"{SHORT}:600": 1.0}, peers=_ALL_PEERS),
    *ROUTER_CASES,
    Case(
        "slow",
        "one worker 3x slower",
        "best peer",
        dict.fromkeys(_THREE, 1.0),
        lambda last_s: {"slowness": {0: 3.0}},
        _ALL_PEERS,
        with_tuned=True,
    ),
    Case(
        "small-caches",
        "four workers with 1/8 of the cache",
        "best peer",
        dict.fromkeys(("conversation:4", "synthetic:4", "weka:1", "weka:2"), 1.0),
        lambda last_s: {"blocks_of": dict.fromkeys(range(4), NUM_BLOCKS // 8)},
        with_tuned=True,
    ),
    Case(
        "lag",
        "events 1 s late",
        "clean",
        dict.fromkeys(_THREE, 1.02),
        lambda last_s: {"event_lag_s": 1.0},
    ),
    Case(
        "loss",
        "1 % of events lost",
        "clean",
        dict.fromkeys(_THREE, 1.03),
        lambda last_s: {"event_loss": 0.01},
    ),
    Case(
        "death",
        "a worker dies half way",
        "clean",
        dict.fromkeys(_THREE, 1.10),
        lambda last_s: {"outages": (Outage(3, last_s / 2),)},
    ),
    Case(
        "shared-prompt",
        "8k system prompt shared by all",
        "balance",
        dict.fromkeys(_THREE, 1.25),
        system_tokens=8192,
    ),
)
NAME_TO_CASE = {case.name: case for case in (Case(CLEAN, CLEAN, "clean", {}), *CASES)}
