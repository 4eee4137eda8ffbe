"""How deep each worker holds a prompt, in few looks at the blocks.

1. Along a prompt the set of workers with attached blocks never grows. So if the sets of two blocks
   are equal, nothing changes between them, and a search by halves finds every depth.
2. Blocks of one run have the same holders. Where less than a run is left to search, the run says
   how far its set reaches: one look, where halves would take six.
3. Another thread may change the runs meanwhile: states in between are seen, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controllers.blocks import num_common_blocks
from controllers.run_tree import MAX_RUN
from controllers.runs import Run


def depths_of(run_of: Mapping[int, Run], hashes: Sequence[int]) -> list[tuple[int, int]]:
    """(mask, depth) pairs, depths rising: these workers hold exactly the first `depth` blocks.

    Workers without the first block are left out. Looks up about log2(len(hashes)) - 5 blocks for
    every different depth, and two in all if everybody holds everything.
    """
    found: list[tuple[int, int]] = []
    if len(hashes) == 0:
        return found
    mask, depth = _attached(run_of, hashes[0]), 1  # `mask` holds the first `depth` blocks
    bounds = [(len(hashes) + 1, 0)]  # (depth, its mask) of blocks further down, nearest last
    probe = len(hashes)
    while mask:
        bound, bound_mask = bounds[-1]
        if bound_mask == mask:
            depth = bound
            bounds.pop()
        elif bound == depth + 1:
            found.append((mask & ~bound_mask, depth))
            mask, depth = bound_mask, bound
            bounds.pop()
        else:
            if bound - depth <= MAX_RUN:
                depth += _num_following(run_of, hashes, depth, bound - 1)
                probe = depth + 1
            if probe < bound:
                bounds.append((probe, _attached(run_of, hashes[probe - 1]) & mask))
        probe = (depth + bounds[-1][0]) // 2 if bounds else 0
    return found


def _attached(run_of: Mapping[int, Run], block_hash: int) -> int:
    run = run_of.get(block_hash)
    return run.attached if run else 0


def _num_following(run_of: Mapping[int, Run], hashes: Sequence[int], depth: int, end: int) -> int:
    """How many of hashes[depth:end] come next in the run of the block before them."""
    run = run_of.get(hashes[depth - 1])
    held = run.hashes.copy() if run else []
    if hashes[depth - 1] not in held:
        return 0
    start = held.index(hashes[depth - 1]) + 1
    return num_common_blocks(hashes[depth:end], held, start)
