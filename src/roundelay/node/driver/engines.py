"""The engines that run live, with settings for a real network."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.core.positive_ack import PositiveAckConfig, PositiveAckSite
from roundelay.core.token.config import TokenConfig
from roundelay.node.groups import GroupSpec

LARGEST_MESSAGE: Final = 60_000
"""Bytes of one message in an ordered group."""


PIECES: Final = 8
"""Datagrams that a bundle may fill where none of them gets lost."""


def bundle_bytes(room: int, burst: int = 0) -> int:
    """How much is put together, for datagrams of `room` bytes of which `burst` may come at once.

    A bundle in k datagrams arrives with probability (1 − loss)^k, so on an ordinary network it
    pays to stop at a few.  Within one machine datagrams are large, and one is enough; but nothing
    gets lost there as long as receivers have room for what all members may send at once, and then
    larger bundles save work.
    """
    if burst >= 16 * PIECES * room:  # a bundle of each of 16 members
        return PIECES * room - 2048
    return min(
        LARGEST_MESSAGE, max(room - 2048, 8 * (room - 64)) if room < 8192 else room * 9 // 10
    )


def token_config(resilience: int, boot: str, bundled: int) -> TokenConfig:
    """`bundled`: bytes that are put together.  A single message may be larger, a reply not."""
    return TokenConfig.fast(
        resilience=resilience,
        boot=boot,
        max_payload=max(bundled, LARGEST_MESSAGE),
        reply_bytes=bundled,
    )


def cluster_engine(
    spec: GroupSpec, me: int, size: int, rng: Random, now: int, stable: Any = None
) -> Any:
    """The engine of a group that is not a token group."""
    group = tuple(range(size))
    if not spec.family.is_cluster:
        settings = PositiveAckConfig(
            resend_ns=20 * MS, pipeline=16, attempts=50, bundle=True, max_payload=LARGEST_MESSAGE
        )
        return PositiveAckSite(me, group, settings, rng, now, stable=stable)
    # Bundles are made by the outbox, and each delivery is the receipt of one of them: the engine
    # must not put together what it has to send again.
    # A member that answers none of 10 polls is suspected after half a second, and after one given
    # up; who runs late itself does not count (`Exchange.on_stat_timer`).
    config = ClusterConfig(
        ack_ns=1 * MS,
        wait_ns=5 * MS,
        stat_ns=50 * MS,
        bundle=False,
        max_payload=LARGEST_MESSAGE,
        attempts=10,
        early=early_stage(spec),
    )
    engine: Any = spec.family.engine
    return engine(me, group, config, rng, now)


def early_stage(spec: GroupSpec) -> str:
    """The stage before the last one at which applications want messages; empty: none."""
    return spec.stage if spec.stage in ("accepted", "preacknowledged") else ""


def check_stage(spec: GroupSpec) -> None:
    allowed = ("", "accepted", "preacknowledged", "acknowledged")
    if spec.family.is_cluster and spec.stage not in allowed:
        raise ConfigError("stage", spec.stage, ", ".join(allowed[1:]))
    if not spec.family.is_cluster and spec.stage:
        raise ConfigError("stage", spec.stage, "none for this service")
    if spec.hub and spec.stage == "accepted":
        raise ConfigError("stage", spec.stage, "preacknowledged or acknowledged with hub=yes")


def stage_of(spec: GroupSpec) -> str:
    """When a group delivers of which nothing is said; empty: it has no stages."""
    return spec.family.stages[-1] if spec.family.is_cluster else ""
