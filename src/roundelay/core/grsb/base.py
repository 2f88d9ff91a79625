"""What the roles of a site share: the batch of effects, the site as they see it, small tools."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct, structs

from roundelay.core.engine import EVERYONE, NEVER, Delivery, Effects, Emitter, Pdu
from roundelay.core.grsb.config import GrsbConfig, Roles
from roundelay.core.grsb.pdu import ABORT, SINGLE, Counter, Message, State
from roundelay.core.grsb.ways import Ways
from roundelay.core.notices import Waits

if TYPE_CHECKING:
    from roundelay.core.grsb.acknowledger import Acknowledger
    from roundelay.core.grsb.recorder import Recorder
    from roundelay.core.grsb.retransmitter import Retransmitter
    from roundelay.core.grsb.takeover import Council

ANY_LINE: Final = -1
"""Whichever line leads to a site."""
REPLAYED: Final = "replayed"
"""Stage of a delivery that answers a question about the past (`User.history`)."""

UNKNOWN_SENDER: Final = Counter(-1, -1, 0, 0, False)
"""Of whom nothing has a place yet."""

COUNTERS_PAGE: Final = 48
"""Senders in one page of a state: a page fits a datagram."""


class GrsbDelivery(Delivery, frozen=True, gc=False):
    """A message, or a whole unit, for the application.

    `number` rises over restarts of the source: its start in the upper 32 bits, then its submission.
    `seq` is the position of its first message, for a unit that of its end message; `upto` is the
    position with which the application has everything of its own up to here; `query` is that of
    `User.history`, else -1.
    """

    conference: int = 0
    kind: int = 0
    time: int = 0
    upto: int = 0
    query: int = -1

    @property
    def is_unit(self) -> bool:
        """Its messages took effect together; those before the last have positions of their own."""
        return len(self.bundle.sizes) > self.upto - self.seq


def deliveries_of(effects: Effects) -> list[GrsbDelivery]:
    """The deliveries of a batch of a GRSB site, or of one of the hierarchy."""
    return cast(list[GrsbDelivery], effects.deliveries)


class Reign(Struct, frozen=True):
    """Who retransmits and who acknowledges in an epoch."""

    epoch: int
    cr: int
    da: int


class Host(Emitter):
    """A site as its roles see it: where their effects go, and what all of them know."""

    # The roles that others of the same site have to do with.
    retransmitter: Retransmitter | None = None
    acknowledger: Acknowledger | None = None
    recorder: Recorder | None = None
    council: Council | None = None

    def __init__(
        self, me: int, roles: Roles, config: GrsbConfig, rng: Random, base_us: int, now: int = 0
    ) -> None:
        super().__init__(me, tuple(range(roles.sites)))
        self.roles = roles
        self.config = config
        self.rng = rng
        self.base_us = base_us
        self.batch = 0  # batches handed over so far
        self.reign = Reign(0, roles.retransmitters[0], roles.acknowledgers[0])  # as heard
        self.promised = 0  # by the council member of this site: no lower epoch may be used
        self.heard_at = 0  # when the retransmitter of that reign was last heard
        self.announced = 0  # the epoch whose announcement was heard
        self.local: deque[tuple[Pdu, int]] = deque()  # to other roles of this site
        self.waited_by_da: tuple[int, ...] = ()  # recorders without which it has no room
        self.waited_by_cr: tuple[int, ...] = ()  # sites without which nothing gets a place
        self.broadcast = 0  # everything below has been
        self.ways = Ways(roles.lines, config, now)

    def send(self, dst: int, pdu: Pdu, line: int = ANY_LINE) -> None:
        if line == ANY_LINE:
            line = self.ways.to(dst)
        if dst == self.me:
            self.local.append((pdu, line))
        else:
            self.out.sends.append((dst, pdu, line))

    def ask(self, dst: int, pdu: Pdu, tries: int) -> None:
        """Send what wants an answer; `tries` times there was none."""
        self.send(dst, pdu, self.ways.to(dst, tries))

    def multicast(self, pdu: Pdu, line: int) -> None:
        self.out.sends.append((EVERYONE, pdu, line))
        self.local.append((pdu, line))

    def persist(self, record: Struct) -> None:
        self.out.persists.append(record)

    @property
    def waits(self) -> tuple[int, ...]:
        """The sites without which the group stands still, as those say who wait for them."""
        return tuple(dict.fromkeys(self.waited_by_da + self.waited_by_cr))

    def note_waits(
        self, da: tuple[int, ...] | None = None, cr: tuple[int, ...] | None = None
    ) -> None:
        """What acknowledger or retransmitter say of that; a notice `waits` if it is news."""
        before = self.waits
        if da is not None:
            self.waited_by_da = tuple(site for site in da if site < self.roles.sites)
        if cr is not None:
            self.waited_by_cr = tuple(site for site in cr if site < self.roles.sites)
        if self.waits != before:
            self.notify(Waits(self.waits))

    def take(self, spare: Effects | None = None) -> Effects:
        self.batch += 1
        return super().take(spare)

    def wall_us(self, now: int) -> int:
        """The date: only the retransmitter's is used (GR-3)."""
        return self.base_us + now // 1000


