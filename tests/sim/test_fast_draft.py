"""Random runs under the `fast` profile."""

from __future__ import annotations

import pytest

from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.errors import ConfigError
from roundelay.core.token.config import TokenConfig
from roundelay.runs.swarm import SwarmParams, run_seed
from roundelay.sim.swarm.plan import Plan

PROTOCOLS = ("token", "to", "po", "spo")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fast_plans_are_sound_and_reproducible(protocol: str) -> None:
    for seed in range(60):
        plan = Plan.from_seed(seed, protocol, "fast")
        assert plan == Plan.from_seed(seed, protocol, "fast")
        config = plan.settings()
        assert isinstance(config, TokenConfig | ClusterConfig)
        assert config.bundle
    assert plan.rerun == f"roundelay swarm --seeds 59:60 --protocol {protocol} --profile fast"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_few_fast_seeds_keep_every_promise(protocol: str) -> None:
    params = SwarmParams(first=0, beyond=4, protocol=protocol, profile="fast")
    for seed in range(4):
        found = run_seed(seed, params)
        assert not found.findings, found.findings[0]
        assert found.outcome is not None
        assert found.outcome.committed


def test_fast_token_plans_are_eager_and_meet_their_bounds() -> None:
    plans = [Plan.from_seed(seed, "token", "fast") for seed in range(200)]
    assert all(plan.config["eager"] for plan in plans)
    for name in ("backoff", "adapt_ns", "bulk", "history_bytes", "own_bytes", "max_payload"):
        assert len({plan.config[name] for plan in plans}) > 1, name


def test_other_plans_are_what_they_were() -> None:
    assert Plan.from_seed(3) == Plan.from_seed(3, "token", "any")
    assert Plan.from_seed(3) != Plan.from_seed(3, "token", "fast")
    assert "eager" not in Plan.from_seed(3).config


@pytest.mark.parametrize("profile, protocol", [("quick", "token"), ("fast", "positive-ack")])
def test_profiles_that_do_not_exist_are_refused(profile: str, protocol: str) -> None:
    with pytest.raises(ConfigError, match="profile"):
        Plan.from_seed(0, protocol, profile)
