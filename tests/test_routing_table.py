"""The laws of the routing table, and public reports of tables that broke them."""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import pytest

from controllers.errors import EventError
from controllers.events import Snapshot, Updated
from controllers.routing_table import HeldBlock, RoutingTable
from controllers.run_tree import MAX_RUN
from controllers.runs import BlockClass
from controllers.worker_state import Applied, Outcome, Overlap
from tests.batches import (
    BLOCK_SIZE,
    CLEARED,
    Worker,
    down,
    load,
    lost,
    moved,
    removed,
    snapshot,
    stored,
    up,
)

PROMPT = [101, 102, 103, 104, 105, 106]


def table_with(*workers: Worker) -> RoutingTable:
    """Every worker is up and empty."""
    table = RoutingTable(BLOCK_SIZE)
    for worker in workers:
        table.apply(worker.batch(up()))
    return table


def depths(table: RoutingTable, hashes=PROMPT) -> dict[str, int]:
    return {worker: overlap.num_blocks for worker, overlap in table.overlap(hashes).items()}


def everything(table: RoutingTable) -> dict:
    """All that can be seen of a table, to assert that nothing changed."""
    return {
        worker: (
            table.blocks_of(worker),
            state.seq,
            state.epoch,
            state.stale_reason,
            state.is_silent,
            state.class_to_num,
            state.load,
            state.heard_at,
        )
        for worker, state in table.workers.items()
    }


