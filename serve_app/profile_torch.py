"""A capture by torch.profiler in this process. Imported only where torch is loaded already."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from controllers.errors import SetupError


def capture(seconds: float, file: Path) -> None:
    """Kernels of every thread, and the operators of this one; a Chrome trace. Blocks.

    Raises SetupError.
    """
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    try:
        with profile(activities=activities) as trace:
            time.sleep(seconds)
        trace.export_chrome_trace(str(file))
    except RuntimeError as error:
        text = (str(error).splitlines() or [""])[0]
        raise SetupError(f"torch.profiler failed: {text}") from error
