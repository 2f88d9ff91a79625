"""A world of Beamons with its checker, and what they say."""

from __future__ import annotations

from typing import Any

from roundelay.core.autorm.beamon import AutoRmDelivery
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.engine import MS, SECOND, Notice, Pdu
from roundelay.sim.families.autorm import AutoRmApplications
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import PLAIN, Link
from roundelay.sim.network.media import Bus, Datagram
from roundelay.trace.checkers.autorm import AutoRmChecker
from roundelay.trace.checkers.verdict import Violation
from roundelay.wire.beamon import BeamonCodec

G = "news"


class Log:
    """An observer that remembers."""

    def __init__(self, checker: AutoRmChecker) -> None:
        self.checker = checker
        self.deliveries: list[tuple[int, int, AutoRmDelivery]] = []
        self.notices: list[tuple[int, int, Notice]] = []
        self.sends: list[tuple[int, int, Pdu]] = []

    def delivered(self, time: int, site: int, delivery: AutoRmDelivery) -> None:
        self.deliveries.append((time, site, delivery))

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        self.notices.append((time, site, notice))

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        self.sends.append((time, site, pdu))

    @property
    def complaints(self) -> list[Violation]:
        return self.checker.violations

    def of(self, kind: str) -> list[tuple[int, int, Notice]]:
        return [row for row in self.notices if row[2].kind == kind]

    def count(self, kind: type[Pdu]) -> int:
        return sum(isinstance(pdu, kind) for _, _, pdu in self.sends)


def world(
    sites: int, links: Link = PLAIN, *, seed: int = 1, wire: bool = False, bus: bool = False,
    joined: bool = True, **fields: Any,
) -> tuple[World, Log]:  # fmt: skip
    """Nodes that have found each other, all in one group unless not `joined`."""
    config = AutoRmConfig(**fields)
    checker = AutoRmChecker(per_group=config.serial_scope == "group")
    log = Log(checker)
    made = World(
        sites, AutoRmApplications(sites, config), seed=seed, medium=Bus() if bus else Datagram(),
        observers=[checker, log], codec=BeamonCodec() if wire else None,
        sample_ns=0 if bus else 100 * MS,
    )  # fmt: skip
    if joined:
        for site in made.group:
            apps(made).join(site, G)
    made.run(2 * SECOND)
    made.set_links(links)
    return made, log


def got(log: Log, site: int) -> list[bytes]:
    return [delivery.bundle.data for _, at, delivery in log.deliveries if at == site]


def apps(made: World) -> AutoRmApplications:
    assert isinstance(made.make_engine, AutoRmApplications)
    return made.make_engine


def idle(made: World) -> bool:
    return all(made.site(site).idle for site in made.group)
