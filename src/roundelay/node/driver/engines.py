"""The engines that run live, with settings for a real network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.core.positive_ack import PositiveAckConfig, PositiveAckSite
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.node.groups import GroupSpec

if TYPE_CHECKING:
    from roundelay.node.group_host import GroupHost

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


def token_engine(
    group: GroupHost, roster: Sequence[str], resilience: int, boot: str, now: int, stable: Any
) -> TokenSite:
    """The engine of this node as a member of `roster`."""
    bundled = group.outbox.bundle_bytes  # a single message may be larger, a reply not
    config = TokenConfig.fast(
        resilience=resilience,
        boot=boot,
        max_payload=max(bundled, LARGEST_MESSAGE),
        reply_bytes=bundled,
    )
    me, sites = roster.index(group.node.name), tuple(range(len(roster)))
    return TokenSite(me, sites, config, group.node.rng, now, stable)


def cluster_engine(group: GroupHost, roster: Sequence[str], now: int, stable: Any) -> Any:
    """The same in a group that is not a token group."""
    spec, rng = group.spec, group.node.rng
    me, sites = roster.index(group.node.name), tuple(range(len(roster)))
    if not spec.family.is_cluster:
        settings = PositiveAckConfig(
            resend_ns=20 * MS, pipeline=16, attempts=50, bundle=True, max_payload=LARGEST_MESSAGE
        )
        return PositiveAckSite(me, sites, settings, rng, now, stable=stable)
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
    return engine(me, sites, config, rng, now)


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
