from __future__ import annotations

import msgspec
import numpy as np
import pytest

from controllers.autoscaling_report import ReplicaReport, report_of, settings_of
from controllers.errors import Overtaken
from controllers.events import Removed, Stored, hexes_of
from controllers.hot_prefixes import warm_up_id
from controllers.replica_meter import TierTarget
from controllers.retention import Retention, TokenRange
from serve_app.executors.base import GenerateRequest, SamplingParams, TokenChunk
from serve_app.scaling_stats import ScalingStats
from serve_app.wire import Call
from tests.routing_rig import INFO

HASHES = hexes_of([1, 2])


def call(name: str = "a", n: int = 1) -> Call:
    request = GenerateRequest(
        request_id=name,
        token_ids=np.arange(8, dtype=np.uint32).tobytes(),
        sampling=SamplingParams(max_tokens=4, n=n),
        retention=Retention(ranges=(TokenRange(0, None, 80, 300.0),)),
    )
    target = TierTarget("interactive", 0, 2000.0, 100.0)
    return Call(request, 8, 60.0, 60.0, target=target)


def chunk(num: int) -> TokenChunk:
    return TokenChunk(token_ids=tuple(range(num)))


class Rig:
    def __init__(self) -> None:
        self.now = 1000.0
        self.stats = ScalingStats(INFO, lambda: self.now)
        self.now += 100.0

    def report(self) -> ReplicaReport:
        found = report_of(self.stats.figures(num_at_gate=3))
        assert found is not None
        return found


def test_a_request_is_timed_from_the_gate_to_its_end() -> None:
    rig = Rig()
    with rig.stats.timing(call(n=2)) as timing:
        assert rig.report().tiers["interactive"].backlog_ms > 0
        rig.now += 3.0
        timing.on_chunk(chunk(1))
        rig.now += 1.0
        timing.on_chunk(chunk(5))
    tier = rig.report().tiers["interactive"]
    assert (tier.backlog_ms, tier.num_ttft, tier.num_ttft_missed) == (0.0, 1.0, 1.0)
    assert (tier.num_itl, tier.num_itl_missed) == (1.0, 1.0)  # three tokens a sequence, 500 ms
    assert rig.report().num_waiting == 3.0


def test_a_piece_and_its_request_are_timed_as_one() -> None:
    rig = Rig()
    piece = msgspec.structs.replace(call("a/1"), is_piece=True)
    for each in (piece, msgspec.structs.replace(call(), waited_s=1.5)):
        with rig.stats.timing(each) as timing:
            rig.now += 1.0
            timing.on_chunk(chunk(1))
    tier = rig.report().tiers["interactive"]
    assert (tier.num_ttft, tier.num_ttft_missed, tier.num_itl) == (1.0, 1.0, 0.0)


def test_a_request_that_fails_leaves_nothing_behind() -> None:
    rig = Rig()
    try:
        with rig.stats.timing(call()):
            raise RuntimeError
    except RuntimeError:
        pass
    assert rig.report().tiers["interactive"].backlog_ms == 0.0


def test_a_warm_up_is_nobodys_latency() -> None:
    rig = Rig()
    with rig.stats.timing(call(warm_up_id("x"))) as timing:
        rig.now += 30.0
        timing.on_chunk(chunk(1))
    assert rig.report().tiers == {}


def test_cache_events_tell_worth_and_pressure() -> None:
    rig = Rig()
    with rig.stats.timing(call()):
        pass
    stored = Stored(parent=None, hashes=HASHES, num_tokens=[4, 4], retention_priority=[80, 80])
    rig.stats.on_events(0, [stored, Removed(hashes=HASHES), stored])
    report = rig.report()
    assert report.content_tokens == 6.4
    assert report.reasked_tokens_per_s > 0
    assert len(report.sample) == 4


def test_settings_come_as_plain_values_and_go_along_with_the_figures() -> None:
    rig = Rig()
    rig.stats.configure({"autoscaling": {"max_replicas": 7, "window_s": 60.0}})
    settings = settings_of(rig.stats.figures(0))
    assert settings is not None
    assert (settings.max_replicas, settings.window_s) == (7, 60.0)


def test_one_that_is_handed_back_is_no_work_of_this_replica() -> None:
    rig = Rig()
    with rig.stats.timing(call()) as timing:
        timing.on_chunk(chunk(1))
    before = rig.report().tiers
    with pytest.raises(Overtaken), rig.stats.timing(call("b")):
        raise Overtaken("not the next one")
    assert rig.report().tiers == before
