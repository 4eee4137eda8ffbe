from __future__ import annotations

from controllers.autoscaling_victims import coldest, worth
from controllers.cache_sample import CacheSample
from tests.autoscaling_rig import report
from tests.test_cache_sample import hashes, sample_of


def test_hits_count_more_than_what_is_only_kept() -> None:
    hit = report(hit_tokens_per_s=10.0, cached_blocks=1000, block_size=32)
    kept = report(content_tokens=20_000.0, cached_blocks=1000, block_size=32)
    assert (worth(hit, 0.0), worth(hit, 0.5), worth(kept, 0.0)) == (3000.0, 1500.0, 2000.0)
    assert coldest({"hit": hit, "kept": kept}, 1) == ["kept"]


def test_what_another_holds_as_well_is_not_lost() -> None:
    shared = sample_of(hashes(8000, 1)).words()
    own = sample_of(hashes(8000, 2)).words()
    fleet = {
        "twin-a": report(content_tokens=900.0, sample=shared),
        "twin-b": report(content_tokens=1000.0, sample=shared),
        "alone": report(content_tokens=500.0, sample=own),
    }
    assert coldest(fleet, 1) == ["twin-a"]
    # With one of the twins gone the other one is worth what it holds.
    assert coldest(fleet, 2) == ["twin-a", "alone"]


def test_equal_ones_go_by_name_and_never_more_than_there_are() -> None:
    empty = report(sample=CacheSample(100).words())
    assert coldest({"b": empty, "a": empty}, 5) == ["a", "b"]
    assert coldest({}, 1) == []
