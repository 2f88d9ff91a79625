"""Beamons in virtual time: the world's sites are nodes of AutoRM, with groups and applications.

A Beamon has another shape than the engines of a fixed group: it names nodes by UUIDs, and all of
its packets go to everybody.  `BeamonSite` gives it the shape that the kernel drives, so that media,
links, crashes, pauses and clocks are those of every other protocol.  A site that has lost its
memory starts as a new node, under a new UUID, and its applications join their groups again.

Besides what `core.events.Observer` has, observers may have these methods::

    born(time, site, uuid)                        a node starts
    joined(time, site, group), left(...)          its applications join and leave
    asked(time, site, number, group, data, someone)   an application sends
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.bundle import Bundle
from roundelay.core.engine import ACCEPTED, EVERYONE, Delivery, Engine, Pdu
from roundelay.core.errors import QueueFull, UsageError
from roundelay.core.events import NOBODY, SUBMIT
from roundelay.sim.member import Member
from roundelay.sim.ports import EngineFactory
from roundelay.sim.world import World

UUID_SITE: Final = 4
"""The first bytes of a simulated UUID: the site, counted from 1."""


class GroupDelivery(Delivery, frozen=True, gc=False):
    """A message of a group, as the world's observers see it; `number` is its sequence."""

    group: str
    uuid: bytes
    one_of: bool


def uuid_of(site: int, rng: Random) -> bytes:
    """A UUID for a start of `site`."""
    return (site + 1).to_bytes(UUID_SITE, "big") + rng.randbytes(16 - UUID_SITE)


def site_of(uuid: bytes) -> int:
    """Whose UUID it is."""
    return int.from_bytes(uuid[:UUID_SITE], "big") - 1


class BeamonSite(Engine):
    """A Beamon in the shape of an engine."""

    __slots__ = ("beamon",)

    def __init__(self, site: int, sites: int, beamon: Beamon) -> None:
        super().__init__(site, tuple(range(sites)))
        self.beamon = beamon
        self.drops = beamon.drops
        self.deadline = beamon.deadline

    def submit(self, bundle: Bundle, now: int) -> None:
        raise UsageError("a Beamon sends to a group: use AutoRmWorld.send")

    def receive(self, pdu: Pdu, source: int, now: int) -> None:
        beamon: Any = self.beamon
        beamon.receive(pdu, now)
        self.collect()

    def on_timer(self, now: int) -> None:
        self.beamon.on_timer(now)
        self.collect()

    def collect(self) -> None:
        """After any call: what the Beamon wants done, as the kernel knows it."""
        beamon, out = self.beamon, self.out
        self.deadline = beamon.deadline
        made = beamon.out
        if not made:
            return
        made = beamon.take()
        out.sends += [(EVERYONE, packet) for packet in made.sends]
        for one in made.deliveries:
            bundle = Bundle.of(one.data)
            out.deliveries.append(
                GroupDelivery(
                    -1, site_of(one.source), one.seq, bundle, ACCEPTED, one.group, one.source,
                    one.one_of,
                )
            )  # fmt: skip
        out.notices += made.notices

    def usage(self) -> dict[str, int]:
        return self.beamon.usage()

    def caps(self) -> dict[str, int]:
        return self.beamon.caps()


def beamons(
    sites: int, config: AutoRmConfig, beamon_class: type[Beamon] | None = None
) -> EngineFactory:
    """Makes the nodes of a world; `beamon_class` may be a mutant."""
    make = beamon_class or Beamon

    def beamon(site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        return BeamonSite(site, sites, make(uuid_of(site, rng), config, rng, now))

    return beamon


class AutoRmWorld(World):
    """See `Kernel` for the parameters; `make_engine` must make `BeamonSite`s."""

    applications: list[dict[str, int]]
    """Of each site: its groups, with the number of applications in each."""

    def start(self, site: Member, stable: Any, boot: str) -> None:
        if not hasattr(self, "applications"):
            self.applications = [{} for _ in self.sites]
        super().start(site, stable, boot)
        self.tell("born", self.now, site.id, self.beamon(site.id).uuid)
        for group in list(self.applications[site.id]):
            self._join(site, group)

    def beamon(self, site: int) -> Beamon:
        """The node of a site, which must not be down."""
        member = self.sites[site]
        engine = member.engine or member.kept
        assert isinstance(engine, BeamonSite)
        return engine.beamon

    def _call(self, site: int, verb: Callable[[Beamon, int], None]) -> bool:
        """Call the node of `site`; False if it is not up."""
        member = self.sites[site]
        engine = member.engine
        if not isinstance(engine, BeamonSite):
            return False
        verb(engine.beamon, member.local(self.now))
        engine.collect()
        return True

    def join(self, site: int, group: str, local: int = 1) -> None:
        """`local` applications at `site` are in `group`; at a site that is down, when it is up."""
        self.applications[site][group] = local
        self._join(self.sites[site], group)

    def _join(self, member: Member, group: str) -> None:
        local = self.applications[member.id][group]
        if self._call(member.id, lambda beamon, now: beamon.join(group, now, local)):
            self.tell("joined", self.now, member.id, group)
            self._settle(member)

    def leave(self, site: int, group: str) -> None:
        """No application at `site` is in `group` any more; nothing happens if it is not up."""
        if self._call(site, lambda beamon, now: beamon.leave(group, now)):
            self.applications[site].pop(group, None)
            self.tell("left", self.now, site, group)
            self._settle(self.sites[site])

    def send(
        self, site: int, group: str, data: bytes, number: int, *, someone: bool = False,
        sender_joined: bool = False,
    ) -> bool:  # fmt: skip
        """An application at `site` sends message `number`; False if the site takes none."""

        def verb(beamon: Beamon, now: int) -> None:
            if someone:
                beamon.send_someone(group, data, now, number, sender_joined)
            else:
                beamon.send_everyone(group, data, now, number)

        try:
            accepted = self._call(site, verb)
        except QueueFull:
            accepted = False
        if not accepted:
            self.submissions_refused += 1
            return False
        self.events += 1
        member = self.sites[site]
        if self.rows is not None:
            self.rows.append((self.now, site, SUBMIT, member.index, NOBODY, Bundle.of(data)))
        member.index += 1
        # Observers hear of it before of its delivery, which may be part of the same call.
        self.tell("asked", self.now, site, number, group, data, someone)
        self._settle(member)
        return True

    def _settle(self, member: Member) -> None:
        if member.engine is not None:
            self.settle(member, member.engine)
