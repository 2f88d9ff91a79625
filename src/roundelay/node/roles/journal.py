"""The journal of a node that records a group, or a level of it, by its role.

What the engine stores is appended and committed before the batch sends anything.  A recorder says
only what is on disk: with the policy `interval` its answer to a poll (POLL_OK) is cut down to the
position that has been synced, and when that rises it tells the acknowledger by itself.  So what is
told to be recorded is, whatever the policy.

A journal that cannot be written or synced stops the recorder, and only that: it answers no more
polls and no users' requests, the acknowledger gives it up, and the other recorders go on.  What it
has recorded by then can still be replayed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.errors import ConfigError
from roundelay.core.grsb.base import Counters
from roundelay.core.grsb.config import Roles
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.selection import EVERYTHING
from roundelay.durable import Disk, numbered
from roundelay.journal.files import JournalBroken, write_history
from roundelay.journal.grsb import JournalArchive
from roundelay.journal.journal import ALWAYS, Journal
from roundelay.node.recording.recorder import RecordConfig, recall_history
from roundelay.node.roles.member import RoleMember
from roundelay.node.storage.folders import claim_journal
from roundelay.node.storage.store import GrsbKept, Senders

SENDERS_EVERY: Final = 65_536
"""Positions after which the table of senders is kept, so that a restart need not read all."""
PAGE: Final = 4096


class RecorderJournal:
    """A recorder's disk; `tell` is called when there is more on it.

    `name` is that of the group, whose applications then are given replays of it, or a name of its
    own.  `node.recording.recorders` looks after it as after a `Recorder`: it knows from it whom to
    ask for a replay, and how far it is.
    """

    ordered = True
    slow = False  # the group has a way of its own to be slowed (GR-12)

    def __init__(
        self, member: RoleMember, name: str, roles: Roles, history: str, tell: Callable[[], None]
    ) -> None:
        self.member = member
        self.recorders: Any = member.node.recorders
        self.name = self.group = name
        self.history = history
        self.tell = tell
        self.broken = ""
        base = member.node.config.dir
        assert base is not None  # a recorder is in the council, and that has a directory
        folder = claim_journal(base, name)
        self._same_history(folder, history)
        self.loop = asyncio.get_running_loop()
        names = member.roster
        sites = {name: site for site, name in enumerate(names)}
        self.journal = Journal(
            folder, name, member.file.journal, self._say, advanced=self._advanced
        )
        self.archive = JournalArchive(self.journal, names.__getitem__, sites.__getitem__)
        self.counters = Counters()
        self.senders_at = 0
        self.both = member.me in roles.acknowledgers
        """The acknowledger on the same site takes our word without a PDU."""
        self.site: GrsbSite | None = None
        self.announced = 0
        """How far the others were told that it is."""
        chosen, file = roles.selection(member.me), member.file
        senders = None if chosen.senders is None else file.names(tuple(chosen.senders))
        self.selection = structs.replace(chosen, senders=senders and frozenset(senders))
        self.config = RecordConfig(group=name, selection=self.selection, journal=file.journal)
        self.next = self.recorded = self.journal.end
        self.adopting: asyncio.Task[None] | None = None

    def _same_history(self, folder: Path, history: str) -> None:
        """A journal of another history is put aside: its positions hold something else."""
        if recall_history(folder, Disk(), self._say) == history:
            return
        if folder.exists() and any(folder.glob("*.rjs")):
            aside = numbered(folder)
            folder.rename(aside)
            self._say(f"another history of the group; the journal so far is now {aside.name}")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_history(folder, history, Disk())

    def _say(self, text: str) -> None:
        self.member.node.log("warning", "journal", group=self.name, said=text)

    # -- at the start ----------------------------------------------------------------------

    def recall(self, kept: GrsbKept) -> None:
        """The senders of everything that is recorded: from the table kept, and what followed."""
        senders = kept.senders
        counters, at = Counters(senders.counters, senders.time), senders.position
        while at < self.journal.end:
            page = self.archive.select(at, self.journal.end, EVERYTHING, PAGE)
            if not page:
                break
            for message in page:
                counters.count(message)
            at = page[-1].end
        self.counters = kept.counters = counters
        self.senders_at = at

    def opened(self, site: GrsbSite) -> None:
        self.site = site
        if site.recorder is not None:
            site.recorder.counters = self.counters
        if self.name == self.member.group:
            self.adopting = self.loop.create_task(self.recorders.adopt(self))

    # -- recording -------------------------------------------------------------------------

    def keep(self, records: list[Struct]) -> list[Struct]:
        """Record what is to be recorded; returns the rest."""
        rest = [record for record in records if not self.archive.is_record(record)]
        if self.broken:
            return rest
        try:
            for record in records:
                self.archive.keep(record)
            if len(rest) < len(records):
                self.journal.commit()
                if self.both and self.journal.config.sync != ALWAYS:
                    self.journal.sync()
            if self.journal.durable - self.senders_at >= SENDERS_EVERY:
                self._keep_senders(rest)
        except (JournalBroken, ConfigError, OSError) as error:
            self._stop(str(error))
            return rest
        self.recorded += self.journal.end - self.next
        self.next = self.journal.end
        if self.journal.durable > self.announced:
            self.announced = self.journal.durable
            self.recorders.changed(self)
        return rest

    def _keep_senders(self, rest: list[Struct]) -> None:
        """The table of all that is committed, which is all that the recorder has counted."""
        engine = self.site.recorder if self.site is not None else None
        if engine is not None:
            self.journal.sync()
            self.senders_at = self.journal.end
            counters = tuple(engine.counters.by_sender.values())
            rest.append(Senders(self.senders_at, engine.counters.time, counters))

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
            self.tell()
            self.recorders.changed(self)

    def _stop(self, why: str) -> None:
        """The recorder's part is over; the other roles of this site go on."""
        if self.broken:
            return
        self.broken = why
        self.member.node.log("error", "recorder.stopped", group=self.name, why=why)
        if self.site is not None:
            self.site.recorder = None

    def enter(self, history: str) -> None:
        """The engine knows which history it is in."""

    def journal_status(self) -> dict[str, object]:
        """What the group shows of it."""
        return self.journal.status() | {"broken": self.broken or None}

    def status(self) -> dict[str, object]:
        """As `Recorder.status` has it."""
        engine = self.site.recorder if self.site is not None else None
        slow = engine is not None and (
            time.monotonic_ns() - engine.slow_at < engine.config.slow_hold_ns
        )
        return self.journal_status() | {
            "fsync": self.journal.config.sync,
            "slow": slow,  # it has asked the acknowledger for mercy (GR-12)
            "slowed": 0 if engine is None else engine.slowed,
            "backlog_bytes": 0,  # what it takes in is written before it says anything
            "recorded": self.recorded,
            "filter": self.selection.shown() or None,
        }

    def close(self) -> None:
        if self.adopting is not None:
            self.adopting.cancel()
        if self.recorders.own.get(self.name) is self:
            del self.recorders.own[self.name]
        with suppress(JournalBroken, OSError):
            self.journal.close()
