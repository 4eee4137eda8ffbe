"""Which replicas to remove: those whose caches are worth least to the fleet.

A cache is worth the hits it served lately and, a little, what it is asked to keep; what another
replica holds as well is not lost. Knows nothing of how replicas are stopped.
"""

from __future__ import annotations

from collections.abc import Mapping

from controllers.autoscaling_fleet import REFILL_HORIZON_S
from controllers.autoscaling_report import ReplicaReport
from controllers.cache_sample import bits_of, shared_share

# A token that is only kept counts as so much of one that was reused within the horizon.
CONTENT_WEIGHT = 0.1


def worth(report: ReplicaReport, shared: float) -> float:
    """Tokens that the fleet would compute again without this replica's cache, of which another one
    holds this share."""
    hits = report.hit_tokens_per_s * REFILL_HORIZON_S
    cached = report.cached_blocks * report.block_size
    return (min(hits, cached) + CONTENT_WEIGHT * report.content_tokens) * (1.0 - shared)


def coldest(reports: Mapping[str, ReplicaReport], num: int) -> list[str]:
    """The `num` replicas to remove, one by one: of two equal caches only one is worthless.

    Cost: the square of their number, a microsecond each, for every one to remove.
    """
    left = {name: bits_of(report.sample) for name, report in reports.items()}
    gone: list[str] = []
    while left and len(gone) < num:
        worths = {name: worth(reports[name], _shared(name, left)) for name in left}
        victim = min(left, key=lambda name: (worths[name], name))
        gone.append(victim)
        del left[victim]
    return gone


def _shared(name: str, bits: Mapping[str, int]) -> float:
    """Share of its cache that the one other replica with most of it holds."""
    own = bits[name]
    return max((shared_share(own, theirs) for n, theirs in bits.items() if n != name), default=0.0)
