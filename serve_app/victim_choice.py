"""Which replicas Serve stops when it scales down: ours to say, where Serve's code is known.

Serve picks the replicas itself and offers no way to say so; this replaces one private method of its
scheduler, inside the controller. With another version or another signature nothing is touched, a
warning says so, and Serve's own choice (the newest on the emptiest node) stays.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any

import ray
from ray.serve._private import deployment_scheduler

logger = logging.getLogger(__name__)

KNOWN_VERSION = "2.60.0"
METHOD = "_get_replicas_to_stop"
KNOWN_PARAMETERS = (
    "self",
    "deployment_id",
    "max_num_to_stop",
    "gang_id_by_replica",
    "replicas_by_gang_id",
    "gang_size",
)
STARTING = ("_pending_replicas", "_launching_replicas", "_recovering_replicas")
MARK = "_cachelane_choice"

# (deployment id as text, running replica ids, how many) -> replica ids, None: Serve's own choice.
Choose = Callable[[str, Collection[str], int], "list[str] | None"]


def install(choose: Choose) -> bool:
    """Idempotent in one process. False if Serve is not the version whose code is known."""
    scheduler = getattr(deployment_scheduler, "DeploymentScheduler", None)
    original = getattr(scheduler, METHOD, None)
    if original is not None and hasattr(original, MARK):
        return True
    if original is None or not is_known(ray.__version__, original):
        logger.warning(
            "Ray %s chooses replicas to stop in a way that is not known (known: %s); "
            "autoscaling.coldest_first has no effect",
            ray.__version__,
            KNOWN_VERSION,
        )
        return False
    replacement = _replacement(original, choose)
    setattr(replacement, MARK, True)
    setattr(scheduler, METHOD, replacement)
    return True


def is_known(version: str, method: Callable[..., Any]) -> bool:
    return version == KNOWN_VERSION and tuple(inspect.signature(method).parameters) == (
        KNOWN_PARAMETERS
    )


def _replacement(original: Callable[..., Any], choose: Choose) -> Callable[..., Any]:
    def chosen_replicas(
        self: Any, deployment_id: Any, max_num_to_stop: int, **gangs: Any
    ) -> set[Any]:
        try:
            chosen = _chosen(self, deployment_id, max_num_to_stop, choose)
        except Exception:  # Serve's control loop must go on, whatever has become of its insides
            logger.exception("choosing replicas to stop")
            chosen = None
        if chosen is None or any(value is not None for value in gangs.values()):
            return set(original(self, deployment_id, max_num_to_stop, **gangs))
        return chosen

    return chosen_replicas


def _chosen(scheduler: Any, deployment_id: Any, num: int, choose: Choose) -> set[Any] | None:
    """Replicas that do not run yet go first, as Serve would have it: nothing is lost with them."""
    if any(getattr(scheduler, name).get(deployment_id) for name in STARTING):
        return None
    running = {r.unique_id: r for r in scheduler._running_replicas[deployment_id]}
    ids = choose(str(deployment_id), running.keys(), num)
    return None if ids is None else {running[name] for name in ids}