class Ring:
    """Consecutive messages, the oldest of which are let go."""

    def __init__(self, start: int = 0) -> None:
        self.first = start
        self.end = start
        self.messages: dict[int, Message] = {}

    def __len__(self) -> int:
        return len(self.messages)

    def add(self, message: Message) -> None:
        """The next one."""
        assert message.gseq == self.end
        self.messages[message.gseq] = message
        self.end = message.end

    def oldest(self) -> Message:
        return self.messages[self.first]

    def let_go(self) -> None:
        """Forget the oldest."""
        self.first = self.messages.pop(self.first).end

    def since(self, position: int, until: int = NEVER) -> Iterator[Message]:
        """From `position`, which must be where a message begins, for as long as there are any."""
        message = self.messages.get(position)
        while message is not None and message.gseq < until:
            yield message
            message = self.messages.get(message.end)


class Counters:
    """GR-2: what is known of each sender, and the date last given: from what has a place."""

    def __init__(self, counters: Iterable[Counter] = (), time: int = 0) -> None:
        self.by_sender = {counter.sender: counter for counter in counters}
        self.time = time

    def get(self, sender: int) -> Counter:
        return self.by_sender.get(sender, UNKNOWN_SENDER)

    def count(self, message: Message) -> None:
        """`message` has its place."""
        sender, inc = message.sender, message.inc
        known = self.by_sender.get(sender, UNKNOWN_SENDER)
        units = message.mtype != SINGLE or (known.inc == inc and known.units)
        next_sseq = message.sseq + 1
        if message.mtype == ABORT:  # nothing is open, and the numbers are those of the new start
            units, next_sseq = False, 0
        self.by_sender[sender] = Counter(sender, inc, next_sseq, message.gseq, units)
        self.time = max(self.time, message.time)

    def pages(self, safe: int, top: int) -> list[State]:
        """A state for a successor, cut into pages."""
        counters = tuple(self.by_sender[sender] for sender in sorted(self.by_sender))
        starts = range(0, max(len(counters), 1), COUNTERS_PAGE)
        return [
            State(safe, top, self.time, page, len(starts), counters[at : at + COUNTERS_PAGE])
            for page, at in enumerate(starts)
        ]


class Pages(Struct):
    """A state as it comes in, page by page."""

    pages: dict[int, State] = {}

    def add(self, page: State) -> bool:
        """Whether the state is complete now."""
        for other in self.pages.values():
            if (other.top, other.safe, other.pages) != (page.top, page.safe, page.pages):
                self.pages = {}  # a later state of the same source
        self.pages[page.page] = page
        return len(self.pages) == page.pages

    @property
    def state(self) -> State:
        """The whole state, as one page."""
        parts = [self.pages[page] for page in sorted(self.pages)]
        counters = tuple(counter for part in parts for counter in part.counters)
        return structs.replace(parts[0], page=0, pages=1, counters=counters)


class Repairs(Struct):
    """GR-25: when a node may ask for what it lacks.

    The first request comes after a random moment, the next ones ever more rarely while nothing
    comes of them, and never two within `repair_gap_ns`.
    """

    config: GrsbConfig
    rng: Random
    due: int = NEVER
    tries: int = 0
    last: int = -NEVER

    def want(self, now: int) -> None:
        """GR-25: something is missing: ask soon, unless a request is due anyway."""
        if self.due >= NEVER:
            jitter = int((0.5 + self.rng.random()) * self.config.rec_ns / 8)
            self.due = max(now + jitter, self.last + self.config.repair_gap_ns)

    def again(self, now: int) -> None:
        """A request has gone out: when the next one is due."""
        config = self.config
        wait = min(config.rec_max_ns, config.rec_ns << min(self.tries, 16))
        self.tries += 1
        self.last = now
        self.due = now + wait + int(self.rng.random() * wait / 4)

    def progress(self, now: int) -> None:
        """Something came: go on at once if more is missing."""
        self.tries = 0
        if self.due < NEVER:
            self.due = max(now, self.last + self.config.repair_gap_ns)

    def soon(self, now: int) -> None:
        """Something came: the next request need not be put off any more."""
        self.tries = 0
        if self.due < NEVER:
            self.due = min(self.due, max(now, self.last + self.config.rec_ns))

    def none(self) -> None:
        """Nothing is missing."""
        self.due = NEVER
        self.tries = 0