class TestOverlap:
    def test_counts_leading_blocks_per_worker(self):
        a, b, c = Worker("a"), Worker("b"), Worker("c")
        table = table_with(a, b, c)
        table.apply(a.batch(stored(None, PROMPT)))
        table.apply(b.batch(stored(None, PROMPT[:2])))
        assert table.overlap(PROMPT) == {"a": Overlap(6, 6, 0, 0), "b": Overlap(2, 2, 0, 0)}
        assert depths(table, PROMPT[:1]) == {"a": 1, "b": 1}
        assert depths(table, [*PROMPT, 999]) == {"a": 6, "b": 2}
        assert depths(table, [*PROMPT[:3], 999, 998]) == {"a": 3, "b": 2}

    def test_nothing_for_no_or_unknown_blocks(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        assert table.overlap([]) == {}
        assert table.overlap([999]) == {}

    def test_takes_numpy_hashes(self):
        a = Worker()
        table = table_with(a)
        hashes = [2**64 - 1 - i for i in range(100)]
        table.apply(a.batch(stored(None, hashes)))
        assert table.overlap(np.array(hashes, dtype=np.uint64)) == table.overlap(hashes)
        assert depths(table, hashes) == {"a": 100}

    def test_many_different_depths(self):
        workers = [Worker(f"w{i}") for i in range(70)]
        table = table_with(*workers)
        prompt = list(range(1000, 1300))
        for depth, worker in enumerate(workers[1:], start=1):
            table.apply(worker.batch(stored(None, prompt[: 4 * depth])))
        assert depths(table, prompt) == {f"w{i}": 4 * i for i in range(1, 70)}

    def test_tells_the_media_apart(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        prompt = list(range(1000, 1000 + 3 * MAX_RUN))
        table.apply(a.batch(stored(None, prompt)))
        table.apply(b.batch(stored(None, prompt[:10])))
        table.apply(a.batch(moved("host", *prompt[5:9], *prompt[-3:]), moved("disk", prompt[0])))
        n = len(prompt)
        assert table.overlap(prompt) == {
            "a": Overlap(n, n - 8, 7, 1),
            "b": Overlap(10, 10, 0, 0),
        }
        assert table.overlap(prompt[:8])["a"] == Overlap(8, 4, 3, 1)
        table.apply(a.batch(moved("gpu", *prompt)))
        assert table.overlap(prompt)["a"] == Overlap(n, n, 0, 0)

    def test_media_survive_when_runs_are_split_and_joined(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        table.apply(a.batch(stored(None, PROMPT), moved("host", PROMPT[0])))
        for start in range(0, 6, 2):
            parent = PROMPT[start - 1] if start else None
            table.apply(b.batch(stored(parent, PROMPT[start : start + 2])))
        assert table.overlap(PROMPT) == {"a": Overlap(6, 5, 1, 0), "b": Overlap(6, 6, 0, 0)}

    def test_reads_beside_the_thread_that_applies(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        prompt = list(range(1000, 1400))
        table.apply(b.batch(stored(None, prompt[:100], medium="host")))
        done = threading.Event()
        wrong: list[object] = []

        def read() -> None:
            while not done.is_set():
                try:
                    seen = table.overlap(prompt)["b"]
                    if seen.num_blocks != 100 or min(seen) < 0 or sum(seen[1:]) != 100:
                        wrong.append(seen)
                except Exception as error:
                    wrong.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        for i in range(300):
            table.apply(a.batch(stored(None, prompt[: 40 + i], medium="host")))
            table.apply(a.batch(removed(prompt[i % 40])))
        done.set()
        reader.join()
        assert wrong == []


class TestStored:
    def test_twice_is_once(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        before = table.blocks_of("a")
        table.apply(a.batch(stored(None, PROMPT), stored(PROMPT[1], PROMPT[2:4])))
        assert table.blocks_of("a") == before
        assert table.workers["a"].num_blocks == 6

    def test_without_its_parent_cannot_match_until_the_parent_is_there(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(PROMPT[3], PROMPT[4:])))
        table.apply(a.batch(stored(PROMPT[1], PROMPT[2:4])))
        assert depths(table) == {}
        assert table.workers["a"].num_blocks == 4
        table.apply(a.batch(stored(None, PROMPT[:2])))
        assert depths(table) == {"a": 6}

    def test_children_wait_for_a_block_in_the_middle_of_what_comes(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(103, [104, 105]), stored(999, [998])))
        table.apply(a.batch(stored(None, [101, 102, 103, 203])))
        assert depths(table) == {"a": 5}
        assert depths(table, [101, 102, 103, 203]) == {"a": 4}

    def test_parent_held_by_another_worker_only(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        table.apply(a.batch(stored(None, PROMPT[:3])))
        table.apply(b.batch(stored(PROMPT[2], PROMPT[3:])))
        assert depths(table) == {"a": 3}
        table.apply(b.batch(stored(None, PROMPT[:3])))
        assert depths(table) == {"a": 3, "b": 6}

    def test_branches_in_the_middle_of_a_prefix(self):
        a = Worker()
        table = table_with(a)
        other = [*PROMPT[:3], 204, 205]
        table.apply(a.batch(stored(None, PROMPT), stored(PROMPT[2], other[3:])))
        assert depths(table) == {"a": 6}
        assert depths(table, other) == {"a": 5}
        assert table.num_blocks() == 8

    def test_longer_than_a_run(self):
        a = Worker()
        table = table_with(a)
        prompt = list(range(1000, 1000 + 5 * MAX_RUN + 3))
        table.apply(a.batch(stored(None, prompt)))
        assert depths(table, prompt) == {"a": len(prompt)}

    def test_a_block_with_two_parents_makes_the_worker_stale(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        table.apply(a.batch(stored(None, PROMPT)))
        applied = table.apply(b.batch(stored(None, [301]), stored(301, [PROMPT[2]])))
        assert applied.went_stale is not None
        assert "has another parent" in applied.went_stale
        assert depths(table) == {"a": 6}

    def test_parents_in_a_circle_never_match(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(11, [12]), stored(12, [11])))
        assert depths(table, [11, 12]) == {}
        table.apply(a.batch(removed(11)))
        table.apply(a.batch(removed(12)))
        assert table.num_blocks() == 0


class TestRemoved:
    def test_drops_the_subtree_of_this_worker_only(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        branch = [*PROMPT[:3], 204, 205]
        for worker in (a, b):
            table.apply(worker.batch(stored(None, PROMPT), stored(PROMPT[2], branch[3:])))
        applied = table.apply(a.batch(removed(PROMPT[2])))
        assert applied.num_removed == 6
        assert depths(table) == {"a": 2, "b": 6}
        assert depths(table, branch) == {"a": 2, "b": 5}
        assert set(table.blocks_of("a")) == set(PROMPT[:2])

    def test_a_block_stored_again_does_not_bring_its_children_back(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT), removed(PROMPT[2])))
        table.apply(a.batch(stored(PROMPT[1], [PROMPT[2]])))
        assert depths(table) == {"a": 3}

    def test_drops_a_subtree_of_many_runs(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        prompt = list(range(1000, 1000 + 5 * MAX_RUN))
        for worker in (a, b):
            table.apply(worker.batch(stored(None, prompt)))
        assert table.apply(a.batch(removed(prompt[1]))).num_removed == len(prompt) - 1
        assert set(table.blocks_of("a")) == {prompt[0]}
        assert depths(table, prompt) == {"a": 1, "b": len(prompt)}

    @pytest.mark.parametrize("order", [PROMPT, PROMPT[::-1], PROMPT[::2] + PROMPT[1::2]])
    def test_in_any_order_leaves_nothing(self, order):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        table.apply(a.batch(stored(None, PROMPT)))
        table.apply(b.batch(stored(None, PROMPT)))
        table.apply(a.batch(removed(*order)))
        assert table.blocks_of("a") == {}
        assert depths(table) == {"b": 6}
        for block_hash in order:
            table.apply(b.batch(removed(block_hash)))
        assert table.num_blocks() == 0
        assert table.workers["b"].class_to_num == {}

    def test_children_of_another_worker_wait_and_come_back(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        table.apply(a.batch(stored(None, PROMPT[:3])))
        table.apply(b.batch(stored(PROMPT[2], PROMPT[3:])))
        table.apply(a.batch(removed(PROMPT[0])))
        assert table.num_blocks() == 3
        table.apply(b.batch(stored(None, PROMPT[:3])))
        assert depths(table) == {"b": 6}

    def test_what_others_share_survives_eviction_one_by_one(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        prompt = list(range(1000, 1000 + MAX_RUN))
        table.apply(a.batch(stored(None, prompt)))
        table.apply(b.batch(stored(None, prompt)))
        for block_hash in reversed(prompt[1:]):
            table.apply(a.batch(removed(block_hash)))
        assert depths(table, prompt) == {"a": 1, "b": MAX_RUN}
        assert len(set(table._index._tree.run_of.values())) == 2


class TestUpdatedAndCleared:
    def test_updated_changes_the_accounts_only(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT[:3], priority=[100, 80, 80], tier="gold")))
        table.apply(a.batch(stored(PROMPT[2], PROMPT[3:], priority=60)))
        state = table.workers["a"]
        assert state.num_by_retention_priority() == {100: 1, 80: 2, 60: 3}
        update = Updated(hashes=[f"{PROMPT[0]:016x}", f"{999:016x}"], retention_priority=35)
        table.apply(a.batch(update, moved("host", PROMPT[5])))
        assert state.class_to_num == {
            BlockClass("gpu", 35, "gold"): 1,
            BlockClass("gpu", 80, "gold"): 2,
            BlockClass("gpu", 60, "default"): 2,
            BlockClass("host", 60, "default"): 1,
        }
        assert state.num_by_medium() == {"gpu": 5, "host": 1}
        assert table.overlap(PROMPT) == {"a": Overlap(6, 5, 1, 0)}

    def test_stored_again_takes_the_new_class(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        table.apply(a.batch(stored(PROMPT[0], PROMPT[1:3], priority=90, tier="gold")))
        assert table.workers["a"].num_by_retention_priority() == {35: 4, 90: 2}

    def test_cleared_drops_one_worker(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        for worker in (a, b):
            table.apply(worker.batch(stored(None, PROMPT)))
        table.apply(a.batch(CLEARED))
        assert depths(table) == {"b": 6}
        assert not table.is_stale("a")
        assert table.workers["a"].num_blocks == 0


class TestSeqAndEpoch:
    def test_a_hole_makes_the_worker_stale_until_its_snapshot(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        a.batch()  # never arrives
        applied = table.apply(a.batch(stored(PROMPT[-1], [107])))
        reason = "1 batches missing before seq 3"
        assert applied == Applied(num_missing=1, went_stale=reason, is_stale=True)
        assert depths(table) == {}
        assert table.workers["a"].num_gaps == 1
        assert table.apply(a.batch(stored(None, PROMPT))) == Applied(is_stale=True)
        assert table.num_blocks() == 0
        chain = list(zip(PROMPT, [None, *PROMPT], strict=False))
        assert table.apply(a.batch(snapshot(chain))) == Applied(has_healed=True)
        assert depths(table) == {"a": 6}
        assert table.apply(a.batch(stored(PROMPT[-1], [107]))) == Applied(num_stored=1)
        assert depths(table, [*PROMPT, 107]) == {"a": 7}

    def test_seen_and_late_batches_are_ignored(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        before = everything(table)
        duplicate = Applied(outcome=Outcome.DUPLICATE)
        assert table.apply(a.batch(CLEARED, seq=1)) == duplicate
        assert table.apply(a.batch(CLEARED, seq=0)) == duplicate
        assert everything(table) == before

    def test_a_worker_first_seen_in_mid_epoch_is_stale(self):
        table = RoutingTable(BLOCK_SIZE)
        a = Worker()
        a.seq = 7
        applied = table.apply(a.batch(stored(None, PROMPT)))
        reason = "no snapshot yet, first heard at seq 7"
        assert applied == Applied(went_stale=reason, is_stale=True)
        assert table.workers["a"].num_gaps == 0
        assert table.overlap(PROMPT) == {}

    def test_seq_0_needs_worker_up(self):
        table = RoutingTable(BLOCK_SIZE)
        table.apply(Worker().batch(stored(None, PROMPT)))
        assert table.is_stale("a")

    def test_worker_up_later_empties_and_heals_nothing(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        table.apply(a.batch(up(gpu=77)))
        assert table.workers["a"].num_blocks == 0
        assert table.workers["a"].capacity == {"gpu": 77}
        table.apply(a.batch(lost()))
        table.apply(a.batch(up()))
        assert table.is_stale("a")

    def test_a_newer_epoch_forgets_the_older_one(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT), load(num_queued=3)))
        old = a.batch(stored(PROMPT[-1], [107]))
        a.restart()
        applied = table.apply(a.batch(up()))
        assert applied == Applied()
        assert table.num_blocks() == 0
        assert table.workers["a"].load is None
        before = everything(table)
        assert table.apply(old) == Applied(outcome=Outcome.OLD_EPOCH)
        assert everything(table) == before

    def test_a_newer_epoch_seen_late_is_stale(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        a.restart()
        a.seq = 4
        assert table.apply(a.batch(load())).went_stale is not None
        assert table.num_blocks() == 0

    def test_lost_makes_stale_and_a_later_snapshot_in_the_batch_heals(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        applied = table.apply(a.batch(lost()))
        assert applied.went_stale == "the source lost events: buffer overflow"
        assert depths(table) == {}
        table.apply(a.batch(lost(), snapshot([(101, None)])))
        assert depths(table) == {"a": 1}

    def test_worker_down_ends_the_epoch(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        table.apply(a.batch(stored(None, PROMPT)))
        table.apply(b.batch(stored(None, PROMPT)))
        assert table.apply(a.batch(down(), load())).is_stale
        assert depths(table) == {"b": 6}
        assert list(table.workers) == ["b"]
        assert table.apply(a.batch(load())).outcome == Outcome.DEPARTED
        assert list(table.workers) == ["b"]
        a.restart()
        table.apply(a.batch(up()))
        assert not table.is_stale("a")


class TestSnapshot:
    CHAIN = ((101, None), (102, 101), (103, 102), (104, 103))

    def parts(self, num_parts: int = 4, snapshot_id: int = 1) -> list[Snapshot]:
        return [
            snapshot([pair], part=i, num_parts=num_parts, snapshot_id=snapshot_id)
            for i, pair in enumerate(self.CHAIN)
        ]

    def test_replaces_when_complete(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, [101, 102, 203, 204]), stored(None, [301])))
        first, second, third, fourth = self.parts()
        for part in (first, second, third):
            table.apply(a.batch(part))
            assert depths(table, [101, 102, 203, 204]) == {"a": 4}
        table.apply(a.batch(fourth))
        assert set(table.blocks_of("a")) == {101, 102, 103, 104}
        assert depths(table) == {"a": 4}
        assert table.workers["a"].num_snapshots == 1

    def test_several_parts_in_one_batch(self):
        a = Worker()
        a.seq = 9
        table = RoutingTable(BLOCK_SIZE)
        applied = table.apply(a.batch(load(), *self.parts(), stored(104, [105])))
        assert applied == Applied(has_healed=True, num_stored=1)
        assert depths(table) == {"a": 5}

    def test_changes_between_the_parts_are_kept(self):
        a = Worker()
        table = table_with(a)
        first, *others = self.parts()
        table.apply(a.batch(first, stored(None, [101, 102, 103]), stored(103, [104, 105])))
        table.apply(a.batch(stored(105, [106]), removed(106), moved("host", 105)))
        table.apply(a.batch(stored(None, [301]), stored(301, [302])))
        assert table.overlap(PROMPT) == {"a": Overlap(5, 4, 1, 0)}
        table.apply(a.batch(*others))
        assert table.overlap(PROMPT) == {"a": Overlap(5, 4, 1, 0)}
        table.apply(a.batch(removed(105), stored(104, [205])))
        assert set(table.blocks_of("a")) == {101, 102, 103, 104, 205, 301, 302}

    @pytest.mark.parametrize("kept", [(0, 1, 3), (1, 2, 3), (0, 2, 1, 3), (0, 0, 1)])
    def test_torn_replaces_nothing_and_makes_stale(self, kept):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, [101])))
        for i in kept:
            table.apply(a.batch(self.parts()[i]))
        assert table.is_stale("a")
        assert table.num_blocks() == 0

    def test_torn_by_a_hole(self):
        a = Worker()
        table = table_with(a)
        first, second, third, fourth = self.parts()
        table.apply(a.batch(first, second))
        a.batch()
        applied = table.apply(a.batch(third, fourth))
        assert applied.went_stale == "snapshot 1 is torn before part 3"
        assert table.num_blocks() == 0

    def test_cut_short_by_the_next_one(self):
        a = Worker()
        table = table_with(a)
        applied = table.apply(a.batch(*self.parts()[:2], *self.parts(snapshot_id=2)))
        assert applied == Applied(has_healed=True)
        assert table.workers["a"].num_stale == 1
        assert depths(table) == {"a": 4}

    def test_children_before_parents_and_blocks_without_parents(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(snapshot([*reversed(self.CHAIN), (106, 105)])))
        assert depths(table) == {"a": 4}
        assert table.workers["a"].num_blocks == 5
        table.apply(a.batch(stored(104, [105])))
        assert depths(table) == {"a": 6}

    def test_an_empty_one_empties(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT), snapshot([])))
        assert table.num_blocks() == 0
        assert not table.is_stale("a")

    def test_brings_what_worker_up_would(self):
        a = Worker()
        a.seq = 3
        table = RoutingTable(BLOCK_SIZE)
        table.apply(a.batch(snapshot([(101, None)], medium="host")))
        state = table.workers["a"]
        assert (state.capacity, state.max_seq_len) == ({"gpu": 1000}, 4096)
        assert state.num_by_medium() == {"host": 1}

    def test_that_never_ends_is_given_up(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(self.parts()[0]))
        table.apply(a.batch(*[removed(1)] * 10_001))
        assert table.workers["a"].stale_reason == "snapshot 1 does not end"


class TestBounds:
    def test_more_blocks_than_exist_make_the_worker_stale(self):
        a = Worker()
        table = table_with(a)
        for start in range(1, 70_000, 10_000):
            table.apply(a.batch(stored(None, range(start, start + 10_000))))
        reason = table.workers["a"].stale_reason
        assert reason == "removals must be missing: 70000 blocks held, 1000 exist"
        assert table.num_blocks() == 0

    def test_a_snapshot_larger_than_the_cache_is_refused(self):
        a = Worker()
        table = table_with(a)
        blocks = [(h, None) for h in range(1, 70_000)]
        applied = table.apply(a.batch(snapshot(blocks)))
        assert applied.went_stale == "snapshot 1 is larger than the cache"
        assert table.num_blocks() == 0

    def test_orphans_leave_no_trace(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        for i in range(100):
            table.apply(a.batch(stored(10_000 + i, [20_000 + i, 30_000 + i])))
        table.apply(b.batch(stored(10_000, [20_000])))
        for i in range(100):
            table.apply(a.batch(removed(20_000 + i)))
        table.forget("b")
        assert table.num_blocks() == 0
        assert table._index._tree.waiting == {}

    def test_departed_workers_are_remembered_within_a_bound(self):
        table = RoutingTable(BLOCK_SIZE)
        for i in range(5000):
            worker = Worker(f"w{i}")
            table.apply(worker.batch(up()))
            table.apply(worker.batch(down()))
        assert table.workers == {}
        assert len(table._departed) == 4096


class TestWorkers:
    def test_forget_gives_the_bit_to_the_next_worker(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        table.apply(a.batch(stored(None, PROMPT)))
        table.apply(b.batch(stored(None, PROMPT[:2])))
        table.forget("a")
        table.forget("nobody")
        assert depths(table) == {"b": 2}
        assert table.num_blocks() == 2
        c = Worker("c")
        table.apply(c.batch(up()))
        assert depths(table) == {"b": 2}
        table.apply(c.batch(stored(None, PROMPT[:3])))
        assert depths(table) == {"b": 2, "c": 3}

    def test_a_forgotten_worker_that_speaks_again_is_unknown(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        table.forget("a")
        table.apply(a.batch(stored(PROMPT[-1], [107])))
        assert table.is_stale("a")
        assert table.num_blocks() == 0

    def test_a_silent_worker_scores_nothing_until_it_is_heard(self):
        a, b = Worker("a"), Worker("b")
        table = RoutingTable(BLOCK_SIZE)
        for worker in (a, b):
            table.apply(worker.batch(up(), stored(None, PROMPT)), now=10.0)
        table.apply(b.batch(load()), now=12.0)
        assert table.mark_silent(now=13.0, timeout_s=2.0) == ["a"]
        assert table.mark_silent(now=13.5, timeout_s=2.0) == []
        assert depths(table) == {"b": 6}
        assert table.is_stale("a")
        table.apply(a.batch(load()), now=14.0)
        assert depths(table) == {"a": 6, "b": 6}
        assert table.workers["a"].heard_at == 14.0

    def test_keeps_the_last_load_clamped(self):
        # TensorRT-LLM #11879: -2 of 7934 blocks used.
        a = Worker()
        table = table_with(a)
        good = load(used_blocks={"gpu": 5}, total_blocks={"gpu": 9}, hit_tokens=3, prompt_tokens=4)
        table.apply(a.batch(good))
        state = table.workers["a"]
        assert (state.load, state.hit_tokens, state.prompt_tokens) == (good, 3, 4)
        assert state.num_clamped_loads == 0
        bad = load(
            num_queued=-1,
            used_blocks={"gpu": -2, "host": 12, "disk": 1},
            total_blocks={"gpu": 7934, "host": 10},
            cached_blocks={"gpu": 9000},
            hit_tokens=9,
            prompt_tokens=4,
        )
        table.apply(a.batch(bad))
        assert state.load == load(
            used_blocks={"gpu": 0, "host": 10, "disk": 0},
            total_blocks={"gpu": 7934, "host": 10},
            cached_blocks={"gpu": 7934},
            hit_tokens=4,
            prompt_tokens=4,
        )
        assert state.num_clamped_loads == 1

    def test_loads_of_a_stale_worker_are_read(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(lost(), load(num_queued=4)), now=5.0)
        assert table.workers["a"].load == load(num_queued=4)
        assert table.workers["a"].heard_at == 5.0

    def test_blocks_of_shows_parents_and_attachment(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, [101, 102]), stored(998, [999])))
        kind = BlockClass("gpu", 35, "default")
        assert table.blocks_of("a") == {
            101: HeldBlock(None, True, kind),
            102: HeldBlock(101, True, kind),
            999: HeldBlock(998, False, kind),
        }
        assert table.blocks_of("nobody") == {}
        assert table.fingerprint("a") == 101 ^ 102


class TestAtomic:
    BAD = (
        msgspec.structs.replace(stored(None, [1, 2]), hashes=["xyz", "0" * 16]),
        msgspec.structs.replace(stored(None, [1, 2]), hashes=["0" * 15, "0" * 17]),
        msgspec.structs.replace(stored(None, [1, 2]), parent="5"),
        msgspec.structs.replace(stored(None, [1, 2]), num_tokens=[4]),
        msgspec.structs.replace(stored(None, [1, 2]), num_tokens=[3, 4]),
        msgspec.structs.replace(stored(None, [1, 2]), num_tokens=[4, 0]),
        msgspec.structs.replace(stored(None, [1, 2]), num_tokens=[4, 5]),
        msgspec.structs.replace(stored(None, [1, 2]), retention_priority=[35, 35, 35]),
        msgspec.structs.replace(stored(None, [1, 2]), retention_priority=[35, 101]),
        msgspec.structs.replace(stored(None, [1, 2]), retention_priority=[-1, -1]),
        stored(None, [1, 1]),
        stored(2, [1, 2]),
        stored(None, [1], medium="CPU"),
        removed(1, 2).__class__(hashes=["12"]),
        moved("nvme", 1),
        msgspec.structs.replace(moved("gpu", 1), retention_priority=101),
        msgspec.structs.replace(moved("gpu", 1), hashes=["é" * 16]),
        snapshot([(1, None)], part=1, num_parts=1),
        snapshot([(1, None)], part=-1),
        snapshot([(1, None), (1, None)]),
        snapshot([(1, 1)]),
        snapshot([(1, None)], num_tokens=5),
        snapshot([(1, None)], medium="tape"),
        msgspec.structs.replace(
            snapshot([(1, None)]),
            blocks=msgspec.structs.replace(snapshot([(1, None)]).blocks, tiers=[]),
        ),
    )

    @pytest.mark.parametrize("bad", BAD, ids=lambda event: type(event).__name__)
    def test_a_malformed_event_raises_and_changes_nothing(self, bad):
        a = Worker("a")
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT), load()))
        before = everything(table)
        with pytest.raises(EventError, match="worker a epoch 100 seq 2 event 1: "):
            table.apply(a.batch(stored(None, [201]), bad, CLEARED), now=99.0)
        assert everything(table) == before
        assert depths(table) == {"a": 6}

    def test_the_batch_after_a_malformed_one_shows_the_hole(self):
        a = Worker()
        table = table_with(a)
        with pytest.raises(EventError):
            table.apply(a.batch(self.BAD[0]))
        assert table.apply(a.batch(load())).num_missing == 1
        assert table.is_stale("a")


class TestPublicReports:
    def test_vllm_49125_state_follows_the_last_event(self):
        a = Worker()
        table = table_with(a)
        store, remove = stored(None, [101]), removed(101)
        for _ in range(2):
            table.apply(a.batch(store))
            assert depths(table) == {"a": 1}
            table.apply(a.batch(remove))
            assert depths(table) == {}
        table.apply(a.batch(store, store))
        table.apply(a.batch(remove))
        assert depths(table) == {}
        assert table.apply(a.batch(removed(999))).num_removed == 0
        batch = a.batch(store)
        table.apply(batch)
        assert table.apply(batch).outcome == Outcome.DUPLICATE
        table.apply(a.batch(remove))
        assert (depths(table), table.num_blocks()) == ({}, 0)

    @pytest.mark.parametrize("size", [8, 1, 33])
    def test_dynamo_659_another_block_size_is_refused_by_name(self, size):
        table = table_with(Worker("a"))
        b = Worker("b", block_size=size)
        table.apply(b.batch(up()))
        table.apply(b.batch(snapshot([(101, None)], num_tokens=size)))
        reason = f"block size {size} of the worker is not {BLOCK_SIZE} of the table"
        assert table.workers["b"].stale_reason == reason
        assert not table.is_stale("a")
        assert table.num_blocks() == 0

    def test_another_hash_scheme_is_refused_by_name(self):
        table = RoutingTable(BLOCK_SIZE, "scheme-2")
        a = Worker()
        table.apply(a.batch(up("scheme-1"), stored(None, PROMPT)))
        reason = "hash scheme 'scheme-1' of the worker is not 'scheme-2' of the table"
        assert table.workers["a"].stale_reason == reason
        table.apply(a.batch(snapshot([(101, None)], scheme="scheme-1")))
        assert table.workers["a"].stale_reason == reason
        table.apply(a.batch(snapshot([(101, None)], scheme="scheme-2")))
        assert depths(table) == {"a": 1}

    @pytest.mark.parametrize("num_tokens", [3, 4, 5, 7, 8])
    def test_dynamo_866_partial_blocks_never_score(self, num_tokens):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, [501])))
        num_full, rest = divmod(num_tokens, BLOCK_SIZE)
        hashes = list(range(101, 101 + num_full + bool(rest)))
        table.apply(a.batch(stored(None, hashes, last=rest or BLOCK_SIZE)))
        assert depths(table, hashes) == ({"a": num_full} if num_full else {})
        if rest:
            full = 300 + num_full
            parent = hashes[-2] if num_full else None
            table.apply(a.batch(stored(parent, [full])))
            assert depths(table, [*hashes[:-1], full]) == {"a": num_full + 1}
            table.apply(a.batch(removed(full)))
        applied = table.apply(a.batch(removed(*reversed(hashes))))
        assert (applied.num_removed, applied.is_stale) == (num_full, False)
        assert table.num_blocks() == 1

    def test_partial_blocks_of_a_snapshot_never_score(self):
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(snapshot([(101, None)], num_tokens=3)))
        assert (depths(table), table.num_blocks()) == ({}, 0)

    def test_dynamo_1056_a_late_table_rebuilds_and_agrees(self):
        a, b = Worker("a"), Worker("b")
        old = table_with(a, b)
        chain = list(zip(PROMPT, [None, *PROMPT], strict=False))
        warm = [a.batch(stored(None, PROMPT)), b.batch(stored(None, PROMPT[:2]))]
        for batch in warm:
            old.apply(batch)
        late = RoutingTable(BLOCK_SIZE)
        tail = [a.batch(stored(PROMPT[-1], [107, 108])), b.batch(stored(201, [202]))]
        for table in (old, late):
            for batch in tail:
                table.apply(batch)
        assert late.overlap(PROMPT) == {}
        assert [late.is_stale(w) for w in "ab"] == [True, True]
        assert all(old.blocks_of(w) != late.blocks_of(w) for w in "ab")
        heal = [
            a.batch(snapshot([*chain, (107, 106), (108, 107)])),
            b.batch(snapshot([*chain[:2], (202, 201)])),
        ]
        for table in (old, late):
            for batch in heal:
                table.apply(batch)
        assert depths(late, [*PROMPT, 107, 108]) == {"a": 8, "b": 2}
        assert [late.is_stale(w) for w in "ab"] == [False, False]
        assert [old.blocks_of(w) for w in "ab"] == [late.blocks_of(w) for w in "ab"]
        assert [old.fingerprint(w) for w in "ab"] == [late.fingerprint(w) for w in "ab"]

    def test_llm_d_1737_lost_late_and_double_batches(self):
        a = Worker()
        table = table_with(a)
        batches = [a.batch(stored(None, [100 + i])) for i in range(1, 7)]
        batches.append(a.batch(removed(101)))  # seq 7
        batches += [a.batch(stored(None, [100 + i])) for i in range(8, 13)]
        for batch in batches:
            if batch.seq not in (7, 11, 12):
                table.apply(batch)
        assert table.workers["a"].num_gaps == 1
        assert depths(table, [101]) == {}
        assert table.apply(batches[11]).num_missing == 1
        assert table.apply(batches[10]).outcome == Outcome.DUPLICATE
        assert table.apply(batches[10]).outcome == Outcome.DUPLICATE
        assert table.workers["a"].num_gaps == 2
        table.apply(a.batch(snapshot([(102, None)])))
        assert (depths(table, [102]), depths(table, [101])) == ({"a": 1}, {})

    def test_llm_d_878_blocks_of_a_lower_medium(self):
        a = Worker()
        table = table_with(a)
        hashes = list(range(101, 124))
        table.apply(a.batch(stored(None, hashes, medium="host")))
        assert table.overlap(hashes) == {"a": Overlap(23, 0, 23, 0)}
        table.apply(a.batch(moved("gpu", *hashes)))
        table.apply(a.batch(stored(hashes[-1], [200])))
        assert table.overlap([*hashes, 200]) == {"a": Overlap(24, 24, 0, 0)}
        assert table.workers["a"].num_by_medium() == {"gpu": 24}

    def test_aibrix_2287_cleared_workers_lose_their_blocks(self):
        a, b = Worker("a"), Worker("b")
        table = table_with(a, b)
        for worker in (a, b):
            table.apply(worker.batch(stored(None, PROMPT)))
        table.apply(a.batch(CLEARED))
        table.apply(Worker("nobody").batch(CLEARED))
        assert table.apply(a.batch(stored(None, PROMPT), seq=1)).outcome == Outcome.DUPLICATE
        assert depths(table) == {"b": 6}

    def test_dynamo_selection_service_restarted_publisher(self):
        # There, everything of the new sequence is dropped until it passes the old watermark.
        a = Worker()
        table = table_with(a)
        table.apply(a.batch(stored(None, PROMPT)))
        for _ in range(8):
            table.apply(a.batch(load()))
        a.restart()
        table.apply(a.batch(up()))
        assert depths(table) == {}
        table.apply(a.batch(stored(None, PROMPT[:1])))
        assert depths(table) == {"a": 1}
