"""What a token site keeps through a crash, and how the records it persists add up to it.

A driver writes each record before it carries out the sends of the same batch, and folds the
records with `Stable.apply` when the site restarts.  JOINED, LISTED and WIPED are promises to
peers, and must be synced.  With L ≥ 1 an entry is written when it is processed (STAMPED) and needs
no sync: a process that dies leaves it on disk all the same, and the driver says so (`whole`).
Where a machine dies with its unsynced writes, or nobody can tell, the restarted site is no witness
of what it may have forgotten.  With L = 0 there is no other copy to count on, so an entry is
written when it is committed, at once, and must be durable before anything of the same batch is
sent (`sync_commits`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from roundelay.core.engine import COMMITTED, Delivery, Notice
from roundelay.core.notices import GapUnavailable
from roundelay.core.token.ballot import Seen, note
from roundelay.core.token.pdu import DATA, NO_HISTORY, NO_LIST, Entry, History, Version


class Joined(Struct, frozen=True, gc=False):
    """The highest list version ever joined or originated: never to be joined again."""

    v: Version


class Base(Struct, frozen=True, gc=False):
    """Where a log goes on behind a gap (CM-R18): stamp, M and dense position there."""

    ts: int
    counters: tuple[tuple[int, int], ...]
    seq: int


class Listed(Struct, frozen=True, gc=False):
    """Committed to list `tl`, with every entry below `start_ts` that is not committed yet.

    With `base`, what was known before is left behind: in one record with the list, since without
    the list the old entries are still a promise.
    """

    tl: Version
    members: tuple[int, ...]
    start_ts: int
    first: int
    entries: tuple[Entry, ...]
    base: Base | None = None
    history: History = NO_HISTORY
    boots: tuple[int, ...] = ()
    """Boot numbers of the members (`ballot`)."""


class Stamped(Struct, frozen=True, gc=False):
    """An entry has been processed: it is part of the list's log, and may still be undone."""

    entry: Entry


class Committed(Struct, frozen=True, gc=False):
    """The entries below `ts`, all of which were written before, are part of the agreed log."""

    ts: int


class Forgot(Struct, frozen=True, gc=False):
    """Writes of an earlier life may be lost; so it stays until a list is entered."""


class Wiped(Struct, frozen=True, gc=False):
    """Whether this site has lost its disk, and has not been in an authorized list since."""

    wiped: bool


class Trimmed(Struct, frozen=True, gc=False):
    """Committed entries below `ts` are no longer kept."""

    ts: int


UNSYNCED = (Entry, Trimmed, Stamped, Committed, Forgot)
"""Records that need no sync with L ≥ 1: they promise nothing to peers."""


@dataclass(slots=True, eq=False)
class Stable:
    """The folded records of one site."""

    max_joined: Version = NO_LIST
    tl: Version = NO_LIST
    members: tuple[int, ...] = ()
    start_ts: int = 0
    first: int = -1
    cnts: int = 0  # next timestamp to commit
    seq: int = 0  # next dense position
    counters: dict[int, int] = field(default_factory=dict)  # M at cnts
    entries: dict[int, Entry] = field(default_factory=dict)
    """Kept committed entries, and promised ones above."""
    first_kept: int = 0
    wiped: bool = False
    history: History = NO_HISTORY
    forgot: bool = False
    whole: bool = False
    """Said by the driver: every record that was ever written is among these."""
    seen: Seen = field(default_factory=dict)  # the last list of each site

    def apply(self, record: Struct) -> None:
        """Fold one more.  An entry by itself is COMMIT: it was not written before."""
        if isinstance(record, Stamped):
            self.entries[record.entry.ack.ts] = record.entry
        elif isinstance(record, Committed):
            for ts in range(self.cnts, record.ts):
                self.commit(self.entries[ts])
        elif isinstance(record, Entry):
            self.commit(record)
        elif isinstance(record, Trimmed):
            for ts in range(self.first_kept, record.ts):
                self.entries.pop(ts, None)
            self.first_kept = max(self.first_kept, record.ts)
        elif isinstance(record, Joined):
            self.max_joined = record.v
        elif isinstance(record, Listed):
            self.tl, self.members = record.tl, record.members
            self.start_ts, self.first = record.start_ts, record.first
            self.history = record.history
            self.forgot = False  # all below the start is here, and nothing else was processed
            note(self.seen, record.tl, record.members, record.boots)
            if record.base is not None:
                self.entries.clear()
                self.cnts = self.first_kept = record.base.ts
                self.counters = dict(record.base.counters)
                self.seq = record.base.seq
            # Entries above cnts of an earlier list are void: this list replaced them.
            for ts in [ts for ts in self.entries if ts >= self.cnts]:
                del self.entries[ts]
            self.entries.update((entry.ack.ts, entry) for entry in record.entries)
        elif isinstance(record, Wiped):
            self.wiped = record.wiped
        elif isinstance(record, Forgot):
            self.forgot = True
        else:
            raise TypeError(f"not a record of a token site: {record!r}")

    def commit(self, entry: Entry) -> None:
        """COMMIT: `entry` is the next one of the agreed log."""
        ack = entry.ack
        ts = ack.ts
        entries = self.entries
        if ts in entries and entries[ts].ack != ack:
            # Another list committed something else here: what we promised above it is void.
            for void in [t for t in entries if t >= ts]:
                del entries[void]
        entries[ts] = entry
        self.cnts = ts + 1
        if ack.kind == DATA:
            self.counters[ack.s] = ack.n + 1
            self.seq = entry.seq + len(entry.bundle.sizes)


def undelivered(stable: object, position: int) -> tuple[list[Delivery], Notice | None]:
    """What is committed on this disk from `position` on, and the gap before it if there is one.

    An engine that restarts goes on after its commit mark; what was recorded as committed and not
    handed over before the crash is the node's to deliver.  What the disk no longer keeps must
    come from elsewhere, and the application is told so.
    """
    if not isinstance(stable, Stable):
        return [], None
    deliveries = [
        Delivery(entry.seq, entry.ack.s, entry.ack.n, entry.bundle, COMMITTED)
        for ts, entry in sorted(stable.entries.items())
        if ts < stable.cnts and entry.ack.kind == DATA and entry.seq >= position
    ]
    first = deliveries[0].seq if deliveries else stable.seq
    gap = GapUnavailable(position, first) if first > position else None
    return deliveries, gap
