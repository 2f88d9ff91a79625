"""A world of Beamons with its checker, and what they say."""

from __future__ import annotations

from typing import Any

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.engine import MS, SECOND, Notice, Pdu
from roundelay.sim.autorm_check import AutoRmCheck
from roundelay.sim.autorm_world import AutoRmWorld, GroupDelivery, beamons
from roundelay.sim.links import PLAIN, Link
from roundelay.sim.media import Bus, Datagram
from roundelay.wire.beamon import BeamonCodec

G = "news"


class Log:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[int, int, GroupDelivery]] = []
        self.notices: list[tuple[int, int, Notice]] = []
        self.sends: list[tuple[int, int, Pdu]] = []
        self.complaints: list[tuple[str, str, int]] = []

    def delivered(self, time: int, site: int, delivery: GroupDelivery) -> None:
        self.deliveries.append((time, site, delivery))

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        self.notices.append((time, site, notice))

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        self.sends.append((time, site, pdu))

    def complain(self, rule: str, detail: str, site: int) -> None:
        self.complaints.append((rule, detail, site))

    def of(self, kind: str) -> list[tuple[int, int, Notice]]:
        return [row for row in self.notices if row[2].kind == kind]

    def count(self, kind: type[Pdu]) -> int:
        return sum(isinstance(pdu, kind) for _, _, pdu in self.sends)


def world(
    sites: int, links: Link = PLAIN, *, seed: int = 1, wire: bool = False, bus: bool = False,
    joined: bool = True, **fields: Any,
) -> tuple[AutoRmWorld, Log]:  # fmt: skip
    """Nodes that have found each other, all in one group unless not `joined`."""
    config = AutoRmConfig(**fields)
    log = Log()
    check = AutoRmCheck(log.complain, per_group=config.serial_scope == "group")
    made = AutoRmWorld(
        sites, beamons(sites, config), seed=seed, medium=Bus() if bus else Datagram(),
        observers=[check, log], codec=BeamonCodec() if wire else None,
        sample_ns=0 if bus else 100 * MS,
    )  # fmt: skip
    if joined:
        for site in made.group:
            made.join(site, G)
    made.run(2 * SECOND)
    made.set_links(links)
    return made, log


def got(log: Log, site: int) -> list[bytes]:
    return [delivery.bundle.data for _, at, delivery in log.deliveries if at == site]


def idle(made: AutoRmWorld) -> bool:
    return all(made.beamon(site).idle for site in made.group)
