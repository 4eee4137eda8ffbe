"""What the Kafka client tells only its log."""

from __future__ import annotations

import logging


class ConnectionProblems(logging.Handler):
    """Catches why connecting failed: the client's exception says only that it timed out."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        _, is_failure, reason = record.getMessage().partition(" failed: ")
        if is_failure and "Unable to bootstrap" not in reason:
            self.last = reason.partition(" (backoff")[0]  # or every attempt were another problem

    def __enter__(self) -> ConnectionProblems:
        logging.getLogger("kafka.net.manager").addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger("kafka.net.manager").removeHandler(self)
