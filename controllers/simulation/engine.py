"""One worker's engine: continuous batching with prefill in pieces, in iterations that take time.

Owns what waits inside the engine, prefills and decodes; the cache is `cache`'s. Knows no router,
gate or log: the fleet tells it when an iteration is over. Times are in ms.

1. An iteration computes at most `max_batched_tokens`: one for each sequence that decodes, the rest
   prompts in the order of their coming.
2. Input and output blocks are reserved at admission, shared ones once, so running work is never
   evicted. A request that would not fit waits, and those behind it; alone in the engine it runs
   whatever it needs.
3. A full hit needs no prefill: it has its first token after one step of decoding.
4. Equal decode iterations in a row are one event, cut short when a request comes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import NamedTuple

from controllers.events import Iteration
from controllers.fair_queue import Bounds
from controllers.simulation.cache import Ask, Cache, Held
from controllers.simulation.cache_store import CacheShape
from controllers.simulation.iterations import Iterations
from controllers.simulation.timing import TimingCurve

ANY = Bounds(1 << 30)


class EngineShape(NamedTuple):
    """`slowness`: how many times longer everything takes. `reference_blocks`: what the timing
    curve's share of blocks is a share of. The last three fields are of `gate`."""

    cache: CacheShape
    curve: TimingCurve
    block_size: int
    reference_blocks: int
    max_batched_tokens: int = 8192
    max_sequences: int = 256
    slowness: float = 1.0
    onboard_ms_per_block: float = 0.2
    gate_bounds: Bounds = ANY
    max_kept_share: float = 0.0
    gather_s: float = 0.0


class Job:
    """A request in an engine, or a leading piece of one. `ask` says what it needs of the cache."""

    __slots__ = (
        "ask",
        "held",
        "index",
        "is_aborted",
        "is_piece",
        "num_tokens",
        "output_tokens",
        "tokens_left",
    )

    def __init__(
        self, index: int, num_tokens: int, output_tokens: int, ask: Ask, is_piece: bool = False
    ) -> None:
        self.index = index
        self.is_piece = is_piece
        self.is_aborted = False
        self.num_tokens = num_tokens
        self.output_tokens = output_tokens
        self.ask = ask
        self.held: Held | None = None
        self.tokens_left = num_tokens


class Ended(NamedTuple):
    """What an iteration brought: jobs with their first token, and jobs that are done."""

    first: list[Job]
    done: list[Job]


