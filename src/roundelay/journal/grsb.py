"""A GRSB recorder's archive in a journal.

A message is a run.  Its number is made of the sender's start, the submission since then, and the
type of the message in the last three bits; so it rises, as numbers of a sender do.  The epoch and
the number of a unit are not kept: what is recorded is stable in whatever epoch, and a sender has
one open unit per conference.

    recorder's site:  for record in out.persists: archive.keep(record); archive.journal.commit()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.grsb.pdu import SINGLE, Message
from roundelay.core.grsb.stable import Missing, Stored
from roundelay.core.positions import Range
from roundelay.core.selection import Selection
from roundelay.journal.format import GAP, HEADS_ONLY, Run
from roundelay.journal.journal import Journal

MTYPE_BITS: Final = 3
US: Final = 1000
"""Nanoseconds in the unit of a message's date."""


def run_of(message: Message, name: Callable[[int], str] = str) -> Run:
    """A message as a journal keeps it; `name` is what its sender is called there."""
    return Run(
        message.gseq,
        message.time * US,
        name(message.sender),
        message.bundle,
        message.conference,
        message.kind,
        number=message.inc << 32 | message.sseq << MTYPE_BITS | message.mtype,
        flags=HEADS_ONLY if message.is_head else 0,
    )


def message_of(run: Run, site: Callable[[str], int] = int) -> Message:
    """The message that `run_of` made a run of."""
    inc, sseq = run.number >> 32, (run.number & 0xFFFFFFFF) >> MTYPE_BITS
    bundle = Bundle(run.bundle.sizes, b"") if run.flags & HEADS_ONLY else run.bundle
    time, sender, mtype = run.time // US, site(run.sender), mtype_of(run)
    return Message(
        0, run.position, time, sender, inc, sseq, run.conference, mtype, 0, run.kind, bundle
    )


def mtype_of(run: Run) -> int:
    """SINGLE, START, MIDDLE, END or ABORT: what a run of such a journal is."""
    return run.number & (1 << MTYPE_BITS) - 1 if run.number >= 0 else SINGLE


def follows(run: Run, other: Run) -> bool:
    """Whether `other` is the next submission of the same start of the same sender."""
    numbered = run.number >> MTYPE_BITS, other.number >> MTYPE_BITS
    return run.sender == other.sender and numbered[0] + 1 == numbered[1]


class JournalArchive:
    """`core.grsb.stable.Archive` on a journal."""

    def __init__(
        self, journal: Journal, name: Callable[[int], str] = str, site: Callable[[str], int] = int
    ) -> None:
        self.journal = journal
        self.name = name
        self.site = site
        self._lost: list[Range] = []  # with nothing recorded behind it yet

    def keep(self, record: Struct) -> None:
        """Put a recorder's record into the next commit; others do not belong there.

        What is missing needs no record: the next message begins behind it, and until then it is
        found out again after a restart.
        """
        if isinstance(record, Stored):
            self.journal.add(run_of(record.message, self.name))
        elif isinstance(record, Missing):
            self._lost.append((record.lo, record.hi))

    @staticmethod
    def is_record(record: Struct) -> bool:
        """Whether a record belongs into a journal."""
        return isinstance(record, Stored | Missing)

    @property
    def end(self) -> int:
        return self.journal.end

    @property
    def missing(self) -> list[Range]:
        """With what is older than the first record: never had, or let go since."""
        begin = self.journal.begin
        if self._lost and self.journal.end > self._lost[-1][0]:
            self._lost.clear()  # the journal says it by itself
        return ([(0, begin)] if begin else []) + self.journal.missing + self._lost

    def select(self, since: int, until: int, selection: Selection, limit: int) -> list[Message]:
        return list(islice(self._messages(since, until, selection), max(0, limit)))

    def _messages(self, since: int, until: int, selection: Selection) -> Iterator[Message]:
        senders = selection.senders and frozenset(map(self.name, selection.senders))
        by_name = structs.replace(selection, since=since, until=until, senders=senders)
        for run in self.journal.read(by_name):
            if not run.flags & GAP:
                yield message_of(run, self.site)

    def at_time(self, time: int) -> int:
        runs = self.journal.read(Selection(since_time=time * US))
        return next((run.position for run in runs if not run.flags & GAP), self.end)
