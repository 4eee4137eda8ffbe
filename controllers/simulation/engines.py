"""The workers of a fleet, made as the settings say, and what others may know of them."""

from __future__ import annotations

from controllers.simulation.cache_store import CacheShape
from controllers.simulation.engine import ANY, EngineShape
from controllers.simulation.scaler import Present
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import Request, Trace
from controllers.simulation.worker import State, Sums, Worker
from controllers.simulation.worker_stats import WorkerStats


class Engines:
    """An EngineView. Workers are `w0`, `w1` ..., in the order in which they were asked for; `at`
    maps their names to indices."""

    def __init__(self, trace: Trace, settings: FleetSettings, has_gate: bool) -> None:
        self._trace = trace
        self._settings = settings
        self._has_gate = has_gate
        self.workers: list[Worker] = []
        self.at: dict[str, int] = {}

    def add(self, now: float) -> int:
        """A worker is asked for; returns its index."""
        at = len(self.workers)
        worker = Worker(f"w{at}", self._shape(at), self._has_gate, now)
        self.workers.append(worker)
        self.at[worker.name] = at
        return at

    def begin(self, at: int, now: float) -> Worker:
        """It has started, or comes back."""
        worker, autoscaling = self.workers[at], self._settings.autoscaling
        stats = None if autoscaling is None else WorkerStats(worker.shape, autoscaling, now)
        worker.begin(stats)
        return worker

    def present(self, now: float) -> Present:
        """Of a fleet that scales."""
        starting = [worker.name for worker in self.workers if worker.state is State.STARTING]
        up = {
            worker.name: worker.stats.report(worker.num_at_gate, now)
            for worker in self.workers
            if worker.is_up and worker.stats is not None
        }
        return Present(starting, up)

    def num_in_use(self, worker: str, request: Request) -> int:
        """See EngineView."""
        cache = self.workers[self.at[worker]].engine.cache
        per = self._trace.blocks_per_trace_block
        depth = cache.num_in_use([number * per for number in request.trace_blocks])
        return min(depth * per, request.num_blocks)

    def used_share(self, worker: str) -> float:
        """See EngineView."""
        cache = self.workers[self.at[worker]].engine.cache
        return cache.num_used_blocks / cache.shape.num_gpu_blocks

    def up(self) -> dict[str, int]:
        """Blocks of the workers that take requests."""
        return {w.name: w.shape.cache.num_gpu_blocks for w in self.workers if w.is_up}

    def sums(self) -> list[Sums]:
        return [worker.sums() for worker in self.workers]

    def _shape(self, index: int) -> EngineShape:
        settings = self._settings
        num_blocks = settings.blocks_of.get(index, settings.num_blocks)
        return EngineShape(
            cache=CacheShape(num_blocks, settings.num_host_blocks),
            curve=settings.curve,
            block_size=self._trace.block_size,
            reference_blocks=settings.reference_blocks,
            max_batched_tokens=settings.max_batched_tokens,
            max_sequences=settings.max_sequences,
            slowness=settings.slowness.get(index, 1.0),
            gate_bounds=ANY if settings.admission is None else settings.gate_bounds,
            max_kept_share=settings.max_kept_share,
            gather_s=settings.gather_s if settings.num_routers > 1 else 0.0,
            onboard_ms_per_block=settings.routing.host_onboard_ms_per_block,
        )
