"""The journal of a node that records a `journal` group.

What the engine stores is appended and committed before the batch sends anything.  A recorder says
only what is on disk: with the policy `interval` its answer to a poll (POLL_OK) is cut down to the
position that has been synced, and when that rises it tells the acknowledger by itself.  So what is
told to be recorded is, whatever the policy.

A journal that cannot be written or synced stops the recorder, and only that: it answers no more
polls and serves no more replays, the acknowledger gives it up, and the other recorders go on.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.grsb.base import Counters
from roundelay.core.grsb.config import EVERYTHING
from roundelay.core.grsb.site import GrsbSite
from roundelay.journal.files import Disk, JournalBroken
from roundelay.journal.grsb import JournalArchive
from roundelay.journal.history import read_history, write_history
from roundelay.journal.journal import ALWAYS, Journal
from roundelay.node.folders import claim_journal
from roundelay.node.recorder import Filter, RecordConfig
from roundelay.node.store import GrsbKept, Senders

if TYPE_CHECKING:
    from roundelay.node.grsb import GrsbSeat

SENDERS_EVERY: Final = 65_536
"""Positions after which the table of senders is kept, so that a restart need not read all."""
PAGE: Final = 4096


class Face:
    """The recorder as `node.recorders` knows recorders: whom to ask for a replay, how far it is.

    It is closed with the group, not before.
    """

    is_recorder = True
    ordered = True
    slow = False  # the group has a way of its own to be slowed (GR-12)

    def __init__(self, inner: SeatJournal, journal: Journal) -> None:
        seat = inner.seat
        chosen = seat.roles.selection(seat.me)
        self._inner = inner
        self.group = seat.spec.name
        self.journal = journal
        self.wanted = Filter(
            frozenset(seat.file.names(tuple(chosen.senders))) or None,
            chosen.conferences or None,
            chosen.kinds or None,
        )
        self.config = RecordConfig(group=self.group, wanted=self.wanted, journal=seat.file.journal)
        self.next = self.recorded = journal.end
        self.history = seat.history_name

    @property
    def broken(self) -> str:
        return self._inner.broken

    def enter(self, history: str) -> None:
        """The engine knows which history it is in."""

    def status(self) -> dict[str, object]:
        """As `Recorder.status` has it."""
        site = self._inner.site
        engine = site.recorder if site is not None else None
        slow = engine is not None and (
            time.monotonic_ns() - engine.slow_at < engine.config.slow_hold_ns
        )
        return self._inner.status() | {
            "fsync": self.journal.config.sync,
            "slow": slow,  # it has asked the acknowledger for mercy (GR-12)
            "slowed": 0 if engine is None else engine.slowed,
            "backlog_bytes": 0,  # what it takes in is written before it says anything
            "recorded": self.recorded,
            "filter": self.wanted.shown() or None,
        }

    def close(self) -> None:
        """See `SeatJournal.close`."""


class SeatJournal:
    """A recorder's disk."""

    def __init__(self, seat: GrsbSeat) -> None:
        self.seat = seat
        self.broken = ""
        base = seat.node.config.dir
        assert base is not None  # a recorder is in the council, and that has a directory
        folder = claim_journal(base, seat.spec.name)
        self._same_history(folder)
        self.loop = asyncio.get_running_loop()
        names = seat.roster
        sites = {name: site for site, name in enumerate(names)}
        self.journal = Journal(
            folder, seat.spec.name, seat.file.journal, self._said, advanced=self._advanced
        )
        self.archive = JournalArchive(self.journal, names.__getitem__, sites.__getitem__)
        self.counters = Counters()
        self.last_time = 0
        self.senders_at = 0
        self.both = seat.me in seat.roles.acknowledgers
        """The acknowledger on the same site takes our word without a PDU."""
        self.site: GrsbSite | None = None
        self.told = 0
        """How far the others were told that it is."""
        self.face: Any = Face(self, self.journal)

    def _same_history(self, folder: Path) -> None:
        """A journal of another history is put aside: its positions hold something else."""
        with suppress(OSError):
            known, wrong = read_history(folder)
            for what in wrong:
                self._said(f"{what}; it is written again")
            if known == self.seat.history_name:
                write_history(folder, known, Disk())
                return
        if folder.exists() and any(folder.glob("*.rjs")):
            number = 1
            while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
                number += 1
            folder.rename(aside)
            self._said(f"another history of the group; the journal so far is now {aside.name}")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_history(folder, self.seat.history_name, Disk())

    def _said(self, text: str) -> None:
        self.seat.node.log("warning", "journal", group=self.seat.spec.name, said=text)

    # -- at the start ----------------------------------------------------------------------

    def recall(self, kept: GrsbKept) -> None:
        """The senders of everything that is recorded: from the table kept, and what followed."""
        senders = kept.senders
        counters = Counters(senders.counters)
        at, last = senders.position, senders.time
        while at < self.journal.end:
            page = self.archive.select(at, self.journal.end, EVERYTHING, PAGE)
            if not page:
                break
            for message in page:
                counters.count(message)
                last = max(last, message.time)
            at = page[-1].end
        self.counters, self.last_time, self.senders_at = counters, last, at
        kept.counters = counters

    def opened(self, site: GrsbSite) -> None:
        self.site = site
        if site.recorder is not None:
            site.recorder.counters = self.counters
            site.recorder.last_time = self.last_time
        self.adopting = self.loop.create_task(self.seat.node.recorders.adopt(self.face))

    # -- recording -------------------------------------------------------------------------

    def keep(self, records: list[Struct]) -> list[Struct]:
        """Record what is to be recorded; returns the rest."""
        if self.broken:
            return [record for record in records if not self.archive.is_record(record)]
        rest: list[Struct] = []
        try:
            for record in records:
                if not self.archive.keep(record):
                    rest.append(record)
            if len(rest) < len(records):
                self.journal.commit()
                if self.both and self.journal.config.sync != ALWAYS:
                    self.journal.sync()
        except (JournalBroken, ConfigError, OSError) as error:
            self._stop(str(error))
            return [record for record in records if not self.archive.is_record(record)]
        if self.journal.durable - self.senders_at >= SENDERS_EVERY:
            self._keep_senders(rest)
        self.face.recorded += self.journal.end - self.face.next
        self.face.next = self.journal.end
        if self.journal.durable > self.told:
            self.told = self.journal.durable
            self.seat.node.recorders.changed(self.face)
        return rest

    def _keep_senders(self, rest: list[Struct]) -> None:
        """The table of all that is committed, which is all that the recorder has counted."""
        recorder = self.site.recorder if self.site is not None else None
        if recorder is not None:
            self.journal.sync()
            self.senders_at = self.journal.end
            counters = tuple(recorder.counters.by_sender.values())
            rest.append(Senders(self.senders_at, recorder.last_time, counters))

    def durable(self, upto: int) -> int | None:
        """What may be told to be recorded, of what the engine would tell; None: nothing."""
        return None if self.broken else min(upto, self.journal.durable)

    def _advanced(self) -> None:
        """From the syncing thread: `durable` has risen, or the journal is broken."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self.journal.broken:
            self._stop(self.journal.broken)
        elif not self.broken:
            self.seat.tell_recorded()
            self.seat.node.recorders.changed(self.face)

    def _stop(self, why: str) -> None:
        """The recorder's part is over; the other roles of this site go on."""
        if self.broken:
            return
        self.broken = why
        self.seat.node.log("error", "recorder.stopped", group=self.seat.spec.name, why=why)
        if self.site is not None:
            self.site.recorder = None
            if self.site.council is not None:
                self.site.council.recorder = None

    def status(self) -> dict[str, object]:
        return self.journal.status() | {"broken": self.broken or None}

    def close(self) -> None:
        self.adopting.cancel()
        own: dict[str, Any] = self.seat.node.recorders.own
        if own.get(self.seat.spec.name) is self.face:
            del own[self.seat.spec.name]
        with suppress(JournalBroken, OSError):
            self.journal.close()
