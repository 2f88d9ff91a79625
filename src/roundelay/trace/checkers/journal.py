"""What GRSB and its hierarchy promise (PROTOCOLS §6.12, §7.7), judged by what applications are
given and by what recorders have on disk in the end.

=====  =========================================================================================
I1     every position holds one message, whoever delivers or records it; every user delivers in
       the order of positions; each sender's messages keep their order
I2     whatever is stable is with the recorders in the end, and every user has delivered all of it
       that it wants, however long it was away
I4     each at most once per life of a user's disk, only what was submitted, byte for byte; units
       whole, at the position of their end
I5     what a submitter was told is stable stands at the position it was told
I6     buffers stay under their caps
I8     only what a user wants
=====  =========================================================================================

Users want different messages, so positions that a user leaves out mean nothing until the order is
known: that is what the recorders have.  In a hierarchy recorders of all networks and of the global
level must agree; nodes that do not repair (`excused`) may lack what they said they lack
(`gap_unavailable`), and what a crash cost them.

Besides what `core.events.Observer` has, a `JournalChecker` is told of these::

    asked(time, site, inc, parts, conference, kind)   an application submits
    selected(time, site, selection)                   what it wants from here on
    archived(time, archives, users)                   the end: what the recorders have on disk, and
                                                      the users that must have all of it by now
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.events import MEMORY, NOBODY, NOTHING_LEFT
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery
from roundelay.core.grsb.pdu import ABORT, END, SINGLE, START, Message
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.notices import GapUnavailable, Notice, OwnPlaced, Retracted
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.core.wide.stable import GlobalStable
from roundelay.trace.checkers.verdict import Judge

Placed = tuple[int, Bundle]
"""A position, and the messages delivered there."""


def due_to(log: list[Message], selection: Selection) -> list[Placed]:
    """Return what a user that wants this delivers of `log`."""
    due: list[Placed] = []
    open_units: dict[tuple[int, int], list[Message]] = {}
    for message in log:
        if message.mtype == ABORT:
            for key in [key for key in open_units if key[0] == message.sender]:
                del open_units[key]
            continue
        if not selection.takes(message):
            continue
        key = (message.sender, message.conference)
        unit = open_units.get(key, [])
        if message.mtype == SINGLE:
            due.append((message.gseq, message.bundle))
        elif message.mtype == START:
            open_units[key] = [message]
        elif unit and (unit[0].inc, unit[0].gid) == (message.inc, message.gid):
            unit.append(message)
            if message.mtype == END:
                del open_units[key]
                due.append((message.gseq, Bundle.merged(part.bundle for part in unit)))
    return due


class JournalChecker(Judge):
    """Looks on at a group with recorders and collects violations.

    `wide`: the networks of a hierarchy, whose reigns are their own; `excused` are its nodes that do
    not repair.
    """

    def __init__(self, *, wide: bool = False, excused: Collection[int] = ()) -> None:
        super().__init__()
        self.wide = wide
        self.excused = frozenset(excused)
        self.known: dict[bytes, tuple[int, int, int]] = {}  # message → sender, conference, kind
        self.numbers: dict[tuple[int, int], list[bytes]] = {}  # (sender, start) → its messages
        self.incs: dict[int, int] = {}
        self.at: dict[int, tuple[int, Bundle]] = {}  # position → source, what was delivered there
        self.logs: dict[int, list[Placed]] = {}  # site → its deliveries
        self.confirmed: list[tuple[int, bytes, int]] = []  # site, first message, position
        self.selections: dict[int, Selection] = {}
        self.delivered_somewhere: set[bytes] = set()
        self.deliveries = 0
        self.replayed: dict[tuple[int, int], list[Placed]] = {}
        self.gaps: dict[int, list[tuple[int, int]]] = {}  # what the excused said they lack
        self.hurt: set[int] = set()  # excused, and once down

    @property
    def committed(self) -> int:
        """Messages that have been delivered somewhere."""
        return len(self.delivered_somewhere)

    # -- what happens ----------------------------------------------------------------------

    def asked(
        self, time: int, site: int, inc: int, parts: tuple[bytes, ...], conference: int, kind: int
    ) -> None:
        self.incs[site] = inc
        mine = self.numbers.setdefault((site, inc), [])
        for part in parts:
            self.known[part] = (site, conference, kind)
            mine.append(part)

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        """The same, where an application submits to the kernel."""
        self.asked(time, site, self.incs.get(site, 1), bundle.messages(), 0, 0)

    def restarted(self, time: int, site: int, keeps: str) -> None:
        if keeps != MEMORY:
            self.incs[site] = self.incs.get(site, 1) + 1

    def selected(self, time: int, site: int, selection: Selection) -> None:
        self.selections[site] = selection

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        self.deliveries += 1
        seq = delivery.seq
        for data in delivery.bundle:
            self.delivered_somewhere.add(data)
            if self.known.get(data) != (delivery.source, delivery.conference, delivery.kind):
                detail = f"position {seq}: {data[:12]!r} was not submitted so"
                self.report("I4", site, time, detail)
        first = self.at.setdefault(seq, (delivery.source, delivery.bundle))
        if first != (delivery.source, delivery.bundle):
            self.report("I1", site, time, f"position {seq} holds two messages")
        if delivery.stage == REPLAYED:
            self.replayed.setdefault((site, delivery.query), []).append((seq, delivery.bundle))
            return
        log = self.logs.setdefault(site, [])
        if log and log[-1][0] >= seq:
            rule = "I4" if any(at == seq for at, _ in log) else "I1"
            self.report(rule, site, time, f"position {seq} is delivered after {log[-1][0]}")
        log.append((seq, delivery.bundle))

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if isinstance(notice, OwnPlaced):
            mine = self.numbers[site, self.incs[site]]
            self.confirmed.append((site, mine[notice.lo], notice.position))
        elif isinstance(notice, GapUnavailable):
            gap = (notice.lo, notice.hi)
            if site in self.excused:
                self.gaps.setdefault(site, []).append(gap)
            else:
                self.report("I2", site, time, f"positions {gap} are nowhere to be had")
        elif isinstance(notice, Retracted):
            self.report("I1", site, time, f"positions {notice.info} are taken back")

    def crashed(self, time: int, site: int, keeps: str) -> None:
        if keeps == NOTHING_LEFT:
            self.logs[site] = []
        if keeps != MEMORY and site in self.excused:
            self.hurt.add(site)

    # -- the end ---------------------------------------------------------------------------

    def archived(
        self, time: int, archives: Mapping[int, GrsbStable], users: Collection[int]
    ) -> None:
        """Everything has settled: judge it all.  `users` is empty if it has not."""
        log = self._order(time, archives)
        by_position = {message.gseq: message for message in log}
        for site, data, gseq in self.confirmed:
            message = by_position.get(gseq)
            if message is None or data not in message.bundle.messages():
                detail = f"{data[:12]!r} was said to be at {gseq}, and is not"
                self.report("I5", site, time, detail)
        placed: dict[bytes, int] = {}
        for message in log:
            for data in message.bundle.messages():
                if message.mtype != ABORT and placed.setdefault(data, message.gseq) != message.gseq:
                    self.report("I4", message.sender, time, f"{data[:12]!r} has two positions")
        for site in users:
            due = due_to(log, self.selections.get(site, EVERYTHING))
            if site in self.excused:
                self._judge_excused(time, site, due)
            else:
                self._judge_user(time, site, due)

    def _order(self, time: int, archives: Mapping[int, GrsbStable]) -> list[Message]:
        """The order, from what the recorders have; they must agree."""
        recorded: dict[int, Message] = {}
        for site, stable in archives.items():
            at = stable.freed if isinstance(stable, GlobalStable) else 0
            for message in stable.log:
                if message.gseq != at and not any(hi == message.gseq for _, hi in stable.missing):
                    self.report("I1", site, time, f"recorded {message.gseq} where {at} was due")
                at = message.end
                if not self._agrees(message, recorded):
                    detail = f"recorders differ at position {message.gseq}"
                    self.report("I1", site, time, detail)
        log = [recorded[at] for at in sorted(recorded)]
        last: dict[int, tuple[int, int]] = {}
        for message in log:
            number = (message.inc, message.sseq)
            if message.mtype == ABORT:
                continue
            if number <= last.get(message.sender, (-1, -1)):
                detail = f"sender {message.sender}: {number} is out of order"
                self.report("I1", NOBODY, time, detail)
            last[message.sender] = number
        return log

    def _agrees(self, message: Message, recorded: dict[int, Message]) -> bool:
        """Whether `message` is what others recorded there; the first is put into `recorded`."""
        if self.wide:
            plain = structs.replace(message, epoch=0)  # reigns of networks are their own
            return recorded.setdefault(message.gseq, plain) == plain
        other = recorded.get(message.gseq)
        if other is None or other.is_head:
            recorded[message.gseq] = message
        return other is None or other.head() == message.head()

    def _judge_user(self, time: int, site: int, due: list[Placed]) -> None:
        log = self.logs.get(site, [])
        if log == due:
            return
        there, here = {at for at, _ in due}, {at for at, _ in log}
        missing = [at for at, _ in due if at not in here]
        extra = [at for at, _ in log if at not in there]
        if missing:
            detail = f"{len(missing)} of {len(due)} not delivered, the first at {missing[0]}"
            self.report("I2", site, time, detail)
        if extra:
            self.report("I8", site, time, f"{len(extra)} not wanted, the first at {extra[0]}")
        if not missing and not extra:
            self.report("I1", site, time, "what was delivered is not what was recorded")

    def _judge_excused(self, time: int, site: int, due: list[Placed]) -> None:
        """A node that does not repair may lack what it said it lacks, and what a crash cost it."""
        log = self.logs.get(site, [])
        extra = [placed for placed in log if placed not in due]
        if extra:
            self.report("I8", site, time, f"{len(extra)} not wanted, the first at {extra[0][0]}")
        if site in self.hurt:
            return
        here = {position for position, _ in log}
        gaps = self.gaps.get(site, [])
        for position, bundle in due:
            if position in here or any(lo <= position < hi for lo, hi in gaps):
                continue
            if len(bundle) > 1 and gaps:
                continue  # a unit, or a bundle: some of it may lie in a gap
            self.report("I2", site, time, f"position {position} is missing and not said to be")
            return
