"""How far the cluster protocols are explored."""

from __future__ import annotations

from typing import ClassVar, Self

from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.engine import ACKNOWLEDGED
from roundelay.core.errors import ConfigError
from roundelay.core.families import CLUSTERS, PO
from roundelay.sim.explore.scope import Bounds


class ClusterScope(Bounds, frozen=True, kw_only=True):
    """Bounds of one exploration.

    >>> ClusterScope(protocol="spo", sites=3).command()
    'roundelay explore --protocol spo --sites 3 --messages 2 --losses 1'
    """

    LIMITS: ClassVar[dict[str, tuple[int, int]]] = {
        "sites": (2, 5),
        "messages": (0, 9),
        "losses": (0, 9),
        "early": (0, 9),
        "window": (1, 9),
        "fails": (0, 1),
    }
    ALWAYS_NAMED: ClassVar[tuple[str, ...]] = ("protocol", "sites", "messages", "losses")

    protocol: str = PO
    sites: int = 2
    messages: int = 2
    """Messages submitted in total, by any member at any moment."""
    losses: int = 1
    """Copies lost in total."""
    early: int = 0
    """Times that a long timer passes while something is under way."""
    window: int = 1
    """W: a member's messages that may be under way at a time."""
    deliver_at: str = ACKNOWLEDGED
    """The stage at which messages are handed over."""
    fails: int = 0
    """1: in every state that is met, each member in turn stops for good."""

    def check(self) -> Self:
        """Raise ConfigError unless all bounds make sense."""
        if self.protocol not in CLUSTERS:
            raise ConfigError("protocol", self.protocol, " or ".join(CLUSTERS))
        return super().check()

    def config(self) -> ClusterConfig:
        """All timers are in the future, and t_wait is too short to hold a repetition back."""
        return ClusterConfig(
            ack_ns=1,
            wait_ns=1,
            stat_ns=1,
            reset_ns=1,
            attempts=2,
            window=self.window,
            deliver_at=self.deliver_at,
        )
