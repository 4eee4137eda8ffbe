"""The reason for a failed connection, caught from the client's log."""

from __future__ import annotations

import logging

from infra.kafka_log import ConnectionProblems

log = logging.getLogger("kafka.net.manager")


def test_remembers_the_last_reason():
    with ConnectionProblems() as problems:
        assert problems.last == ""
        log.warning("Bootstrap connection to %s failed: %s (backoff %.2f secs)", "b-0", "bad", 0.1)
        assert problems.last == "bad"
        log.warning("Bootstrap b-0 not ready; waiting 0.1 secs")
        log.error("Bootstrap failed: KafkaTimeoutError: Unable to bootstrap from ['b']")
        assert problems.last == "bad"
        log.error("Connection failed: refused")
        assert problems.last == "refused"
    log.error("Connection failed: later")
    assert problems.last == "refused"
    assert problems not in log.handlers