class Engine:
    """`end_ms`: when the running iteration, or run of equal ones, ends; inf: idle."""

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self.cache = Cache(shape.cache)
        self.end_ms = math.inf
        self.prefill_ms = 0.0  # so far, without decode parts
        self.num_decode_tokens = 0  # prompt tokens of what decodes
        self.waiting: deque[Job] = deque()  # to be filled by whoever calls `wake` or `plan`
        self._prefilling: list[Job] = []
        self._decoding: list[tuple[int, int, Job]] = []  # heap by iteration of the last token
        self._hits: list[Job] = []
        self._pieces: list[tuple[Job, int]] = []
        self._has_aborted = False
        self._num_iterations = 0
        self._num_in_run = 1  # equal iterations until end_ms
        self._start_ms = 0.0
        self._iteration_ms = 0.0
        self._run = (0, 0, 0)  # new tokens, decodes, blocks in use
        self._iterations = Iterations()

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding) + len(self._hits)

    @property
    def prefill_tokens_left(self) -> int:
        """Of admitted requests."""
        return sum(job.tokens_left for job in self._prefilling)

    def take_iterations(self) -> list[Iteration]:
        """Timings since the last call."""
        return self._iterations.take()

    def wake(self, now: float) -> None:
        """Something was put to `waiting`: a run of iterations ends for it."""
        if math.isinf(self.end_ms):
            self.plan(now)
        elif self._num_in_run > 1:
            self._cut(now)

    def abort(self, job: Job) -> None:
        """Nobody wants it any more, and it has no first token yet: if it waits it is gone at once,
        else at the end of the iteration. One that is not here changes nothing."""
        if job.held is not None:
            job.is_aborted = self._has_aborted = True
        elif job in self.waiting:
            self.waiting.remove(job)

    def plan(self, now: float) -> None:
        """Begin the next iteration, if there is anything to do."""
        if not (self._decoding or self._prefilling or self.waiting):
            self.end_ms = math.inf
            return
        num_decoding = len(self._decoding)
        num_onboarded = self._fill(now)
        shape, new_tokens = self.shape, sum(num for _, num in self._pieces)
        prefill_ms = shape.curve.prefill_ms(new_tokens) * shape.slowness
        num_steps = num_decoding + len(self._hits)
        active = self.cache.num_used_blocks
        step_ms = 0.0
        if num_steps:
            step_ms = shape.curve.decode_ms(active / shape.reference_blocks) * shape.slowness
        self.prefill_ms += prefill_ms
        self._run = (new_tokens, num_steps, active)
        self._iteration_ms = prefill_ms + step_ms + num_onboarded * shape.onboard_ms_per_block
        self._num_in_run = self._length_of_run()
        self._start_ms = now
        self.end_ms = now + self._num_in_run * self._iteration_ms

    def finish(self) -> Ended:
        """The iteration that ends at `end_ms` is over. `plan` must follow."""
        now_s = self.end_ms / 1000.0
        self._num_iterations += self._num_in_run
        self._iterations.add(*self._run, self._iteration_ms, self._num_in_run)
        self.end_ms = math.inf
        if self._has_aborted:
            self._drop_aborted(now_s)
        done: list[Job] = []
        while self._decoding and self._decoding[0][0] <= self._num_iterations:
            done.append(heapq.heappop(self._decoding)[2])
        for job in done:
            self.num_decode_tokens -= job.num_tokens
        first = self._hits
        for job, num in self._pieces:
            job.tokens_left -= num
            if not job.tokens_left:
                self._prefilling.remove(job)
                first.append(job)
        self._hits, self._pieces = [], []
        for job in first:
            if job.output_tokens <= 1:
                done.append(job)
            else:
                self._decode(job)
        for job in done:
            assert job.held is not None
            self.cache.release(job.held, now_s)
        return Ended(first, done)

    def _drop_aborted(self, now_s: float) -> None:
        for job in [*self._prefilling, *self._hits]:
            if job.is_aborted:
                assert job.held is not None
                self.cache.release(job.held, now_s)
        self._prefilling = [job for job in self._prefilling if not job.is_aborted]
        self._hits = [job for job in self._hits if not job.is_aborted]
        self._pieces = [piece for piece in self._pieces if not piece[0].is_aborted]
        self._has_aborted = False

    def _decode(self, job: Job) -> None:
        last = self._num_iterations + job.output_tokens - 1
        heapq.heappush(self._decoding, (last, job.index, job))
        self.num_decode_tokens += job.num_tokens

    def _fill(self, now: float) -> int:
        """Choose what the iteration computes; returns the blocks brought from the host for it."""
        budget = self.shape.max_batched_tokens - len(self._decoding)
        for job in self._prefilling:
            num = min(job.tokens_left, budget)
            if num <= 0:
                break
            self._pieces.append((job, num))
            budget -= num
        num_onboarded = 0
        while self.waiting and budget > 0 and self.num_running < self.shape.max_sequences:
            job = self.waiting[0]
            if not self._admit(job, now):
                break
            self.waiting.popleft()
            assert job.held is not None
            num_onboarded += job.held.num_onboarded_blocks
            if not job.tokens_left:
                self._hits.append(job)
                continue
            num = min(job.tokens_left, budget)
            self._prefilling.append(job)
            self._pieces.append((job, num))
            budget -= num
        return num_onboarded

    def _admit(self, job: Job, now: float) -> bool:
        is_alone = not (self._decoding or self._prefilling)
        if not is_alone and not self.cache.has_room(job.ask):
            return False
        job.held = self.cache.admit(job.ask, now / 1000.0)
        num_hit = job.held.num_hit_blocks * self.shape.block_size
        job.tokens_left = max(0, job.num_tokens - num_hit)
        return True

    def _length_of_run(self) -> int:
        """1, but for decoding alone: until the next one of it is done."""
        if self._pieces or self._hits or self._prefilling or not self._decoding:
            return 1
        return max(1, self._decoding[0][0] - self._num_iterations)

    def _cut(self, now: float) -> None:
        """End the run at the next iteration's end."""
        num = max(1, math.ceil((now - self._start_ms) / self._iteration_ms - 1e-9))
        if num < self._num_in_run:
            self._num_in_run = num
            # Rounding may put the end of an iteration a little before the moment in which it ends.
            self.end_ms = max(now, self._start_ms + num * self._iteration_ms)
