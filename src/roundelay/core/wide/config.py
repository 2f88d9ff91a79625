"""Parameters of the hierarchy, checked once: those of GRSB, for both levels, and some more."""

from __future__ import annotations

from typing import Final, Self

from roundelay.core.engine import MS, NEVER
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import STABLE, GrsbConfig
from roundelay.core.limits import one_of, whole

SEQUENCED: Final = "sequenced"
ALL_ACTIVE: Final = "all-active"


class WideConfig(GrsbConfig, frozen=True, kw_only=True):
    """Constants of one group (§7.7); every site must use the same ones."""

    trunk_ns: int = 100 * MS
    """t_g: repeat UP, GBCAST, AckLCR."""
    ack_mode: str = SEQUENCED
    """AckGCR when the message has its place (`sequenced`), or when all active networks
    have acknowledged it (`all-active`) (HG-2)."""
    gpr_free: bool = False
    """The GPR lets go what all networks have recorded (HG-3)."""
    ready_max: int = 64
    """Messages an LCR has at hand for its network; more are fetched when there is room."""
    link_ns: int = 10 * MS
    """T: the longest delay of a link of a subnet."""
    ls_repair: bool = False
    """Nodes of the second kind ask for what they missed (HG-15)."""
    ls_held: int = 64
    """Messages such a node keeps behind a gap."""
    ls_keep: int = 256
    """Messages it keeps for neighbours that ask."""

    @classmethod
    def fast(cls, **changes: object) -> Self:
        """What live groups use: short repetitions, and bundles."""
        return super().fast(**({"trunk_ns": 20 * MS, "link_ns": 2 * MS} | changes))

    def check(self, sites: int = 2) -> Self:
        """Raise ConfigError unless this configuration can run a group."""
        super().check(sites)
        for name in ("trunk_ns", "ready_max", "link_ns", "ls_held", "ls_keep"):
            whole(name, getattr(self, name), 1, NEVER)
        one_of("ack_mode", self.ack_mode, (SEQUENCED, ALL_ACTIVE))
        if self.delivery != STABLE:
            raise ConfigError("delivery", self.delivery, f"{STABLE} in a hierarchy")
        if self.cold_start:
            raise ConfigError("cold_start", True, "no in a hierarchy: networks would differ")
        if self.ceiling:
            raise ConfigError("ceiling", self.ceiling, "0 in a hierarchy: the order is the GCR's")
        return self
