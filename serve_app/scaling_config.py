"""Settings -> how many replicas there are, what they are made of, and what reaches them later.

One place for both ways of deploying: by `serve.run`, and by the file that `config serve` prints.
Plain values; knows no Ray.
"""

from __future__ import annotations

from typing import Any

from infra.settings import POLICY_SECTIONS, Settings, to_values

POLICY_CLASS = "serve_app.autoscaling:ScalingPolicy"
# Serve takes five samples in this time and keeps them; only the last one is read.
LOOK_BACK_INTERVALS = 5
# Serve writes the policy's arguments to its log. What is secret comes from the environment of the
# head instead (`CACHELANE_KAFKA__SECURITY__...`).
SECRET_WORDS = ("password", "secret", "token", "key")


def replica_options(settings: Settings) -> dict[str, Any]:
    """`num_replicas`, or `autoscaling_config` if autoscaling is on."""
    if settings.autoscaling.enabled:
        return {"autoscaling_config": autoscaling_config(settings)}
    return {"num_replicas": settings.executor.num_replicas}


def constructor_arguments(settings: Settings) -> dict[str, Any]:
    """What replicas are made of; changing it makes all of them anew, the executors too. Policies
    are not among it, nor how machines are launched, nor how many replicas there are."""
    values = to_values(settings)
    for name in ("deploy", *POLICY_SECTIONS):
        del values[name]
    del values["executor"]["num_replicas"], values["http"]["num_ingress"]
    return values


def policies(settings: Settings) -> dict[str, Any]:
    """`user_config` of the ingress deployment: changing it restarts no replica. An ingress must
    know how many of them share a tenant's limits, so `http` is in it as well."""
    values = to_values(settings)
    return {name: values[name] for name in (*POLICY_SECTIONS, "http")}


def autoscaling_config(settings: Settings) -> dict[str, Any]:
    """Serve's own delays are off: the policy has its hysteresis. The policy's arguments hold
    nothing that may change, since a change of them would restart every replica; its settings come
    with the replicas' figures."""
    section = settings.autoscaling
    return {
        "min_replicas": section.min_replicas,
        "max_replicas": section.max_replicas,
        "metrics_interval_s": section.interval_s,
        "look_back_period_s": LOOK_BACK_INTERVALS * section.interval_s,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "downscale_to_zero_delay_s": 0.0,
        "policy": {
            "policy_function": POLICY_CLASS,
            "policy_kwargs": {"kafka": _without_secrets(to_values(settings)["kafka"])},
        },
    }


def executor_policies(settings: Settings) -> dict[str, Any]:
    """`user_config` of the executor deployment: changing it restarts no replica. But Serve takes
    each one out of the routers for a moment, so that what changes often travels otherwise."""
    return {"autoscaling": to_values(settings)["autoscaling"]}


def _without_secrets(kafka: dict[str, Any]) -> dict[str, Any]:
    security = {
        name: value
        for name, value in kafka["security"].items()
        if not any(word in name for word in SECRET_WORDS)
    }
    return {**kafka, "security": security}
