"""The engines that can be simulated, by the name of their protocol.

Those who run worlds (`driver`, `scenario`, `complexity`) have a name and a configuration; this is
where they get a factory of engines and what else a world needs to know.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import Engine
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.positive_ack import PositiveAckConfig, PositiveAckSite, PositiveAckStable
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import WideStable
from roundelay.sim.autorm_world import beamons
from roundelay.sim.grsb_group import GrsbGroup
from roundelay.sim.grsb_world import SiteMaker
from roundelay.sim.ports import EngineFactory, StableState
from roundelay.sim.wide_group import WideGroup
from roundelay.sim.wide_world import WideMaker

TOKEN: Final = "token"
POSITIVE_ACK: Final = "positive-ack"
TO: Final = "to"
TO_CHANNEL: Final = "to-channel"
PO: Final = "po"
SPO: Final = "spo"
AUTORM: Final = "autorm"
GRSB: Final = "grsb"
WIDE: Final = "wide"

CLUSTERS: Final[dict[str, type[Any]]] = {
    TO: ToSite,
    TO_CHANNEL: ToChannelSite,
    PO: PoSite,
    SPO: SpoSite,
}
"""The cluster protocols.  TO in channel mode needs a `Bus` that returns own copies."""

PROTOCOLS: Final = (TOKEN, POSITIVE_ACK, *CLUSTERS)
"""The protocols of a fixed group."""

SIMULATED: Final = (*PROTOCOLS, GRSB, WIDE)
"""Those that can be simulated and measured."""

SWARMED: Final = (*PROTOCOLS, AUTORM, GRSB, WIDE)
"""Those that random runs exist of."""

Config = TokenConfig | PositiveAckConfig | ClusterConfig | AutoRmConfig | GrsbGroup | WideGroup


def config_class(protocol: str) -> type[Config]:
    """The configuration that engines of `protocol` take."""
    if protocol in CLUSTERS:
        return ClusterConfig
    if protocol == AUTORM:
        return AutoRmConfig
    if protocol == GRSB:
        return GrsbGroup
    if protocol == WIDE:
        return WideGroup
    return TokenConfig if protocol == TOKEN else PositiveAckConfig


def stable_class(protocol: str) -> Callable[[], StableState] | None:
    """What makes an empty stable state.

    Clusters have none, for in them nobody may fail, nor has AutoRM, where who fails is new.
    """
    if protocol in CLUSTERS or protocol == AUTORM:
        return None
    if protocol == GRSB:
        return GrsbStable
    if protocol == WIDE:
        return WideStable
    return Stable if protocol == TOKEN else PositiveAckStable


def factory(
    protocol: str, sites: int, config: Struct, site_class: type[Any] | None = None
) -> EngineFactory:
    """Makes the engines of `sites` sites; `site_class` may be a mutant of the protocol's own."""
    group = tuple(range(sites))
    if protocol in CLUSTERS:
        cluster_class = site_class or CLUSTERS[protocol]

        def cluster(site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
            made: Engine = cluster_class(site, group, config, rng, now)
            return made

        return cluster
    if protocol == AUTORM:
        assert isinstance(config, AutoRmConfig)
        return beamons(sites, config, site_class)
    if protocol == GRSB:
        assert isinstance(config, GrsbGroup)
        return SiteMaker(config.roles(sites), config, site_class or GrsbSite)
    if protocol == WIDE:
        assert isinstance(config, WideGroup)
        return WideMaker(config.topology(sites), config, site_class or WideSite)
    if protocol == TOKEN:
        token_class: type[TokenSite] = site_class or TokenSite

        def token(site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
            assert isinstance(config, TokenConfig)
            settings = config if boot == config.boot else structs.replace(config, boot=boot)
            return token_class(site, group, settings, rng, stable, now)

        return token
    pa_class: type[PositiveAckSite] = site_class or PositiveAckSite

    def positive_ack(site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        assert isinstance(config, PositiveAckConfig)
        return pa_class(site, group, config, rng, now, stable)

    return positive_ack
