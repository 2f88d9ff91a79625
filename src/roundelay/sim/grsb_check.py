"""Judges what GRSB promises (PROTOCOLS §6.12) from what applications and recorders have.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Notice
from roundelay.core.events import MEMORY, NOTHING_LEFT
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery
from roundelay.core.grsb.config import EVERYTHING, Selection
from roundelay.core.grsb.pdu import ABORT, END, SINGLE, START, Message
from roundelay.core.grsb.stable import GrsbStable

Complain = Callable[[str, str, int], None]
"""(rule, detail, site)."""


def surfaced(log: list[Message], wanted: Selection) -> list[tuple[int, Bundle]]:
    """What a user that wants this delivers of `log`: (position, messages), by the book."""
    found: list[tuple[int, Bundle]] = []
    open_units: dict[tuple[int, int], list[Message]] = {}
    for message in log:
        if message.mtype == ABORT:
            for key in [key for key in open_units if key[0] == message.sender]:
                del open_units[key]
            continue
        if not wanted.takes(message):
            continue
        key = (message.sender, message.conference)
        unit = open_units.get(key, [])
        if message.mtype == SINGLE:
            found.append((message.gseq, message.bundle))
        elif message.mtype == START:
            open_units[key] = [message]
        elif unit and (unit[0].inc, unit[0].gid) == (message.inc, message.gid):
            unit.append(message)
            if message.mtype == END:
                del open_units[key]
                found.append((message.gseq, Bundle.merged(part.bundle for part in unit)))
    return found


class GrsbCheck:
    """An observer of a `GrsbWorld`; what is wrong goes to `complain`."""

    def __init__(self, complain: Complain) -> None:
        self.complain = complain
        self.known: dict[bytes, tuple[int, int, int]] = {}  # message → sender, conference, kind
        self.numbers: dict[tuple[int, int], list[bytes]] = {}  # (sender, start) → its messages
        self.incs: dict[int, int] = {}
        self.at: dict[int, tuple[int, Bundle]] = {}  # position → source, what was delivered there
        self.logs: dict[int, list[tuple[int, Bundle]]] = {}  # site → its deliveries
        self.told: list[tuple[int, bytes, int]] = []  # site, first message, position
        self.wanted: dict[int, Selection] = {}
        self.seen: set[bytes] = set()  # messages delivered somewhere
        self.deliveries = 0
        self.replayed: dict[tuple[int, int], list[tuple[int, Bundle]]] = {}

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

    def selected(self, time: int, site: int, wanted: Selection) -> None:
        self.wanted[site] = wanted

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        self.deliveries += 1
        seq = delivery.seq
        for data in delivery.bundle:
            self.seen.add(data)
            if self.known.get(data) != (delivery.source, delivery.conference, delivery.kind):
                self.complain("I4", f"position {seq}: {data[:12]!r} was not submitted so", site)
        first = self.at.setdefault(seq, (delivery.source, delivery.bundle))
        if first != (delivery.source, delivery.bundle):
            self.complain("I1", f"position {seq} holds two messages", site)
        if delivery.stage == REPLAYED:
            self.replayed.setdefault((site, delivery.query), []).append((seq, delivery.bundle))
            return
        log = self.logs.setdefault(site, [])
        if log and log[-1][0] >= seq:
            rule = "I4" if any(at == seq for at, _ in log) else "I1"
            self.complain(rule, f"position {seq} is delivered after {log[-1][0]}", site)
        log.append((seq, delivery.bundle))

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if notice.kind == "stable":
            lo, _, gseq = notice.info
            assert isinstance(lo, int)
            assert isinstance(gseq, int)
            mine = self.numbers[site, self.incs[site]]
            self.told.append((site, mine[lo], gseq))
        elif notice.kind == "gap_unavailable":
            self.complain("I2", f"positions {notice.info} are nowhere to be had", site)
        elif notice.kind == "retracted":
            self.complain("I1", f"positions {notice.info} are taken back", site)

    def crashed(self, time: int, site: int, keeps: str) -> None:
        if keeps == NOTHING_LEFT:
            self.logs[site] = []

    def sampled(
        self, time: int, site: int, usage: Mapping[str, int], caps: Mapping[str, int]
    ) -> None:
        for what, used in usage.items():
            if used > caps[what]:
                self.complain("I6", f"{what} = {used} is above {caps[what]}", site)

    # -- the end ---------------------------------------------------------------------------

    @property
    def committed(self) -> int:
        """Messages that have been delivered somewhere."""
        return len(self.seen)

    def recorded(self, archives: Mapping[int, GrsbStable]) -> list[Message]:
        """The order, from what the recorders have; they must agree."""
        whole: dict[int, Message] = {}
        for site, stable in archives.items():
            at = self.begins(stable)
            for message in stable.log:
                if message.gseq != at and not any(hi == message.gseq for _, hi in stable.missing):
                    self.complain("I1", f"recorded {message.gseq} where {at} was due", site)
                at = message.end
                if not self.agrees(message, whole):
                    self.complain("I1", f"recorders differ at position {message.gseq}", site)
        log = [whole[at] for at in sorted(whole)]
        last: dict[int, tuple[int, int]] = {}
        for message in log:
            number = (message.inc, message.sseq)
            if message.mtype == ABORT:
                continue
            if number <= last.get(message.sender, (-1, -1)):
                self.complain("I1", f"sender {message.sender}: {number} is out of order", -1)
            last[message.sender] = number
        return log

    def begins(self, stable: GrsbStable) -> int:
        """The first position that a recorder has to have."""
        return 0

    def agrees(self, message: Message, whole: dict[int, Message]) -> bool:
        """Whether `message` is what others recorded there; the first one is put into `whole`."""
        other = whole.get(message.gseq)
        if other is None or other.is_head:
            whole[message.gseq] = message
        return other is None or other.head() == message.head()

    def finish(self, archives: Mapping[int, GrsbStable], users: tuple[int, ...]) -> None:
        """Everything has settled: judge it all."""
        log = self.recorded(archives)
        by_position = {message.gseq: message for message in log}
        for site, data, gseq in self.told:
            message = by_position.get(gseq)
            if message is None or data not in message.bundle.messages():
                self.complain("I5", f"{data[:12]!r} was said to be at {gseq}, and is not", site)
        placed: dict[bytes, int] = {}
        for message in log:
            for data in message.bundle.messages():
                if message.mtype != ABORT and placed.setdefault(data, message.gseq) != message.gseq:
                    self.complain("I4", f"{data[:12]!r} has two positions", message.sender)
        for site in users:
            wanted = self.wanted.get(site, EVERYTHING)
            due = surfaced(log, wanted)
            got = self.logs.get(site, [])
            if got == due:
                continue
            missing = [at for at, _ in due if at not in {at for at, _ in got}]
            extra = [at for at, _ in got if at not in {at for at, _ in due}]
            if missing:
                what = f"{len(missing)} of {len(due)} not delivered, the first at {missing[0]}"
                self.complain("I2", what, site)
            if extra:
                self.complain("I8", f"{len(extra)} not wanted, the first at {extra[0]}", site)
            if not missing and not extra:
                self.complain("I1", "what was delivered is not what was recorded", site)
