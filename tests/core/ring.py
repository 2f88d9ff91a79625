"""A group of real engines on a network that does exactly what a test says.

No simulator: copies of PDUs wait in `flights` until the test delivers, drops or doubles them, and
transit takes no time.  Virtual time passes in `run` alone, so that every delay a test sees comes
from the protocol.

    >>> ring = Ring(3)
    >>> ring.submit(1, "hello")
    >>> ring.run(200 * MS)
    >>> ring.log(0) == ring.log(1) == ring.log(2) == ["hello"]
    True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import (
    COMMITTED,
    EVERYONE,
    MS,
    STAMPED,
    Delivery,
    Effects,
    Notice,
    Pdu,
)
from roundelay.core.token.config import REJOIN, TokenConfig
from roundelay.core.token.pdu import Ack, Invite, NewTl, Version
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import UNSYNCED, Stable
from tests.core.sends import sends_of

__all__ = ["MS", "Flight", "Ring", "Sent", "announcement", "invitation", "restarted"]

BOOT = 7  # the boot number of peers that a test plays


class Flight(NamedTuple):
    """One copy of a PDU on its way to one site."""

    src: int
    dst: int
    pdu: Any


class Sent(NamedTuple):
    """One transmission: a multicast counts once, with `dst` EVERYONE."""

    time: int
    src: int
    dst: int
    pdu: Any


def invitation(v: Version) -> Invite:
    """The invitation to list `v` as a peer sends it."""
    return Invite(v, BOOT)


def announcement(
    site: TokenSite,
    v: Version,
    members: tuple[int, ...],
    start_ts: int,
    first: int,
    old: Version = (0, 0),
) -> NewTl:
    """The announcement of list `v` as a peer sends it to `site`, which has voted for it."""
    boots = tuple(site.boot if member == site.me else BOOT for member in members)
    return NewTl(v, members, start_ts, first, old, boots)


def restarted(me: int, sites: int, *records: Any, **changes: Any) -> TokenSite:
    """Site `me` after a crash that left `records` on its disk."""
    stable = Stable()
    for record in records:
        stable.apply(record)
    group = tuple(range(sites))
    return TokenSite(me, group, TokenConfig(**changes), Random(me), stable=stable)


class Rule:
    """Copies that get lost: those of one kind, between given sites, so many of them."""

    def __init__(
        self,
        kind: type[Pdu] | Callable[[Any], bool] | None,
        src: int | None,
        dst: int | None,
        times: int | None,
    ) -> None:
        self.kind = kind
        self.src = src
        self.dst = dst
        self.left = times
        self.lost: list[Flight] = []

    def takes(self, flight: Flight) -> bool:
        if self.left == 0 or self.src not in (None, flight.src):
            return False
        if self.dst not in (None, flight.dst):
            return False
        kind = self.kind
        if isinstance(kind, type):
            if not isinstance(flight.pdu, kind):
                return False
        elif kind is not None and not kind(flight.pdu):
            return False
        if self.left is not None:
            self.left -= 1
        self.lost.append(flight)
        return True


class Ring:
    """Engines 0 … `sites` − 1 with the defaults of a LAN and `changes` to them, or `config`."""

    def __init__(
        self, sites: int, config: TokenConfig | None = None, *, seed: int = 0, **changes: Any
    ) -> None:
        self.config = config if config is not None else TokenConfig(**changes)
        self.group = tuple(range(sites))
        self.seed = seed
        self.now = 0
        self.lives = Counter[int]()
        self.disks = {site: Stable() for site in self.group}
        self.kept: dict[int, TokenSite] = {}  # engines of sites that crashed with their memory
        self.wiped: set[int] = set()  # sites whose next start is a rejoin
        self.doomed: dict[int, int] = {}  # sites that crash amid their next batch: after how much
        self.flights: list[Flight] = []
        self.sent: list[Sent] = []
        self.rules: list[Rule] = []
        self.submitted: dict[int, list[str]] = {site: [] for site in self.group}
        self.delivered: dict[int, list[Delivery]] = {site: [] for site in self.group}
        self.delivered_at: dict[int, list[int]] = {site: [] for site in self.group}
        self.stamped: dict[int, list[Delivery]] = {site: [] for site in self.group}
        self.notices: dict[int, list[Notice]] = {site: [] for site in self.group}
        self.persisted: dict[int, list[Any]] = {site: [] for site in self.group}
        self.sites: dict[int, TokenSite] = {}
        for site in self.group:
            self.start(site, None)

    def __getitem__(self, site: int) -> TokenSite:
        return self.sites[site]

    # -- sites -----------------------------------------------------------------------------

    def start(self, site: int, stable: Stable | None) -> None:
        config = self.config
        if site in self.wiped:
            config = structs.replace(config, boot=REJOIN)
            self.wiped.discard(site)
        self.lives[site] += 1
        rng = Random(f"{self.seed}/{site}/{self.lives[site]}")
        self.sites[site] = TokenSite(site, self.group, config, rng, stable=stable, now=self.now)
        self.collect(site)

    def crash(self, *sites: int, keeps: str = "disk") -> None:
        """`keeps`: "memory", "disk", "whole" (the disk, and it is known that nothing is missing),
        "synced" (what of it was synced) or "nothing".  The network does not notice: copies under
        way arrive when they arrive, and find nobody or the site's next life.
        """
        for site in sites:
            engine = self.sites.pop(site)
            self.doomed.pop(site, None)
            if keeps == "memory":
                self.kept[site] = engine
            elif keeps == "nothing":
                self.disks[site] = Stable()
                self.wiped.add(site)
            elif keeps == "synced":
                records = self.persisted[site]
                while records and isinstance(records[-1], UNSYNCED):
                    records.pop()
                self.disks[site] = Stable()
                for record in records:
                    self.disks[site].apply(record)
            self.disks[site].whole = keeps == "whole"

    def restart(self, *sites: int) -> None:
        for site in sites:
            if site in self.kept:
                self.sites[site] = self.kept.pop(site)
            else:
                self.start(site, None if site in self.wiped else self.disks[site])

    # -- what sites do ---------------------------------------------------------------------

    def submit(self, site: int, *messages: str) -> None:
        """One bundle per message."""
        for message in messages:
            self.sites[site].submit(Bundle.of(message.encode()), self.now)
            self.submitted[site].append(message)
            self.collect(site)

    def collect(self, site: int) -> None:
        """Carry out the effects of `site`, in their order."""
        self.sites[site].check_invariants()
        out = self.sites[site].take()
        if site in self.doomed:
            self._die_amid(site, out)
            return
        for record in out.persists:
            self.persisted[site].append(record)
            self.disks[site].apply(record)
        self._send(site, sends_of(out))
        for delivery in out.deliveries:
            if delivery.stage == STAMPED:
                self.stamped[site].append(delivery)
            else:
                assert delivery.stage == COMMITTED
                self.delivered[site].append(delivery)
                self.delivered_at[site].append(self.now)
        self.notices[site] += out.notices

    def _die_amid(self, site: int, out: Effects) -> None:
        """Only so many of the persists and sends are carried out, then the site is gone."""
        if not out:
            return
        done = self.doomed.pop(site)
        for record in out.persists[:done]:
            self.persisted[site].append(record)
            self.disks[site].apply(record)
        self._send(site, sends_of(out)[: max(0, done - len(out.persists))])
        self.crash(site)

    def _send(self, site: int, sends: list[tuple[int, Any]]) -> None:
        for dst, pdu in sends:
            self.sent.append(Sent(self.now, site, dst, pdu))
            for other in self.group if dst == EVERYONE else (dst,):
                if other != site:
                    self._launch(Flight(site, other, pdu))

    # -- the network -----------------------------------------------------------------------

    def _launch(self, flight: Flight) -> None:
        if not any(rule.takes(flight) for rule in self.rules):
            self.flights.append(flight)

    def lose(
        self,
        kind: type[Pdu] | Callable[[Any], bool] | None = None,
        *,
        src: int | None = None,
        dst: int | None = None,
        times: int | None = None,
    ) -> Rule:
        """From now on lose such copies, `times` of them or until `heal`."""
        rule = Rule(kind, src, dst, times)
        self.rules.append(rule)
        return rule

    def cut(self, *sides: tuple[int, ...]) -> None:
        """Sites of different sides do not hear each other, until `heal`."""
        for a in sides:
            for b in sides:
                if a is not b:
                    for src in a:
                        for dst in b:
                            self.lose(src=src, dst=dst)

    def heal(self) -> None:
        self.rules.clear()

    def deliver(self, flight: Flight | int = 0) -> None:
        """One copy arrives: a given one, or that number of the line."""
        if isinstance(flight, int):
            flight = self.flights[flight]
        self.flights.remove(flight)
        self.inject(flight.pdu, flight.src, flight.dst)

    def inject(self, pdu: Pdu, src: int, dst: int) -> None:
        """`pdu` arrives at `dst`, whether somebody sent it or not."""
        if dst in self.sites:
            self.sites[dst].receive(pdu, src, self.now)
            self.collect(dst)

    def settle(self, most: int = 100_000) -> None:
        """Deliver everything under way, first in first out; no time passes."""
        for _ in range(most):
            if not self.flights:
                return
            self.deliver()
        raise AssertionError(f"the network is still busy after {most} copies")

    def fire(self, site: int) -> None:
        """Let time jump to the deadline of `site`, and its timer fire; nothing is delivered."""
        self.now = max(self.now, self.sites[site].deadline)
        self.sites[site].on_timer(self.now)
        self.collect(site)

    def run(self, ns: int) -> None:
        """Let time pass: whatever is under way arrives at once, timers fire when they are due."""
        end = self.now + ns
        self.settle()
        while self.sites:
            site = min(self.sites, key=lambda site: (self.sites[site].deadline, site))
            if self.sites[site].deadline > end:
                break
            self.fire(site)
            self.settle()
        self.now = end

    def run_until(self, done: Callable[[], object], most_ns: int = 600_000 * MS) -> None:
        """Run in steps of 10 ms until `done()`."""
        end = self.now + most_ns
        while not done():
            assert self.now < end, "it never happened"
            self.run(10 * MS)

    # -- what a test looks at --------------------------------------------------------------

    def log(self, site: int) -> list[str]:
        """The messages `site` has delivered, over all its lives."""
        return [
            message.decode() for delivery in self.delivered[site] for message in delivery.bundle
        ]

    def stamped_by(self, site: int) -> list[str]:
        """The messages in the log of `site`, committed or not."""
        engine = self.sites[site]
        return [
            message.decode()
            for ts in sorted(engine.log.entries)
            for message in engine.log.entries[ts].bundle
        ]

    def pdus(self, kind: type[Pdu], src: int | None = None, dst: int | None = None) -> list[Any]:
        """The transmitted PDUs of a kind, each multicast once."""
        return [
            sent.pdu
            for sent in self.sent
            if type(sent.pdu) is kind and src in (None, sent.src) and dst in (None, sent.dst)
        ]

    def kinds(self, since: int = 0) -> Counter[str]:
        """How many PDUs of each kind were transmitted, from transmission `since` on."""
        return Counter(type(sent.pdu).__name__ for sent in self.sent[since:])

    def told(self, site: int, kind: str) -> list[tuple[Any, ...]]:
        """What the notices of a kind said."""
        return [notice.info for notice in self.notices[site] if notice.kind == kind]

    @property
    def holders(self) -> list[int]:
        return [site for site, engine in self.sites.items() if engine.holding]

    def check(self) -> None:
        """Total order, at most once, nothing invented, in order per source."""
        positions: dict[int, tuple[int, int, bytes]] = {}
        for site, deliveries in self.delivered.items():
            for delivery in deliveries:
                for seq, message in enumerate(delivery.bundle, delivery.seq):
                    line = (delivery.source, delivery.number, message)
                    assert positions.setdefault(seq, line) == line, f"position {seq} at {site}"
        agreed = [positions[seq] for seq in sorted(positions)]
        messages = [message for _, _, message in agreed]
        assert len(messages) == len(set(messages)), "delivered twice"
        for source, sent in self.submitted.items():
            mine = [message.decode() for s, _, message in agreed if s == source]
            places = [sent.index(message) for message in mine]  # ValueError: invented
            assert places == sorted(places), f"messages of {source} out of order"

    def stamps(self) -> dict[tuple[Any, int], set[Ack]]:
        """Every acknowledgement ever transmitted, by list and timestamp."""
        found: dict[tuple[Any, int], set[Ack]] = {}
        for ack in self.pdus(Ack):
            found.setdefault((ack.tl, ack.ts), set()).add(ack)
        return found
