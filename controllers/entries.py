"""What the books keep of each worker. Times are in ms since an arbitrary start."""

from __future__ import annotations

from typing import NamedTuple

from controllers.numbers import Numbers, at_least


class Entries(NamedTuple):
    """Arrays by row of the books, or the numbers of one worker."""

    prefill_end_ms: Numbers  # when the prefill booked here ends, by all routers that tell
    own_prefill_end_ms: Numbers  # if there were no other routers
    booked_ms: Numbers  # service booked here, decaying, as of one time for all
    prefill_tokens: Numbers  # booked, first token not seen
    num_unstarted: Numbers  # requests that wait for their first token
    num_requests: Numbers  # booked, not released
    own_blocks: Numbers  # prompt blocks of booked requests
    shared_tokens: Numbers  # as prefill_tokens, num_requests and own_blocks, of other routers
    shared_requests: Numbers
    shared_blocks: Numbers
    capacity_blocks: Numbers  # inf: not known yet
    speed: Numbers
    others_prefill_tokens: Numbers  # running means of what nobody tells of
    others_requests: Numbers
    reported_blocks: Numbers
    blocks_at_report: Numbers  # own and shared
    reported_at_ms: Numbers  # -inf: never

    def active_blocks(self) -> Numbers:
        """Blocks held by requests: the last report and known changes since it."""
        change = self.own_blocks + self.shared_blocks - self.blocks_at_report
        return at_least(0.0, self.reported_blocks + change)


START = Entries(*[0.0] * len(Entries._fields))._replace(
    capacity_blocks=float("inf"), reported_at_ms=float("-inf"), speed=1.0
)
