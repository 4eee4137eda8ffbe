"""Retention in the engine, as requests bring it, against the replay that judges policies.

The same slice of a mix goes through the local engine, with its scheduler, in chunks, and through
`controllers.retention_replay`. Plans reach the engine as they do in production: made by the tiers
or by an ingress's retention keeper, sent as bytes. What is found and what is evicted, in its order,
must be the same for each request; a request that was planned otherwise would show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import pytest

from controllers.blocks import block_hashes
from controllers.events import Event, Removed, Stored, Updated, ints_of
from controllers.prompt_use import PromptUse
from controllers.retention import Retention, Spans, plan, rule_of
from controllers.retention_replay import Learned, Policy, Prompt, StaticTiers, replay
from infra.event_bus_memory import MemoryBus
from serve_app.engine.block_manager import BlockManager
from serve_app.engine.engine import Engine
from serve_app.engine.event_buffer import EventBuffer
from serve_app.engine.scheduler import Scheduler
from serve_app.engine.scripted_model import ScriptedModel
from serve_app.engine.tiers import NoStorage
from serve_app.executors.base import GenerateRequest, SamplingParams
from serve_app.fleet import Ask, Route
from serve_app.outcome import Outcome
from serve_app.retention_keeper import RetentionKeeper
from serve_app.wire import Call, decode_call, encode_call
from tests.mix_slice import BLOCK_SIZE, POLICY, Sliced, load_slice
from tests.routing_rig import settings

WORKER = "r-0"
SLICE = list(load_slice())
CHUNK = 24  # tokens; most prompts take several steps


class Found(NamedTuple):
    """What came of one request; hits in blocks, a part of one counts too."""

    num_hits: float
    removed: list[int]


class Watched:
    """A policy that writes down what the replay tells it."""

    def __init__(self, policy: Policy) -> None:
        self.found: list[Found] = []
        self._policy = policy

    def retention(self, prompt: Prompt) -> Retention:
        return self._policy.retention(prompt)

    def done(self, prompt: Prompt, num_hits: int, removed: Sequence[int]) -> None:
        self.found.append(Found(num_hits, list(removed)))
        self._policy.done(prompt, num_hits, removed)


class Planner(Protocol):
    """Of an ingress: the request with its retention, and the news of its end."""

    def request(self, sliced: Sliced, request_id: str) -> GenerateRequest: ...
    def done(self, request_id: str, found: Found, now: float) -> None: ...


def plain(sliced: Sliced, request_id: str) -> GenerateRequest:
    """One output token: nothing but the prompt is stored."""
    return GenerateRequest(
        request_id=request_id,
        token_ids=b"".join(token.to_bytes(4, "little") for token in sliced.tokens),
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
    )


class Tiers:
    def request(self, sliced: Sliced, request_id: str) -> GenerateRequest:
        prompt = sliced.prompt
        planned = plan(POLICY, prompt.request_type, prompt.spans, BLOCK_SIZE)
        return msgspec.structs.replace(plain(sliced, request_id), retention=planned)

    def done(self, request_id: str, found: Found, now: float) -> None: ...


class Keeper:
    """The ingress's own, with a clock that follows the trace."""

    def __init__(self, num_blocks: int) -> None:
        self._keeper = RetentionKeeper(settings(), MemoryBus(), "i", lambda: math.nan)
        self._keeper.set_workers({WORKER: num_blocks})
        self._outcomes: dict[str, Outcome] = {}

    def request(self, sliced: Sliced, request_id: str) -> GenerateRequest:
        prompt = sliced.prompt
        asked = ask(sliced, plain(sliced, request_id))
        outcome = Outcome(asked, Route(worker=WORKER), lambda: prompt.at_s)
        self._outcomes[request_id] = outcome
        self._keeper.tick(prompt.at_s)
        planned = self._keeper.retention(outcome, prompt.at_s)
        return msgspec.structs.replace(asked.request, retention=planned)

    def done(self, request_id: str, found: Found, now: float) -> None:
        outcome = self._outcomes.pop(request_id)
        outcome.cached_tokens = int(found.num_hits * BLOCK_SIZE)
        self._keeper.finished(outcome, now)
        self._keeper.removed(WORKER, [f"{block:016x}" for block in found.removed], now)


