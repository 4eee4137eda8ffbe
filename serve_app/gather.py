"""What the choices of a running request gained, as it arrives. Knows no wire format."""

from __future__ import annotations

from collections.abc import Sequence

from serve_app.answer import Answer, Gain
from serve_app.feed import Feed
from serve_app.stream import Delta


async def gains(feed: Feed, answer: Answer) -> list[Gain]:
    """What came, by choice; a prompt whose choices all ended is stopped at once."""
    found = []
    for prompt, chunk in await feed.next():
        found.append(answer.feed(prompt, chunk))
        if answer.is_prompt_finished(prompt):
            feed.stop(prompt)
    return found


def joined(deltas: Sequence[Delta]) -> Delta:
    """Successive deltas of one choice as one."""
    text = "".join(delta.text for delta in deltas)
    tokens = [token for delta in deltas for token in delta.tokens]
    reasons = (delta.finish_reason for delta in deltas if delta.finish_reason is not None)
    return Delta(text, tokens, next(reasons, None))
