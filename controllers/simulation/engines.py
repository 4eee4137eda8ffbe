"""The workers of a fleet, made as the settings say, and what peers may know of them."""

from __future__ import annotations

from controllers.simulation.cache_store import CacheShape
from controllers.simulation.engine import EngineShape
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import Request, Trace
from controllers.simulation.worker import Sums, Worker


class Engines:
    """An EngineView. Workers are `w0`, `w1` ...; `at` maps their names to indices."""

    def __init__(self, trace: Trace, settings: FleetSettings, has_gate: bool) -> None:
        self._trace = trace
        self._settings = settings
        self.workers = [
            Worker(f"w{i}", self._shape(i), has_gate) for i in range(settings.num_workers)
        ]
        self.at = {worker.name: i for i, worker in enumerate(self.workers)}

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
            reference_blocks=settings.num_blocks,
            max_batched_tokens=settings.max_batched_tokens,
            max_sequences=settings.max_sequences,
            slowness=settings.slowness.get(index, 1.0),
            gather_s=settings.gather_s if settings.num_routers > 1 else 0.0,
            onboard_ms_per_block=settings.routing.host_onboard_ms_per_block,
        )