def ask(sliced: Sliced, request: GenerateRequest) -> Ask:
    prompt = sliced.prompt
    rule = rule_of(POLICY, prompt.request_type)
    hashes = list(prompt.full_hashes(BLOCK_SIZE))
    return Ask(
        request=request,
        hashes=hashes,
        num_tokens=len(sliced.tokens),
        request_type=prompt.request_type,
        tier="t",
        tenant=prompt.tenant,
        prompt_use=PromptUse(
            hashes=hashes,
            num_tokens=len(sliced.tokens),
            block_size=BLOCK_SIZE,
            request_type=prompt.request_type,
            tenant=prompt.tenant,
            is_kept=rule.current.retention_priority != 0,
            keeps_reply=False,  # the replay knows of no replies
        ),
    )


class Worker:
    """An engine without a model; its clock follows the trace."""

    def __init__(self, num_blocks: int) -> None:
        self.now = 0.0
        self.stored: list[Stored] = []
        self.lowered: list[int] = []
        self._events = EventBuffer(4096)
        manager = BlockManager(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=num_blocks,
            storage=NoStorage(),
            events=self._events,
        )
        self._engine = Engine(
            manager=manager,
            scheduler=Scheduler(manager, max_batch_size=4, max_batched_tokens=CHUNK),
            runner=ScriptedModel(eos_id=-1),
            events=self._events,
            max_seq_len=BLOCK_SIZE * num_blocks,
            eos_ids=(),
            clock=lambda: self.now,
        )

    def run(self, request: GenerateRequest, now: float) -> Found:
        self.now = now
        self._engine.add_request(request)
        cached: list[int] = []
        while self._engine.has_work:
            cached += [o.cached_tokens for o in self._engine.step() if o.cached_tokens is not None]
        return Found(cached[0] / BLOCK_SIZE, self._drained())

    def _drained(self) -> list[int]:
        self._events.flush()
        events: list[Event] = self._events.drain(0)
        self.stored += [event for event in events if isinstance(event, Stored)]
        self.lowered += [
            block
            for event in events
            if isinstance(event, Updated) and (event.retention_priority or 0) < 35
            for block in ints_of(event.hashes)
        ]
        gone = [event for event in events if isinstance(event, Removed)]
        return [block for event in gone for block in ints_of(event.hashes)]


def in_the_engine(
    planner: Planner, num_blocks: int, slices: Sequence[Sliced] = SLICE
) -> tuple[list[Found], Worker]:
    worker = Worker(num_blocks)
    found: list[Found] = []
    for number, sliced in enumerate(slices):
        request = planner.request(sliced, str(number))
        arrived = decode_call(encode_call(Call(request, 0, 1.0, 1.0))).request
        found.append(worker.run(arrived, sliced.prompt.at_s))
        planner.done(str(number), found[-1], sliced.prompt.at_s)
    return found, worker


def in_the_replay(policy: Policy, num_blocks: int, slices: Sequence[Sliced] = SLICE) -> list[Found]:
    watched = Watched(policy)
    replay([sliced.prompt for sliced in slices], watched, num_blocks, BLOCK_SIZE)
    return watched.found


@pytest.mark.parametrize("num_blocks", [100, 180, 300])
def test_tiers_do_in_the_engine_what_the_replay_says(num_blocks: int) -> None:
    found, worker = in_the_engine(Tiers(), num_blocks)
    assert found == in_the_replay(StaticTiers(POLICY, BLOCK_SIZE), num_blocks)
    assert sum(each.num_hits for each in found) > 300
    assert sum(len(each.removed) for each in found) > 300
    assert kept(worker) == {100, 80, 60}


@pytest.mark.parametrize("num_blocks", [100, 180, 300])
def test_learned_retention_does_in_the_engine_what_the_replay_says(num_blocks: int) -> None:
    found, worker = in_the_engine(Keeper(num_blocks), num_blocks)
    assert found == in_the_replay(Learned(POLICY, BLOCK_SIZE, num_blocks), num_blocks)
    assert sum(each.num_hits for each in found) > 300
    assert sum(len(each.removed) for each in found) > 300
    assert max(kept(worker)) > 37
    assert 35 in kept(worker)


