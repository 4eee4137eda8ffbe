"""Several blocking tasks at once, for a program that a person may interrupt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

POLL_S = 0.1
GRACE_S = 5.0


def run_together(
    tasks: Mapping[str, Callable[[], str]], stop: Callable[[], None] = lambda: None
) -> dict[str, str]:
    """Run all at once; their results by name. Raises the first failure.

    After a failure or an interrupt `stop` is to end what the others wait for, and they get GRACE_S
    to end, so that what they were starting can be found and stopped.
    """
    results: dict[str, str] = {}
    failures: list[BaseException] = []

    def run(name: str, task: Callable[[], str]) -> None:
        try:
            results[name] = task()
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(name, task), daemon=True) for name, task in tasks.items()
    ]
    for thread in threads:
        thread.start()
    try:
        while len(results) < len(tasks) and not failures:
            time.sleep(POLL_S)
    finally:
        if len(results) < len(tasks):
            stop()
        deadline_s = time.monotonic() + GRACE_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
    if failures:
        raise failures[0]
    return results
