"""What the real package does not have: how to choose a version, timing and faults of the double.

`configure(version=..., ...)` sets what the next LLM is made with; `current()` says it; `running()`
lists the LLMs that were not shut down, each with its `faults`.
"""

from __future__ import annotations

from tensorrt_llm.double.registry import running
from tensorrt_llm.double.settings import Settings, configure, current

__all__ = ["Settings", "configure", "current", "running"]