def test_the_one_difference_the_last_token_is_computed_by_an_engine() -> None:
    """A prompt that ends with a block and is cached as a whole: the replay hits all of it; an
    engine needs the last token's logits, so it reuses one token less and makes the last block,
    which it takes for itself or copies, anew. In a cache without evictions nothing else differs."""
    whole = [without_last_token(sliced) for sliced in SLICE]
    found, _ = in_the_engine(Tiers(), 1000, whole)
    said = in_the_replay(StaticTiers(POLICY, BLOCK_SIZE), 1000, whole)
    num_different = 0
    for sliced, here, there in zip(whole, found, said, strict=True):
        last = sliced.prompt.hashes[-1]
        if there.num_hits == len(sliced.prompt.hashes):
            num_different += 1
            assert here.num_hits == there.num_hits - 1 / BLOCK_SIZE
            assert here.removed in ([], [last])
        else:
            assert here == there
        assert there.removed == []
    assert num_different > 30


def without_last_token(sliced: Sliced) -> Sliced:
    prompt, num_tokens = sliced.prompt, len(sliced.tokens) - 1
    spans = Spans(prompt.spans.system_end, min(prompt.spans.history_end, num_tokens), num_tokens)
    return Sliced(prompt._replace(hashes=prompt.hashes[:-1], spans=spans), sliced.tokens[:-1])


def test_other_plans_would_be_noticed() -> None:
    tiers, _ = in_the_engine(Tiers(), 180)
    assert tiers != in_the_replay(Learned(POLICY, BLOCK_SIZE, 180), 180)


def session(tenant: str, request_type: str, at_s: float, num_blocks: int) -> Sliced:
    """The same prompt, more or less of it."""
    tokens = list(range(BLOCK_SIZE * num_blocks + 1))
    hashes = block_hashes(np.array(tokens, np.uint32), BLOCK_SIZE)
    spans = Spans(2 * BLOCK_SIZE, 2 * BLOCK_SIZE, len(tokens))
    return Sliced(Prompt(at_s, request_type, tenant, hashes, spans), tokens)


def test_what_another_tenant_was_promised_is_not_lowered_in_the_engine() -> None:
    planner, worker = Keeper(100), Worker(100)
    for number, sliced in enumerate(
        [session("a", "agent", 0.0, 8), session("b", "oneoff", 1.0, 10)]
    ):
        request = planner.request(sliced, str(number))
        planner.done(str(number), worker.run(request, sliced.prompt.at_s), sliced.prompt.at_s)
    kept_blocks = kept_in_order(worker)
    assert len(kept_blocks) == 10
    assert min(kept_blocks[:8]) > 35
    assert kept_blocks[8:] == [0, 0]  # what only the second tenant has
    assert worker.lowered == []


def test_a_tenant_may_lower_what_is_its_own() -> None:
    planner, worker = Keeper(100), Worker(100)
    for number, sliced in enumerate(
        [session("a", "agent", 0.0, 8), session("a", "oneoff", 1.0, 8)]
    ):
        request = planner.request(sliced, str(number))
        planner.done(str(number), worker.run(request, sliced.prompt.at_s), sliced.prompt.at_s)
    assert len(worker.lowered) == 8


def test_a_tenants_ceiling_leaves_shared_system_blocks_in_the_engine_as_they_are() -> None:
    worker = Worker(100)
    prompts = [session("a", "interactive", 0.0, 2), session("b", "interactive", 1.0, 6)]
    for sliced, ceiling in zip(prompts, (100, 10), strict=True):
        prompt = sliced.prompt
        planned = plan(POLICY, prompt.request_type, prompt.spans, BLOCK_SIZE, ceiling=ceiling)
        request = plain(sliced, prompt.tenant)
        worker.run(msgspec.structs.replace(request, retention=planned), prompt.at_s)
    assert kept_in_order(worker) == [100, 100, 10, 10, 10, 10]
    assert worker.lowered == []


def kept_in_order(worker: Worker) -> list[int]:
    """Of full blocks, as they were stored."""
    return [
        priority
        for event in worker.stored
        for priority, num_tokens in zip(event.retention_priority, event.num_tokens, strict=True)
        if num_tokens == BLOCK_SIZE
    ]


def kept(worker: Worker) -> set[int]:
    return {priority for event in worker.stored for priority in event.retention_priority}
