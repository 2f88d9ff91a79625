"""What the simulator knows of each protocol family: one record each, looked up by name.

A new protocol is simulated, drawn and driven by one more entry here, behind its record in
`core.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.engine import ACKNOWLEDGED, Engine
from roundelay.core.families import (
    AUTORM,
    CLUSTERS,
    FAMILIES,
    FIFO,
    GRSB,
    POSITIVE_ACK,
    TOKEN,
    WIDE,
    Family,
)
from roundelay.core.positive_ack import PositiveAckSite
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.sim.families.autorm import AutoRmApplications, AutoRmDraft, AutoRmDriver
from roundelay.sim.families.cluster import ClusterDraft, ClusterDriver, FastClusterDraft
from roundelay.sim.families.grsb import GrsbApplications, GrsbDraft, GrsbDriver, GrsbGroup
from roundelay.sim.families.token import Draft, Driver, FastDraft
from roundelay.sim.families.wide import WideApplications, WideDraft, WideDriver, WideGroup
from roundelay.sim.kernel.ports import EngineFactory
from roundelay.sim.swarm.fault_kinds import CLUSTER_TARGETS, FAULT_KINDS
from roundelay.sim.swarm.fault_runner import Striker

Factories = Callable[[int, Any], EngineFactory]
"""(sites, configuration) → what makes the engines, and is their applications where these do more
than submit and receive."""


class SimFamily(Struct, frozen=True):
    """A family in the simulator."""

    core: Family
    draft: type[Draft]
    driver: type[Striker]
    factory: Factories
    fast_draft: type[Draft] | None = None
    """Draws plans of the `fast` profile."""
    layout: type[Any] | None = None
    """The configuration of the engines and how a group of them is laid out, where that differs."""
    judged_live: bool = False
    """Its promises are about more than a trace tells: it can be judged only while it runs."""
    fault_kinds: tuple[str, ...] = ()
    """The kinds of fault that its plans choose from, if they choose from nearly all."""
    measured: bool = True
    """Whether runs of it can be simulated and measured."""

    @property
    def config(self) -> type[Any]:
        """The configuration of a simulated group."""
        return self.layout or self.core.config

    def order(self, config: Mapping[str, Any]) -> str:
        """What is promised about order with these fields of a configuration."""
        # What is handed over before it is acknowledged comes in the order of its source.
        early = config.get("deliver_at", ACKNOWLEDGED) != ACKNOWLEDGED
        return FIFO if early or config.get("fifo") else self.core.order


# -- how engines are made -----------------------------------------------------------------------


def _token_sites(sites: int, config: TokenConfig) -> EngineFactory:
    group = tuple(range(sites))

    def token(site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        settings = config if boot == config.boot else structs.replace(config, boot=boot)
        return TokenSite(site, group, settings, rng, now=now, stable=stable)

    return token


def _equal_sites(engine: Any, sites: int, config: Any) -> EngineFactory:
    group = tuple(range(sites))

    def equal(site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        kept = {} if stable is None else {"stable": stable}
        new: Engine = engine(site, group, config, rng, now, **kept)
        return new

    return equal


def _grsb_sites(sites: int, config: GrsbGroup) -> EngineFactory:
    return GrsbApplications(config.roles(sites), config)


def _wide_sites(sites: int, config: WideGroup) -> EngineFactory:
    return WideApplications(config.topology(sites), config)


# -- the records --------------------------------------------------------------------------------

RECORDS: Final = (
    SimFamily(
        FAMILIES[TOKEN],
        Draft,
        Driver,
        _token_sites,
        FastDraft,
        fault_kinds=tuple(kind for kind in FAULT_KINDS if kind not in (*CLUSTER_TARGETS, "fail")),
    ),
    SimFamily(FAMILIES[POSITIVE_ACK], Draft, Driver, partial(_equal_sites, PositiveAckSite)),
    *(
        SimFamily(
            FAMILIES[name],
            ClusterDraft,
            ClusterDriver,
            partial(_equal_sites, FAMILIES[name].engine),
            FastClusterDraft,
        )
        for name in CLUSTERS
    ),
    SimFamily(
        FAMILIES[AUTORM],
        AutoRmDraft,
        AutoRmDriver,
        AutoRmApplications,
        judged_live=True,
        measured=False,
    ),
    SimFamily(
        FAMILIES[GRSB], GrsbDraft, GrsbDriver, _grsb_sites, layout=GrsbGroup, judged_live=True
    ),
    SimFamily(
        FAMILIES[WIDE], WideDraft, WideDriver, _wide_sites, layout=WideGroup, judged_live=True
    ),
)

SIMULATED_FAMILIES: Final[dict[str, SimFamily]] = {family.core.name: family for family in RECORDS}

SWARMED: Final = tuple(SIMULATED_FAMILIES)
"""Those that random runs exist of."""

SIMULATED: Final = tuple(name for name, family in SIMULATED_FAMILIES.items() if family.measured)
"""Those that can be simulated and measured."""

PROTOCOLS: Final = tuple(name for name in SIMULATED if not SIMULATED_FAMILIES[name].core.has_roles)
"""Those of a fixed group whose members are all alike."""
