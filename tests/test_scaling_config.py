from __future__ import annotations

import json

from infra.settings import to_settings
from serve_app.scaling_config import autoscaling_config, executor_policies, replica_options


def test_a_fixed_number_of_replicas_unless_autoscaling_is_on() -> None:
    assert replica_options(to_settings({"executor": {"num_replicas": 5}})) == {"num_replicas": 5}
    scaled = to_settings({"autoscaling": {"enabled": True, "max_replicas": 9}})
    assert list(replica_options(scaled)) == ["autoscaling_config"]


def test_serves_own_delays_are_off_and_reports_are_frequent() -> None:
    settings = to_settings({"autoscaling": {"enabled": True, "max_replicas": 9, "interval_s": 0.5}})
    found = autoscaling_config(settings)
    policy = found.pop("policy")
    assert found == {
        "min_replicas": 1,
        "max_replicas": 9,
        "metrics_interval_s": 0.5,
        "look_back_period_s": 2.5,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "downscale_to_zero_delay_s": 0.0,
    }
    assert policy["policy_function"] == "serve_app.autoscaling:ScalingPolicy"


def test_no_secret_and_nothing_that_changes_is_in_the_policys_arguments() -> None:
    """Serve logs them, and a change of them would restart every replica."""
    security = {"security_protocol": "SASL_SSL", "sasl_plain_password": "hush", "ssl_cafile": "/ca"}
    before = to_settings({"kafka": {"security": security}})
    after = to_settings(
        {
            "kafka": {"security": security},
            "autoscaling": {"down_settle_s": 500.0},
            "tiers": {"rules": {"interactive": {"rank": 0, "ttft_slo_ms": 9.0}}},
        }
    )
    policy = autoscaling_config(before)["policy"]
    assert policy == autoscaling_config(after)["policy"]
    assert "hush" not in json.dumps(policy)
    assert policy["policy_kwargs"]["kafka"]["security"] == {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": "/ca",
    }
    assert list(executor_policies(after)) == ["autoscaling"]
    assert executor_policies(after)["autoscaling"]["down_settle_s"] == 500.0
