"""A block manager driven by hand, for tests: token lists in, events out, no model."""

from __future__ import annotations

import array
from collections.abc import Sequence as Seq
from typing import Any

from controllers.events import Event, Removed, Stored, Updated
from controllers.retention import Retention, TokenRange
from serve_app.engine.block import Block
from serve_app.engine.block_manager import BlockManager
from serve_app.engine.cache_manager import CacheManager
from serve_app.engine.event_buffer import EventBuffer
from serve_app.engine.sequence import Sequence
from serve_app.engine.windows import WindowManagers
from serve_app.executors.base import GenerateRequest, SamplingParams

Range = tuple[Any, ...]  # start, end, retention priority, duration_s


class RecordedStorage:
    """Keeps the tokens of every slot, so that tests see whose KV a block holds."""

    def __init__(self, block_size: int, num_gpu_blocks: int, num_host_blocks: int) -> None:
        self.gpu = [[(-1, 0)] * block_size for _ in range(num_gpu_blocks)]
        self.host = [[(-1, 0)] * block_size for _ in range(num_host_blocks)]

    def copy_tokens(self, source: int, target: int, num_tokens: int) -> None:
        self.gpu[target][:num_tokens] = self.gpu[source][:num_tokens]

    def offload(self, block: int, host_block: int) -> None:
        self.host[host_block] = list(self.gpu[block])

    def onboard(self, host_block: int, block: int) -> None:
        self.gpu[block] = list(self.host[host_block])


class Pool:
    """The blocks of one attention window, with what they hold and tell."""

    def __init__(
        self,
        num_gpu_blocks: int,
        num_host_blocks: int,
        block_size: int,
        event_buffer_size: int,
        min_offload_priority: int,
        window: int | None,
    ) -> None:
        self.storage = RecordedStorage(block_size, num_gpu_blocks, num_host_blocks)
        self.events = EventBuffer(event_buffer_size)
        self.manager = BlockManager(
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            num_host_blocks=num_host_blocks,
            storage=self.storage,
            events=self.events,
            min_offload_priority=min_offload_priority,
            window=window,
        )


