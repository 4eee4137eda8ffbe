"""A worker's paged cache: what a prompt finds, what it evicts, what it leaves behind.

The rules are those of the local engine's block manager (TensorRT-LLM's), with whole trace blocks
in place of blocks; a test holds the two against each other. Two differ, as in the engine that the
built-in timing is from: blocks can be reused from the admission of the request on that computes
them, and all of a prompt can be reused, its last token too.

1. A prompt's cached leading trace blocks are used, those on the host are brought back first.
2. A request gives its blocks back tail first, so that a prefix outlives what follows it.
3. The lowest retention priority goes first, then the oldest release. A timer that ends puts
   content back to priority 35, at the tail.
4. What must leave the gpu is offloaded if its priority is high enough and the host has nothing
   better; else it is dropped, with everything behind it.
5. Every change of what prompts can find is an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from controllers.events import Event, Stored, hex_of, hexes_of
from controllers.simulation.cache_store import CacheShape, CacheStore
from controllers.simulation.node import DEFAULT_PRIORITY, HOST, Node

# Retention priority (None: unchanged) and seconds after the release until it falls to 35.
Kept: TypeAlias = tuple[int | None, float | None]
AS_IS: Kept = (None, None)


class Ask(NamedTuple):
    """What a request needs. `keys` are of its trace blocks, `sizes` their blocks; `num_more` is
    blocks behind them, for the rest of the prompt and the output. `kept`: by trace block, then for
    the rest; None: all as they are."""

    keys: Sequence[int]
    sizes: Sequence[int]
    num_more: int
    kept: Sequence[Kept] | None = None


class Held(NamedTuple):
    """What a running request holds, and what it found."""

    nodes: list[Node]
    num_more: int
    kept_more: Kept
    num_hit_blocks: int
    num_onboarded_blocks: int


class Cache:
    """`now` is in seconds. Counts are of full blocks of prompts, at admission."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.num_asked_blocks = 0
        self.num_hit_blocks = 0
        self.num_missed_blocks = 0
        self._store = CacheStore(shape)

    @property
    def num_used_blocks(self) -> int:
        """Of live requests."""
        return self._store.num_used_blocks

    @property
    def num_cached_blocks(self) -> dict[str, int]:
        """In use or reusable, by medium."""
        return self._store.num_cached_blocks

    def drain(self) -> list[Event]:
        """Events since the last call."""
        events = self._store.events
        if events:
            self._store.events = []
        return events

    def contents(self) -> Iterator[tuple[str, str, Node]]:
        """(hash, parent's hash or "", node), parents first."""
        for key, node in self._store.nodes.items():
            parent = node.parent.key if node.parent is not None else None
            yield hex_of(key), "" if parent is None else hex_of(parent), node

    def num_in_use(self, keys: Sequence[int]) -> int:
        """Leading trace blocks that live requests use."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            node = self._store.nodes.get(keys[middle])
            if node is not None and node.num_users:
                low = middle + 1
            else:
                high = middle
        return low

    def has_room(self, ask: Ask) -> bool:
        """Whether it fits beside what live requests hold."""
        num_new = sum(ask.sizes[self.num_in_use(ask.keys) :]) + ask.num_more
        return self.num_used_blocks + num_new <= self.shape.num_gpu_blocks

    def admit(self, ask: Ask, now: float) -> Held:
        """Use what is cached and make room for the rest."""
        self._store.expire(now)
        nodes = self._use_cached(ask)
        num_found, num_onboarded = len(nodes), self._onboard(nodes)
        num_hit, num_missed = sum(ask.sizes[:num_found]), sum(ask.sizes[num_found:])
        self._add_new(ask, nodes)
        self._store.num_used_blocks += num_missed + ask.num_more
        self._store.make_room()
        self._tell_new(nodes, num_found)
        self.num_asked_blocks += sum(ask.sizes)
        self.num_hit_blocks += num_hit
        self.num_missed_blocks += num_missed
        kept_more = AS_IS if ask.kept is None else ask.kept[-1]
        return Held(nodes, ask.num_more, kept_more, num_hit, num_onboarded)

    def release(self, held: Held, now: float) -> None:
        """The request has ended."""
        store = self._store
        store.expire(now)
        if held.num_more:
            rest = Node(None, held.num_more, held.nodes[-1] if held.nodes else None)
            rest.retention_priority = _or_default(held.kept_more[0])
            rest.duration_s = held.kept_more[1]
            store.release(rest, now)
        for node in reversed(held.nodes):
            node.num_users -= 1
            if not node.num_users:
                store.release(node, now)
        store.make_room()

    def _use_cached(self, ask: Ask) -> list[Node]:
        """One more user of each cached leading node."""
        store, kept = self._store, ask.kept
        get = store.nodes.get
        found: list[Node] = []
        for index, key in enumerate(ask.keys):
            node = get(key)
            if node is None:
                break
            if not node.num_users:
                store.claim(node)
            node.num_users += 1
            priority, node.duration_s = AS_IS if kept is None else kept[index]
            if priority is not None and priority != node.retention_priority:
                store.reprioritise(node, priority)
            found.append(node)
        return found

    def _onboard(self, found: list[Node]) -> int:
        """Bring nodes in use back to the gpu; returns their blocks."""
        num_blocks = 0
        for node in found:
            if node.level == HOST:
                self._store.onboard(node)
                num_blocks += node.num_blocks
        return num_blocks

    def _add_new(self, ask: Ask, nodes: list[Node]) -> None:
        """The nodes behind the cached ones."""
        known, kept = self._store.nodes, ask.kept
        parent = nodes[-1] if nodes else None
        for index in range(len(nodes), len(ask.keys)):
            key = ask.keys[index]
            parent = known[key] = Node(key, ask.sizes[index], parent)
            parent.num_users = 1
            if kept is not None:
                parent.retention_priority = _or_default(kept[index][0])
                parent.duration_s = kept[index][1]
            nodes.append(parent)

    def _tell_new(self, nodes: list[Node], num_found: int) -> None:
        new = nodes[num_found:]
        if new:
            before = nodes[num_found - 1].key if num_found else None
            self._store.events.append(
                Stored(
                    parent=None if before is None else hex_of(before),
                    hashes=hexes_of(node.key for node in new if node.key is not None),
                    num_tokens=[self.shape.tokens_of_node] * len(new),
                    retention_priority=[node.retention_priority for node in new],
                )
            )


def _or_default(priority: int | None) -> int:
    return DEFAULT_PRIORITY if priority is None else priority
