"""A Kafka of its own for a benchmark, in a temporary folder."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.stopping import undisturbed, unwinding
from infra.local_broker_tansu import Broker, attach_local_broker, start_local_broker


@contextlib.contextmanager
def running_broker() -> Iterator[tuple[Path, Broker]]:
    """Its state folder, and the broker; nothing is left of it afterwards, also if this process is
    terminated. It may be killed and started again in between. Raises BrokerError."""
    with unwinding(), tempfile.TemporaryDirectory(prefix="cachelane-bench-") as folder:
        state_dir = Path(folder)
        try:
            yield state_dir, start_local_broker(state_dir)
        finally:
            with undisturbed():
                running = attach_local_broker(state_dir)
                if running is not None:
                    running.stop()