class Cache:
    """`now` is set by the test. Every sequence's KV is checked whenever it is touched.

    `manager`, `events` and block ids are those of the largest window; `small` gives window, gpu
    and host blocks of others. `pools` has them all, the largest first.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        num_host_blocks: int = 0,
        block_size: int = 4,
        event_buffer_size: int = 1024,
        min_offload_priority: int = 30,
        window: int | None = None,
        small: Seq[tuple[int, int, int]] = (),
    ) -> None:
        self.now = 0.0
        self.block_size = block_size
        common = (block_size, event_buffer_size, min_offload_priority)
        pool = Pool(num_gpu_blocks, num_host_blocks, *common, window)
        self.storage, self.events, self.manager = pool.storage, pool.events, pool.manager
        self.pools = [pool, *(Pool(gpu, host, *common, of) for of, gpu, host in small)]
        self.windows: WindowManagers | None = None
        self._all: CacheManager = self.manager
        if small:
            self._all = self.windows = WindowManagers([pool.manager for pool in self.pools])

    @property
    def num_free(self) -> int:
        return self.manager.num_free_blocks

    @property
    def num_used(self) -> int:
        return self.manager.used_blocks["gpu"]

    def sequence(
        self,
        tokens: Seq[int],
        *,
        ranges: Seq[Range] = (),
        decode: tuple[Any, ...] = (35,),
        salt: int = 0,
        extra_ids: Seq[int] = (),
    ) -> Sequence:
        request = GenerateRequest(
            request_id="r",
            token_ids=array.array("I", tokens).tobytes(),
            sampling=SamplingParams(max_tokens=100),
            retention=Retention(tuple(TokenRange(*r) for r in ranges), *decode),
            salt=salt,
        )
        return Sequence(request, self.block_size, now=self.now, extra_ids=extra_ids)

    def try_add(self, tokens: Seq[int], **kwargs: Any) -> Sequence | None:
        seq = self.sequence(tokens, **kwargs)
        if not self._all.allocate(seq, self.now):
            return None
        self.check_kv(seq, seq.num_cached)
        self.compute(seq)
        return seq

    def add(self, tokens: Seq[int], **kwargs: Any) -> Sequence:
        """Admits a prompt and computes it; nothing is stored yet."""
        seq = self.try_add(tokens, **kwargs)
        assert seq is not None, "no room"
        return seq

    def generate(self, seq: Sequence, *tokens: int) -> None:
        for token in tokens:
            seq.tokens.append(token)
            self._all.slide(seq, self.now)
            assert self._all.grow(seq, len(seq.tokens)), "no room"
            self.compute(seq)

    def store_context(self, seq: Sequence) -> None:
        """As TensorRT-LLM does at the end of the context phase: all but the last token."""
        self._all.store_full(seq, len(seq.tokens) - 1)

    def remove(self, *seqs: Sequence, num_tokens: int | None = None) -> None:
        """Ends sequences; the last token of each was never computed."""
        for seq in seqs:
            self.check_kv(seq, len(seq.tokens))
            kept = len(seq.tokens) - 1 if num_tokens is None else num_tokens
            self._all.free(seq, self.now, kept)

    def run(self, tokens: Seq[int], *generated: int, **kwargs: Any) -> int:
        """Adds, generates and removes; returns the number of tokens reused."""
        seq = self.add(tokens, **kwargs)
        self.generate(seq, *generated)
        num_cached = seq.num_cached
        self.remove(seq)
        return num_cached

    def num_cached(self, tokens: Seq[int], **kwargs: Any) -> int:
        """What a prompt would reuse; changes nothing."""
        return self._all.num_cached_tokens(self.sequence(tokens, **kwargs))

    def expire(self, now: float) -> None:
        self.now = now
        self._all.expire(now)

    def compute(self, seq: Sequence) -> None:
        """Writes the tokens that are not computed yet into the sequence's slots."""
        for storage, part in self.parts(seq):
            for position in range(part.num_computed, len(seq.tokens)):
                slot = part.block_table[position // self.block_size]
                storage.gpu[slot][position % self.block_size] = _content(seq)[position]
        seq.num_computed = len(seq.tokens)

    def check_kv(self, seq: Sequence, num_tokens: int) -> None:
        for storage, part in self.parts(seq):
            behind = part.num_detached * self.block_size
            slots = part.block_table[part.num_detached :]
            held = [token for slot in slots for token in storage.gpu[slot]]
            assert held[: num_tokens - behind] == _content(seq)[behind:num_tokens]

    def parts(self, seq: Sequence) -> list[tuple[RecordedStorage, Sequence]]:
        """A live sequence in each window, the largest first."""
        if self.windows is None:
            return [(self.storage, seq)]
        return [(pool.storage, self.windows.view_of(seq, pool.manager)) for pool in self.pools]

    def drain(self) -> list[Event]:
        self.events.flush()
        return self.events.drain(0)

    def changes(self) -> list[tuple[Any, ...]]:
        """Drained events, one short tuple a block: what happened, and to which hash."""
        out: list[tuple[Any, ...]] = []
        for event in self.drain():
            if isinstance(event, Stored):
                out += [("stored", h) for h in event.hashes]
            elif isinstance(event, Removed):
                out += [("removed", h) for h in event.hashes]
            elif isinstance(event, Updated) and event.medium is not None:
                out += [(f"{event.old_medium}->{event.medium}", h) for h in event.hashes]
            elif isinstance(event, Updated):
                change = f"{event.old_retention_priority}->{event.retention_priority}"
                out += [(change, h) for h in event.hashes]
            else:
                out.append((event,))
        return out


def _content(seq: Sequence) -> list[tuple[int, int]]:
    extra_ids = [*seq.extra_ids, *[0] * (len(seq.tokens) - len(seq.extra_ids))]
    return list(zip(seq.tokens, extra_ids, strict=True))


def ids(seq: Sequence) -> list[int]:
    return ids_of(seq.blocks)


def ids_of(blocks: Seq[Block]) -> list[int]:
    return [block.block_id for block in blocks]
