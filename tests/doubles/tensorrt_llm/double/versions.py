"""What each version of TensorRT-LLM does differently. The only place that compares versions.

Where a change is known by its date or pull request only, the release candidate is an estimate; the
README says which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FINAL = 10**6  # a final release comes after all its candidates


@dataclass(frozen=True, order=True)
class Version:
    """1.3.0rc27 is (1, 3, 0, 27)."""

    major: int
    minor: int
    patch: int
    candidate: int = FINAL

    @classmethod
    def parse(cls, text: str) -> Version:
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?", text)
        if match is None:
            raise ValueError(f"{text!r} is no version like 1.2.1 or 1.3.0rc27")
        major, minor, patch, candidate = match.groups()
        return cls(int(major), int(minor), int(patch), int(candidate or FINAL))

    @property
    def is_new(self) -> bool:
        """1.3 and later: request priority, cache salt and hash algorithm in events, capacity."""
        return (self.major, self.minor) >= (1, 3)

    @property
    def is_newest(self) -> bool:
        return (self.major, self.minor) >= (1, 4)

    @property
    def loses_descendants(self) -> bool:
        """Descendants of an evicted block leave the tree without a removed event."""
        return self.is_new

    @property
    def batches_removals(self) -> bool:
        """Removals of a window wait for its next stored event or the flush."""
        return self >= Version(1, 3, 0, 8)

    @property
    def drops_offload_threshold(self) -> bool:
        """secondary_offload_min_priority never reaches the cache manager."""
        return self < Version(1, 3, 0, 15)

    @property
    def host_events_crash(self) -> bool:
        """An updated event with only one of its two changes breaks the serializer."""
        return self < Version(1, 3, 0, 6)

    @property
    def stores_context_early(self) -> bool:
        """Computed blocks are stored after every chunk and in smaller windows too."""
        return self.is_new

    @property
    def has_onboard_blocks(self) -> bool:
        return self < Version(1, 3, 0, 27)

    @property
    def iterator_end(self) -> str:
        return "stop" if self.is_newest else "index_error" if self.is_new else "queue_empty"
