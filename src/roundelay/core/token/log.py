"""The log of a token site: stamped entries, and the marks that move along it.

Timestamps run over everything the token sites stamped, NULLs included; `seq` counts application
messages only and is dense.  Three marks move along the log, never backwards within a list::

    first_kept ≤ pruned ≤ cnts ≤ nts          cnts: next to commit      nts: next to process

The log neither sends nor delivers: what a commit means to others is in `commit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from roundelay.core.errors import InvariantBroken
from roundelay.core.limits import UNLIMITED
from roundelay.core.token.pdu import DATA, Entry, RecoverData
from roundelay.core.token.stable import Base, Stable

if TYPE_CHECKING:
    from roundelay.core.token.site import TokenSite

TRIM_EVERY: Final = 256
TRIM_BYTES: Final = 1 << 22
"""Entries, or bytes of them, after which stable storage is told to forget: one record for many."""

ENTRY_COST: Final = 512
MESSAGE_COST: Final = 8
"""What an entry takes in memory beyond its bytes, and for each of its messages, about."""


def weight(entry: Entry) -> int:
    """The memory that keeping `entry` takes, about."""
    bundle = entry.bundle
    return len(bundle.data) + MESSAGE_COST * len(bundle.sizes) + ENTRY_COST


class Log:
    """The stamped entries that this site has processed."""

    __slots__ = (
        "cnts",
        "config",
        "entries",
        "exp",
        "first_kept",
        "kept_bytes",
        "last_ts",
        "logged",
        "next_num",
        "nseq",
        "nts",
        "pruned",
        "retained",
        "seq",
        "storage_max",
        "trim_bytes",
        "trimmed",
        "uncommitted",
        "writes_stamped",
    )

    def __init__(self, site: TokenSite) -> None:
        self.config = site.config
        self.writes_stamped = not site.config.sync_commits  # when processed, not when committed
        self.entries: dict[int, Entry] = {}
        self.next_num: dict[int, int] = dict.fromkeys(site.group, 0)  # M_i[s]
        self.last_ts: dict[int, int] = {}  # stamp of each source's latest message
        self.nts = 0  # nts_i
        self.nseq = 0  # dense position of the next data entry
        self.exp = -1  # the site expected to issue nts
        self.cnts = 0
        self.seq = 0  # dense position at cnts
        self.logged = 0  # entries below are written, or need not be
        self.pruned = 0  # below: no list member can ask for it
        self.first_kept = 0
        self.trimmed = 0  # below: stable storage was told to forget
        self.kept_bytes = 0  # weight of first_kept … pruned-1, the history
        self.trim_bytes = 0  # weight of trimmed … first_kept-1
        self.uncommitted = 0  # data entries in cnts … nts-1
        self.retained = 0  # data entries in pruned … nts-1: the storage of Table I
        self.storage_max = 0

    # -- growing and shrinking ---------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Put `entry` at nts."""
        ack = entry.ack
        ts = ack.ts
        if ts != self.nts:
            raise InvariantBroken(f"entry {ts} appended at {self.nts}")
        self.entries[ts] = entry
        self.nts = ts + 1
        self.exp = ack.next
        if ack.kind:  # DATA
            s = ack.s
            self.next_num[s] = ack.n + 1
            self.last_ts[s] = ts
            self.nseq = entry.seq + len(entry.bundle.sizes)
            self.uncommitted += 1
            self.retained += 1

    def roll_back(self, ts: int, first: int) -> None:
        """Discard the uncommitted entries from `ts` on: their list has lost its say.

        `first` is expected to go on where no entry before `ts` says who is.
        """
        if ts < self.cnts:
            raise InvariantBroken(f"roll back to {ts} below the commit mark {self.cnts}")
        for t in range(self.nts - 1, ts - 1, -1):
            entry = self.entries.pop(t)
            if entry.ack.kind == DATA:
                self.next_num[entry.ack.s] = entry.ack.n
                self.nseq = entry.seq
                self.uncommitted -= 1
                self.retained -= 1
        self.nts = ts
        self.logged = min(self.logged, ts)
        before = self.entries.get(ts - 1)
        self.exp = before.ack.next if before else first

    def counters_at(self, ts: int) -> tuple[tuple[int, int], ...]:
        """M as it was before entry `ts`, which the log must still hold."""
        counters = dict(self.next_num)
        for t in range(self.nts - 1, ts - 1, -1):
            ack = self.entries[t].ack
            if ack.kind == DATA:
                counters[ack.s] = ack.n
        return tuple(sorted(counters.items()))

    # -- forgetting --------------------------------------------------------------------------

    def forget(self, floor: int) -> None:
        """CM-N20: entries below `floor` are history; of that, keep as much as is configured."""
        entries, config, held_from = self.entries, self.config, self.pruned
        ts = held_from
        while ts < floor:
            if entries[ts].ack.kind:  # DATA
                self.retained -= 1
            ts += 1
        self.pruned = floor
        # The last committed entry always stays: its `next` says who is expected at cnts.
        keep_from = floor - config.history
        if keep_from >= self.cnts:
            keep_from = self.cnts - 1
        if config.history_bytes < UNLIMITED:
            keep_from = self._weigh(held_from, keep_from)
        first = self.first_kept
        while first < keep_from:
            del entries[first]
            first += 1
        self.first_kept = first

    def _weigh(self, held_from: int, keep_from: int) -> int:
        """Entries from `held_from` up to `pruned` have become history, those below `keep_from` are
        to go: which else must go, so that what is kept has its bound in bytes, too?"""
        entries, kept = self.entries, self.kept_bytes
        for ts in range(held_from, self.pruned):
            kept += weight(entries[ts])
        most, last = self.config.history_bytes, min(self.pruned, self.cnts - 1)
        first = self.first_kept
        while first < keep_from or (kept > most and first < last):
            gone = weight(entries[first])
            kept -= gone
            self.trim_bytes += gone
            first += 1
        self.kept_bytes = kept
        return first

    def trim(self) -> bool:
        """Whether it is time to tell stable storage that all below `trimmed` is no longer kept."""
        enough = self.first_kept - self.trimmed >= TRIM_EVERY or self.trim_bytes >= TRIM_BYTES
        if enough:
            self.trimmed = self.first_kept
            self.trim_bytes = 0
        return enough

    # -- beginning elsewhere -----------------------------------------------------------------

    def skip(self, gap: RecoverData) -> Base:
        """CM-R18: go on behind a gap, with nothing of what is here."""
        ts = gap.first_available
        self.entries.clear()
        self.last_ts.clear()
        self.uncommitted = self.retained = 0
        self.cnts = self.nts = ts
        self.pruned = self.first_kept = self.trimmed = ts
        self.kept_bytes = self.trim_bytes = 0
        self.seq = self.nseq = gap.seq
        self.next_num = dict.fromkeys(self.next_num, 0) | dict(gap.counters)
        self.exp = gap.entries[0].ack.by
        return Base(ts, gap.counters, gap.seq)

    def restore(self, stable: Stable) -> None:
        """CM-R17: what is left after a crash: committed entries, and those promised in a vote."""
        self.cnts = self.pruned = self.nts = stable.cnts
        self.seq = self.nseq = stable.seq
        self.next_num.update(stable.counters)
        self.first_kept = self.trimmed = min(stable.entries, default=stable.cnts)
        self.entries = {ts: e for ts, e in sorted(stable.entries.items()) if ts < stable.cnts}
        for entry in self.entries.values():
            self.kept_bytes += weight(entry)
            if entry.ack.kind == DATA:
                self.last_ts[entry.ack.s] = entry.ack.ts
        # What was promised may be void, since another list committed something else in its place.
        while self.nts in stable.entries:
            self.append(stable.entries[self.nts])
        self.logged = self.nts
        if self.nts >= stable.start_ts:
            self.nseq = max(self.nseq, stable.history[2])

    def check_invariants(self) -> None:
        """The marks are in order, and the entries between them are here."""
        if not self.trimmed <= self.first_kept <= self.pruned <= self.cnts <= self.nts:
            raise InvariantBroken(
                f"trimmed {self.trimmed} ≤ first_kept {self.first_kept} ≤ pruned {self.pruned} ≤ "
                f"cnts {self.cnts} ≤ nts {self.nts} does not hold"
            )
        if not self.cnts <= self.logged <= self.nts:
            raise InvariantBroken(f"logged {self.logged}, not in {self.cnts} … {self.nts}")
        if len(self.entries) != self.nts - self.first_kept:
            raise InvariantBroken(
                f"{len(self.entries)} entries from {self.first_kept} up to {self.nts}"
            )
        if not 0 <= self.uncommitted <= self.nts - self.cnts:
            raise InvariantBroken(f"{self.uncommitted} uncommitted messages")
        if not self.uncommitted <= self.retained <= self.nts - self.pruned:
            raise InvariantBroken(f"{self.retained} messages retained")
        if self.seq > self.nseq:
            raise InvariantBroken(f"position {self.seq} at cnts, {self.nseq} at nts")
