"""The registry of protocol families: one record each, looked up by name.

Whoever asks what a protocol can do asks its record, not its name.  What the simulator knows of a
family beyond this stands in `sim.families.registry`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec import Struct

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import STAGES, ClusterConfig
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import ACCEPTED, COMMITTED, STAMPED, Engine
from roundelay.core.grsb.config import GrsbConfig
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.positive_ack import PositiveAckConfig, PositiveAckSite, PositiveAckStable
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import WideStable

# Names.
TOKEN: Final = "token"
POSITIVE_ACK: Final = "positive-ack"
TO: Final = "to"
TO_CHANNEL: Final = "to-channel"
PO: Final = "po"
SPO: Final = "spo"
AUTORM: Final = "autorm"
GRSB: Final = "grsb"
WIDE: Final = "wide"

# What a family promises about order.
TOTAL: Final = "total"  # all members deliver in one order
FIFO: Final = "fifo"  # the messages of one sender in the order of their sending
NONE: Final = "none"


class Family(Struct, frozen=True):
    """What there is to know of a protocol."""

    name: str
    """Its only name; `service` and `prefix` are words of the live commands."""
    service: str
    """What applications ask for when they want it."""
    engine: type[Engine]
    config: type[Struct]
    stable: type[Any] | None
    """Folds what its sites persist.  Clusters have none, for in them nobody may fail, nor has
    AutoRM, where who fails is new."""
    order: str
    stages: tuple[str, ...] = (COMMITTED,)
    """The stages at which messages can be delivered, the promised one last."""
    prefix: str = ""
    """What names of its live groups may begin with; empty: its name."""
    is_cluster: bool = False
    """Of Takizawa's three-phase receipt: a closed group in which nobody may fail."""
    one_channel: bool = False
    """Needs a medium that returns a member's own PDUs in the order of all."""
    selective: bool = False
    """A message names its destinations."""
    has_roles: bool = False
    """Its sites differ in what they do; groups are laid out in a file."""
    has_levels: bool = False
    """It joins several networks by a level above them."""
    own_packets: bool = False
    """Its PDUs have a wire format of their own, which names no group."""
    resilient: bool = False
    """Has L, the number of sites that may fail at once."""


cluster = partial(Family, config=ClusterConfig, stable=None, stages=STAGES, is_cluster=True)

RECORDS: Final = (
    Family(
        TOKEN,
        "resilient",
        TokenSite,
        TokenConfig,
        Stable,
        TOTAL,
        (STAMPED, COMMITTED),
        resilient=True,
    ),
    cluster(TO, "total", ToSite, order=TOTAL),
    cluster(TO_CHANNEL, "total", ToChannelSite, order=TOTAL, stages=STAGES[1:], one_channel=True),
    cluster(PO, "partial", PoSite, order=FIFO),
    cluster(SPO, "selective", SpoSite, order=FIFO, selective=True),
    Family(
        POSITIVE_ACK,
        "reliable",
        PositiveAckSite,
        PositiveAckConfig,
        PositiveAckStable,
        order=NONE,
        stages=(ACCEPTED,),
        prefix="pa",
    ),
    Family(GRSB, "journal", GrsbSite, GrsbConfig, GrsbStable, TOTAL, has_roles=True),
    Family(WIDE, "wide", WideSite, WideConfig, WideStable, TOTAL, has_roles=True, has_levels=True),
    Family(AUTORM, "fifo", Beamon, AutoRmConfig, None, FIFO, (ACCEPTED,), own_packets=True),
)
"""As their services are listed to users."""

FAMILIES: Final[dict[str, Family]] = {family.name: family for family in RECORDS}
"""All of them by name."""


def named(condition: str) -> tuple[str, ...]:
    """The names of the families of which a field is true.

    >>> named("is_cluster"), named("has_roles")
    (('to', 'to-channel', 'po', 'spo'), ('grsb', 'wide'))
    """
    return tuple(name for name, family in FAMILIES.items() if getattr(family, condition))


CLUSTERS: Final = named("is_cluster")
"""The names of the cluster protocols."""
