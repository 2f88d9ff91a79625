"""What applications do with Beamons in a simulated world.

A site that has lost its memory starts as a new node, under a new UUID, and its applications join
their groups again.  Besides what `core.events.Observer` has, observers may have these methods::

    born(time, site, uuid)                        a node starts
    joined(time, site, group), left(...)          its applications join and leave
    asked(time, site, number, group, data, someone)   an application sends
    calm(time), expected(time, number, members), quiet(time)   how a run ends, see the driver
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.bundle import Bundle
from roundelay.core.engine import Engine
from roundelay.sim.kernel.world import World

UUID_SITE: Final = 4
"""The first bytes of a simulated UUID: the site, counted from 1."""


def uuid_of(site: int, rng: Random) -> bytes:
    """A UUID for a start of `site`."""
    return (site + 1).to_bytes(UUID_SITE, "big") + rng.randbytes(16 - UUID_SITE)


class AutoRmApplications:
    """Makes the nodes of a world, as its `make_engine`, and is their applications.

    `make` may be a mutant.
    """

    world: World

    def __init__(self, sites: int, config: AutoRmConfig, make: type[Beamon] = Beamon) -> None:
        self.group = tuple(range(sites))
        self.config = config
        self.make = make
        # Of each site: its groups, with the number of applications in each.
        self.memberships: list[dict[str, int]] = [{} for _ in self.group]

    def attached(self, world: World) -> None:
        self.world = world

    def __call__(self, site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        return self.make(site, self.group, self.config, rng, now, uuid=uuid_of(site, rng))

    def started(self, time: int, site: int, engine: Beamon) -> None:
        self.world.tell("born", time, site, engine.uuid)
        for group in list(self.memberships[site]):
            self._join(site, group)

    def join(self, site: int, group: str, local: int = 1) -> None:
        """`local` applications at `site` are in `group`; at a site that is down, when it is up."""
        self.memberships[site][group] = local
        self._join(site, group)

    def _join(self, site: int, group: str) -> None:
        def verb(beamon: Beamon, now: int) -> None:
            beamon.join(group, now, self.memberships[site][group])
            self.world.tell("joined", self.world.now, site, group)

        self.world.call(site, verb)

    def leave(self, site: int, group: str) -> None:
        """No application at `site` is in `group` any more; nothing happens if it is not up."""

        def verb(beamon: Beamon, now: int) -> None:
            beamon.leave(group, now)
            self.memberships[site].pop(group, None)
            self.world.tell("left", self.world.now, site, group)

        self.world.call(site, verb)

    def send(
        self,
        site: int,
        group: str,
        data: bytes,
        number: int,
        *,
        someone: bool = False,
        sender_joined: bool = False,
    ) -> bool:
        """An application at `site` sends message `number`; False if the site takes none."""

        def verb(beamon: Beamon, now: int) -> None:
            if someone:
                beamon.send_someone(group, data, now, number, sender_joined)
            else:
                beamon.send_everyone(group, data, now, number)
            # Observers hear of it before of its delivery, which may be part of the same call.
            self.world.tell("asked", self.world.now, site, number, group, data, someone)

        return self.world.enter(site, Bundle.of(data), verb, tells=True)
