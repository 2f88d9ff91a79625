"""Plans: one integer decides everything about a random run.

A plan has a safety phase, in which it strikes with faults, and a liveness phase: at `heal_ns` all
faults end, all sites are up, and whatever is pending has to commit.  `draft` and `cluster_draft`
draw plans; what a plan may not do is decided when it runs (`driver`): how many sites may be down
depends on which of them have recovered by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.engine import ACKNOWLEDGED
from roundelay.core.errors import ConfigError
from roundelay.core.positive_ack import PositiveAckConfig
from roundelay.core.token.config import TokenConfig
from roundelay.sim.autorm_draft import AutoRmDraft
from roundelay.sim.cluster_draft import ClusterDraft
from roundelay.sim.draft import Draft
from roundelay.sim.engines import (
    AUTORM,
    CLUSTERS,
    GRSB,
    POSITIVE_ACK,
    PROTOCOLS,
    SPO,
    SWARMED,
    TO,
    TO_CHANNEL,
    TOKEN,
    WIDE,
    config_class,
)
from roundelay.sim.fast_draft import ANY, FAST, PROFILES, FastClusterDraft, FastDraft
from roundelay.sim.faults import FAULT_KINDS, LINK_KINDS, LinkSpec, Strike
from roundelay.sim.grsb_draft import GrsbDraft
from roundelay.sim.grsb_group import GrsbGroup
from roundelay.sim.load import Destinations
from roundelay.sim.wide_draft import WideDraft
from roundelay.sim.wide_group import WideGroup

__all__ = [
    "FAULT_KINDS",
    "LINK_KINDS",
    "POSITIVE_ACK",
    "PROTOCOLS",
    "SWARMED",
    "TOKEN",
    "Plan",
    "Strike",
]


class Plan(Struct, frozen=True, kw_only=True):
    """One random run, complete."""

    seed: int
    protocol: str
    sites: int
    boot: str
    config: dict[str, Any]  # fields of the protocol's configuration that are not the default
    medium: str
    medium_args: tuple[int, ...]
    wire: bool
    messages: int
    rate: float  # messages per second; 0: every source always has some waiting
    size: int
    links: tuple[LinkSpec, ...]
    strikes: tuple[Strike, ...]
    beyond: bool  # more than L sites may be down at once: safety only until they are back
    heal_ns: int
    liveness_ns: int  # within which everything pending must commit after healing (I7)
    # Clusters only.
    spread: int = 0  # SPO: members each message goes to; 0: a random number of them
    never: tuple[int, ...] = ()  # SPO: members that nothing is ever sent to
    sources: tuple[int, ...] = ()  # sites that submit; none: all of them
    fails: int = -1  # the member that stops for good, if any
    profile: str = ANY

    @classmethod
    def from_seed(cls, seed: int, protocol: str = TOKEN, profile: str = ANY) -> Plan:
        """The plan of `seed`."""
        if protocol not in SWARMED:
            raise ConfigError("protocol", protocol, " or ".join(SWARMED))
        draft: type[Draft] = ClusterDraft if protocol in CLUSTERS else Draft
        if protocol == AUTORM:
            draft = AutoRmDraft
        elif protocol == GRSB:
            draft = GrsbDraft
        elif protocol == WIDE:
            draft = WideDraft
        if profile not in PROFILES:
            raise ConfigError("profile", profile, " or ".join(PROFILES))
        if profile == FAST:
            if protocol != TOKEN and protocol not in CLUSTERS:
                raise ConfigError("profile", profile, f"{ANY} with {protocol}")
            draft = FastClusterDraft if protocol in CLUSTERS else FastDraft
        drawn = draft(seed, protocol).fields()
        return cls(seed=seed, protocol=protocol, profile=profile, **drawn)

    @property
    def rerun(self) -> str:
        """The line that runs this plan again."""
        profile = "" if self.profile == ANY else f" --profile {self.profile}"
        only = f"--seeds {self.seed}:{self.seed + 1} --protocol {self.protocol}"
        return f"roundelay swarm {only}{profile}"

    @property
    def resilience(self) -> int:
        """L; only the token protocol has one."""
        return int(self.config.get("resilience", 0))

    @property
    def order(self) -> str:
        """What the protocol promises about order: `total`, `fifo` or `none`."""
        if self.protocol in (TOKEN, GRSB, WIDE):
            return "total"
        if self.protocol == AUTORM:
            return "fifo"
        if self.protocol == POSITIVE_ACK:
            return "fifo" if self.config.get("fifo") else "none"
        # What is handed over before it is acknowledged comes in the order of its source.
        early = self.config.get("deliver_at", ACKNOWLEDGED) != ACKNOWLEDGED
        return "fifo" if early or self.protocol not in (TO, TO_CHANNEL) else "total"

    def destinations(self, members: Sequence[int] | None = None) -> Destinations | None:
        """Who gets which message, if not everybody; `members` are those of a reopened cluster."""
        if self.protocol != SPO:
            return None
        group = tuple(range(self.sites) if members is None else members)
        spread = len(group) if self.spread == self.sites else self.spread
        return Destinations(group, spread, seed=self.seed, never=self.never)

    def to_json(self) -> bytes:
        """The contents of params.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        return msgspec.json.decode(data, type=cls)

    def settings(
        self,
    ) -> TokenConfig | PositiveAckConfig | ClusterConfig | AutoRmConfig | GrsbGroup | WideGroup:
        """The configuration of the engines, checked."""
        return config_class(self.protocol)(**self.config).check(self.sites)
