"""A cluster of real engines on a medium that does exactly what a test says.

No simulator: a heap of arrivals and timers, virtual time, and nothing random but what a test asks
for.  Two media, as in the papers:

- *mesh* (MC): what one member sends to another arrives in sending order, if it arrives;
- *bus* (1C): one transmission at a time, heard by all at the same instant, by its sender too.

    >>> net = Net(PoSite, 3)
    >>> net.submit(1, "hello")
    >>> net.settle()
    >>> net.log(0) == net.log(1) == net.log(2) == ["hello"]
    True

`watched(kind)` is the same engine, looked at from inside: whatever it pre-acknowledges or
acknowledges is compared at once with what the other members hold (`Watcher`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import ACKNOWLEDGED, EVERYONE, MS, NEVER, Delivery, Notice, Pdu
from tests.core.sends import sends_of

__all__ = [
    "ENGINES", "MS", "Net", "Unsound", "Watcher", "alone", "mask", "pdu", "sends", "stat", "text",
    "watched",
]  # fmt: skip

ENGINES = {"po": PoSite, "spo": SpoSite, "to": ToSite, "to-channel": ToChannelSite}


class Flight(NamedTuple):
    """One copy of a PDU on its way to one member."""

    src: int
    dst: int
    pdu: Any


class Sent(NamedTuple):
    """One transmission: a broadcast counts once, with `dst` EVERYONE."""

    time: int
    src: int
    dst: int
    pdu: Any


class Got(NamedTuple):
    """One message handed over."""

    time: int
    source: int
    text: str
    position: int
    number: int


class Rule:
    """Copies that get lost: those of one kind, between given members, so many of them."""

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


class Net:
    """`sites` engines of one kind; `changes` are made to the configuration of all of them.

    On a mesh a copy takes `delay_ns`, and up to `jitter_ns` more; on a bus a transmission takes
    `slot_ns`.  Each copy is lost with probability `loss`.
    """

    def __init__(
        self,
        kind: type[Any],
        sites: int | Iterable[int],
        config: ClusterConfig | None = None,
        *,
        bus: bool | None = None,
        delay_ns: int = MS,
        jitter_ns: int = 0,
        slot_ns: int = MS,
        loss: float = 0.0,
        seed: object = 0,
        **changes: Any,
    ) -> None:
        self.kind = kind
        self.config = config if config is not None else ClusterConfig(**changes)
        self.group = tuple(range(sites)) if isinstance(sites, int) else tuple(sites)
        # What is wrong with a mutant must show in what it does, not by a look inside.
        self.broken = any(
            ".mutants." in base.__module__ or base.__module__.endswith("_errata")
            for base in kind.__mro__
        )
        self.own_copy = issubclass(kind, ToChannelSite)
        self.bus = self.own_copy if bus is None else bus
        self.delay_ns = delay_ns
        self.jitter_ns = jitter_ns
        self.slot_ns = slot_ns
        self.loss = loss
        self.rng = Random(f"{seed}")
        self.now = 0
        self.free_at = 0  # of the bus: end of the transmission under way
        self.tick = 0
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.last: dict[tuple[int, int], int] = {}  # latest arrival per ordered pair
        self.slow: dict[tuple[int, int], int] = {}  # pairs whose channel has its own delay
        self.rules: list[Rule] = []
        self.down: set[int] = set()
        self.sent: list[Sent] = []
        self.submitted: list[tuple[int, str, frozenset[int]]] = []  # source, text, destinations
        self.got: dict[int, list[Got]] = {site: [] for site in self.group}
        self.delivered: dict[int, list[Delivery]] = {site: [] for site in self.group}
        self.notices: dict[int, list[Notice]] = {site: [] for site in self.group}
        self.armed = dict.fromkeys(self.group, NEVER)
        self.sites: dict[int, Any] = {}
        for site in self.group:
            self.sites[site] = kind(site, self.group, self.config, Random(f"{seed}/{site}"), 0)
        for site in self.group:
            self.collect(site)

    def __getitem__(self, site: int) -> Any:
        return self.sites[site]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sites.values())

    # -- what members do -------------------------------------------------------------------

    def submit(self, site: int, *messages: str, to: Iterable[int] | None = None) -> None:
        """One bundle per message."""
        for message in messages:
            bundle = Bundle.of(message.encode())
            if to is None:
                self.sites[site].submit(bundle, self.now)
                self.submitted.append((site, message, frozenset(self.group)))
            else:
                self.sites[site].submit(bundle, self.now, tuple(to))
                self.submitted.append((site, message, frozenset(to)))
            self.collect(site)

    def crash(self, *sites: int) -> None:
        self.down.update(sites)

    def reopen(self, group: Iterable[int], epoch: int, *, sites: Iterable[int] = ()) -> None:
        """The owner reopens the cluster at `sites`, or at all members of the new roster."""
        members = tuple(group)
        for site in tuple(sites) or members:
            self.sites[site].reopen(members, epoch, self.now)
            self.collect(site)

    def inject(self, pdu: Pdu, src: int, dst: int) -> None:
        """`pdu` arrives at `dst`, whether somebody sent it or not."""
        if dst not in self.down:
            self.sites[dst].receive(pdu, src, self.now)
            self.collect(dst)

    def collect(self, site: int) -> None:
        """Carry out the effects of `site`, in their order, and arm its timer."""
        engine = self.sites[site]
        if not self.broken:
            engine.check_invariants()
        out = engine.take()
        for dst, pdu in sends_of(out):
            self.sent.append(Sent(self.now, site, dst, pdu))
            self._launch(site, dst, pdu)
        for delivery in out.deliveries:
            self.delivered[site].append(delivery)
            for k, message in enumerate(delivery.bundle):
                position = delivery.seq + k if delivery.seq >= 0 else -1
                self.got[site].append(
                    Got(self.now, delivery.source, message.decode(), position, delivery.number)
                )
        self.notices[site] += out.notices
        caps = engine.caps()
        for name, held in engine.usage().items():
            assert held <= caps[name], f"{name} at {site}: {held} above {caps[name]}"
        if engine.deadline < self.armed[site]:
            self.armed[site] = engine.deadline
            self._at(max(engine.deadline, self.now), self._wake, site, engine.deadline)

    # -- the medium ------------------------------------------------------------------------

    def _at(self, time: int, action: Callable[..., None], *args: Any) -> None:
        self.tick += 1
        heappush(self.heap, (time, self.tick, action, args))

    def _launch(self, src: int, dst: int, pdu: Any) -> None:
        if self.bus:
            self.free_at = max(self.free_at, self.now) + self.slot_ns
            own = self.own_copy and dst == EVERYONE
            if own and not self._loses(Flight(src, src, pdu)):
                self._at(self.free_at, self.inject, pdu, src, src)
        for other in self.group if dst == EVERYONE else (dst,):
            if other == src or self._loses(Flight(src, other, pdu)):
                continue
            if self.bus:
                due = self.free_at
            else:
                due = self.now + self.slow.get((src, other), self.delay_ns)
                due += self.rng.randrange(self.jitter_ns) if self.jitter_ns else 0
                due = self.last[src, other] = max(due, self.last.get((src, other), 0))
            self._at(due, self.inject, pdu, src, other)

    def _loses(self, flight: Flight) -> bool:
        if any(rule.takes(flight) for rule in self.rules):
            return True
        return bool(self.loss) and self.rng.random() < self.loss

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

    def heal(self) -> None:
        self.rules.clear()
        self.loss = 0.0

    def _wake(self, site: int, deadline: int) -> None:
        if self.armed[site] != deadline:
            return
        self.armed[site] = NEVER
        if site in self.down:
            return
        if self.sites[site].deadline <= self.now:
            self.sites[site].on_timer(self.now)
        self.collect(site)

    # -- time ------------------------------------------------------------------------------

    def step(self) -> bool:
        """One arrival or timer."""
        if not self.heap:
            return False
        self.now, _, action, args = heappop(self.heap)
        action(*args)
        return True

    def run(self, ns: int) -> None:
        end = self.now + ns
        while self.heap and self.heap[0][0] <= end:
            self.step()
        self.now = end

    def run_until(self, done: Callable[[], object], most_ns: int = 60_000 * MS) -> None:
        end = self.now + most_ns
        while not done():
            assert self.step(), "the network fell silent before it happened"
            assert self.now <= end, "it did not happen in time"

    def settle(self, most_ns: int = 600_000 * MS) -> None:
        """Run until the network is silent: nothing under way, no timer armed."""
        end = self.now + most_ns
        while self.step():
            assert self.now <= end, f"not silent: {[site.usage() for site in self]}"

    @property
    def silent(self) -> bool:
        return not self.heap

    # -- what a test looks at --------------------------------------------------------------

    def log(self, site: int, source: int | None = None) -> list[str]:
        """The messages `site` was handed, or those of one source among them."""
        return [got.text for got in self.got[site] if source in (None, got.source)]

    def pdus(self, *kinds: type[Pdu], src: int | None = None, since: int = 0) -> list[Any]:
        """The transmitted PDUs of some kinds, each broadcast once."""
        return [
            sent.pdu
            for sent in self.sent[since:]
            if (not kinds or type(sent.pdu) in kinds) and src in (None, sent.src)
        ]

    def firsts(self, kind: type[Pdu]) -> list[Any]:
        """The PDUs of a kind without those sent again."""
        pdus: dict[tuple[int, int], Any] = {}
        for sent in self.sent:
            pdu: Any = sent.pdu
            if type(sent.pdu) is kind:
                pdus[sent.src, pdu.seq] = pdu
        return list(pdus.values())

    def kinds(self, since: int = 0) -> Counter[str]:
        """How many PDUs of each kind were transmitted, from transmission `since` on."""
        return Counter(type(sent.pdu).__name__ for sent in self.sent[since:])

    def told(self, site: int, kind: str) -> list[tuple[Any, ...]]:
        """What the notices of a kind said."""
        return [notice.info for notice in self.notices[site] if notice.kind == kind]

    def check(self, *, complete: bool = True, total: bool = False) -> None:
        """All and only what is destined to a member, once, in sending order per source.

        `total`: one sequence for all, without gaps in its positions.
        """
        for site in self.group:
            if site in self.down:
                continue
            log = self.log(site)
            assert len(log) == len(set(log)), f"delivered twice at {site}"
            for source in self.group:
                due = [m for s, m, to in self.submitted if s == source and site in to]
                mine = self.log(site, source)
                assert mine == due[: len(mine)], f"order or content of {source}'s at {site}"
                assert not complete or len(mine) == len(due), f"{source}'s missing at {site}"
            if total:
                assert [got.position for got in self.got[site]] == list(range(len(log)))
        if total:
            logs = [self.log(site) for site in self.group if site not in self.down]
            longest = max(logs, key=len)
            assert all(log == longest[: len(log)] for log in logs), "orders differ"


# -- one member whose peers are played by the test -----------------------------------------------


def alone(kind: type[Any], me: int = 0, sites: int = 3, **changes: Any) -> Any:
    """One member of an open cluster."""
    engine = kind(me, tuple(range(sites)), ClusterConfig(**changes), Random(me))
    engine.take()
    return engine


def sends(engine: Any) -> list[tuple[int, Any]]:
    return list(sends_of(engine.take()))


def pdu(
    kind: type[Any],
    src: int,
    seq: int,
    ack: tuple[int, ...],
    message: str = "",
    **fields: Any,
) -> Any:
    """A sequenced PDU as a peer sends it, or a NULL if there is no message.

    Without `pseq`, an SPO PDU is the first one that its source sends to anybody.
    """
    kinds = kind.KINDS
    values = {"epoch": 0, "buf": 64 * len(ack) ** 2, **fields}
    if issubclass(kind, SpoSite):
        values = {"dst": mask(*range(len(ack))), "pseq": (1,) * len(ack)} | values
    elif not message:
        values = {"probe": False} | values
    cls = kinds.data if message else kinds.null
    bundle = Bundle.of(message.encode()) if message else NOTHING
    return cls(src=src, seq=seq, ack=ack, bundle=bundle, **values)


def stat(kind: type[Any], src: int, seq: int, treq: tuple[int, ...], **fields: Any) -> Any:
    """A STAT as a peer sends it; partial numbers are as total ones unless given."""
    values: dict[str, Any] = {"epoch": 0, "buf": 64 * len(treq) ** 2, "poll": False}
    values |= {"pseq": (seq,) * len(treq), "preq": treq}
    return kind.KINDS.stat(src=src, seq=seq, treq=treq, **values | fields)


def mask(*ranks: int) -> int:
    """The set of those ranks, as PDUs carry it."""
    return sum(1 << rank for rank in ranks)


def text(bundle: Bundle) -> str:
    """The one message of a bundle."""
    (message,) = bundle
    return message.decode()


# -- a look inside ---------------------------------------------------------------------------


class Unsound(AssertionError):
    """A member believes of others what is not so."""


class Watcher:
    """Compares what members believe with what is so; belongs to one `Net` of watched engines.

    `stages` counts what was looked at, so that a test can see that something was.
    """

    def __init__(self, net: Net) -> None:
        self.net = net
        self.accepted: dict[int, set[tuple[int, int, int]]] = {site: set() for site in net.group}
        self.stages = Counter[str]()
        for engine in net:
            engine.watcher = self

    def note_accepted(self, site: Any, pdu: Any) -> None:
        self.accepted[site.me].add((pdu.epoch, pdu.src, pdu.seq))

    def note_preacknowledged(self, site: Any, pdu: Any) -> None:
        """Phase two: whoever the PDU is for has accepted it."""
        self.stages["preacknowledged"] += 1
        for k in self.ranks(site.destinations(pdu) & ~(1 << pdu.src)):  # a sender holds its own
            member = site.group[k]
            if (pdu.epoch, pdu.src, pdu.seq) not in self.accepted[member]:
                raise Unsound(f"{site.me} pre-acknowledged {pdu}, which {member} lacks")

    def note_acknowledged(self, site: Any, pdu: Any) -> None:
        """Phase three: whoever the PDU is for, and its source, could pre-acknowledge it.

        What a reset delivers is of the epoch before: everybody holds it, by the vectors.
        """
        self.stages["acknowledged"] += 1
        dst = site.destinations(pdu)
        for k in self.ranks(dst | 1 << pdu.src):
            other = self.net[site.group[k]]
            if pdu.epoch != site.epoch:
                held = (pdu.epoch, pdu.src, pdu.seq) in self.accepted[other.me]
                if not held and k != pdu.src:
                    raise Unsound(f"{site.me} kept {pdu} in a reset, which {other.me} lacks")
                continue
            short = [m for m in self.ranks(dst) if other.al[pdu.src][m] <= pdu.seq]
            if short:
                raise Unsound(f"{site.me} acknowledged {pdu}; {other.me} cannot tell of {short}")

    @staticmethod
    def ranks(members: int) -> list[int]:
        return [k for k in range(members.bit_length()) if members >> k & 1]


def watched(kind: type[Any]) -> type[Any]:
    """`kind`, with a `Watcher` told of each step; nothing else is different."""

    class Watched(kind):  # type: ignore[misc]
        watcher: Watcher | None = None

        def accept(self, pdu: Any, now: int) -> None:
            if self.watcher is not None:
                self.watcher.note_accepted(self, pdu)
            levels = [list(row) for row in (*self.al, *self.pal)]
            super().accept(pdu, now)
            for before, row in zip(levels, (*self.al, *self.pal), strict=True):
                if any(new < old for new, old in zip(row, before, strict=True)):
                    raise Unsound(f"{self.me}: AL or PAL fell from {before} to {row}")

        def note_preacknowledged(self, pdu: Any) -> None:  # PO, TO
            if self.watcher is not None:
                self.watcher.note_preacknowledged(self, pdu)
            super().note_preacknowledged(pdu)

        def reached(self, pdu: Any, stage: str, *rest: Any) -> None:  # PO, TO
            if self.watcher is not None and stage == ACKNOWLEDGED and not self.selective:
                self.watcher.note_acknowledged(self, pdu)
            super().reached(pdu, stage, *rest)

        if issubclass(kind, SpoSite):

            def accepted_by_all(self, pdu: Any) -> bool:
                found: bool = super().accepted_by_all(pdu)
                if found and self.watcher is not None:
                    self.watcher.note_preacknowledged(self, pdu)
                return found

            def known_by_all(self, pdu: Any) -> bool:
                found: bool = super().known_by_all(pdu)
                if found and self.watcher is not None:
                    self.watcher.note_acknowledged(self, pdu)
                return found

    Watched.__name__ = f"Watched{kind.__name__}"
    return Watched
