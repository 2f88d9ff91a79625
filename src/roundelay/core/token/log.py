"""The log of a token site: stamped entries, and the marks that move along it.

Timestamps run over everything the token sites stamped, NULLs included; `seq` counts application
messages only and is dense.  Three marks move along the log, never backwards within a list::

    first_kept ≤ pruned ≤ cnts ≤ nts          cnts: next to commit      nts: next to process

`Commit` has what is known of the other holders, and what that makes safe.  An entry is committed
when L transfers of the token from it on are known to be accepted: then L + 1 sites hold it.  It can
be forgotten when every member of the list has issued a later stamp.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from roundelay.core.engine import COMMITTED, Delivery
from roundelay.core.errors import InvariantBroken
from roundelay.core.limits import UNLIMITED
from roundelay.core.token.ballot import OtherLife
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.part import Part
from roundelay.core.token.pdu import DATA, Entry, RecoverData
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.stable import Base, Committed, Stable

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


@dataclass(slots=True, eq=False)
class Log(Part):
    """The stamped entries that this site has processed."""

    config: TokenConfig = field(init=False)
    writes_stamped: bool = field(init=False)  # when processed, not when committed
    entries: dict[int, Entry] = field(default_factory=dict)
    next_num: dict[int, int] = field(init=False)  # M_i[s]
    last_ts: dict[int, int] = field(default_factory=dict)  # stamp of each source's latest message
    nts: int = 0  # nts_i
    nseq: int = 0  # dense position of the next data entry
    exp: int = -1  # the site expected to issue nts
    cnts: int = 0
    seq: int = 0  # dense position at cnts
    logged: int = 0  # entries below are written, or need not be
    pruned: int = 0  # below: no list member can ask for it
    first_kept: int = 0
    trimmed: int = 0  # below: stable storage was told to forget
    kept_bytes: int = 0  # weight of first_kept … pruned-1, the history
    trim_bytes: int = 0  # weight of trimmed … first_kept-1
    uncommitted: int = 0  # data entries in cnts … nts-1
    retained: int = 0  # data entries in pruned … nts-1: the storage of Table I
    storage_max: int = 0

    def __post_init__(self) -> None:
        self.config = self.site.config
        self.writes_stamped = not self.config.sync_commits
        self.next_num = dict.fromkeys(self.site.group, 0)

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


@dataclass(slots=True, eq=False)
class Commit(Part):
    """Evidence of who holds what, and the commit mark."""

    level: int = field(init=False)  # L
    transfers: deque[int] = field(default_factory=deque)  # stamps ≥ cnts that moved the token
    accepted_upto: int = -1  # newest stamp whose transfer is known to be accepted
    have: dict[int, int] = field(default_factory=dict)  # highest stamp each is known to hold
    issues: deque[tuple[int, int]] = field(default_factory=deque)
    """(have[j], j) in rising order, lazily."""
    confirm_ts: int = -1  # a CONFIRM ahead of our log
    confirm_by: int = -1

    def __post_init__(self) -> None:
        self.level = self.site.config.resilience

    def begin_list(self, members: tuple[int, ...], start_ts: int) -> None:
        """Every member of a new list holds what is below its start."""
        me = self.site.me
        self.accepted_upto = start_ts - 1
        self.confirm_ts = -1
        self.transfers.clear()
        self.have = dict.fromkeys(members, start_ts - 1)
        self.issues = deque((start_ts - 1, member) for member in members if member != me)

    def note_confirmed(self, ts: int, by: int) -> None:
        """Site `by` is known to have accepted the token that stamp `ts` passed to it."""
        self.confirm_ts = -1
        if ts > self.accepted_upto:
            self.accepted_upto = ts
        # Only the newest stamp keeps `issues` in order; an older one is covered by later stamps.
        site = self.site
        if by != site.me and ts == site.log.nts - 1 and self.have[by] < ts:
            self.have[by] = ts
            self.issues.append((ts, by))

    # -- commit ------------------------------------------------------------------------------

    def commit(self) -> None:
        """CM-N15: commit, in timestamp order, what L accepted transfers have made safe.

        A NULL obeys the same rule as a message: committing it early would let `cnts` run over a
        timestamp that the next list gives to a message.  CM-R16: entries below `start_ts` need no
        transfers, since every member of an authorized list holds them.
        """
        site = self.site
        log, token_list, level = site.log, site.token_list, self.level
        if not token_list.authorized:
            return
        upto = log.nts
        if level:
            # The stamp of the L-th accepted transfer from the end, and all before it, are safe.
            transfers, accepted = self.transfers, self.accepted_upto
            known = len(transfers)
            while known and transfers[known - 1] > accepted:
                known -= 1
            upto = transfers[known - level] + 1 if known >= level else 0
            if upto < token_list.start_ts:
                upto = token_list.start_ts
        if upto > log.cnts:
            self.commit_upto(upto)

    def commit_upto(self, upto: int) -> None:
        """The entries below `upto` are part of the agreed log: record them, hand them over."""
        site = self.site
        log, out, me = site.log, site.out, site.me
        entries, persists, deliveries = log.entries, out.persists, out.deliveries
        logged = log.logged
        if logged > log.cnts:
            persists.append(Committed(min(logged, upto)))
        for ts in range(log.cnts, upto):
            entry = entries[ts]
            if ts >= logged:
                persists.append(entry)  # COMMIT
            ack = entry.ack
            if ack.kind:  # DATA
                seq, bundle, s = entry.seq, entry.bundle, ack.s
                log.uncommitted -= 1
                log.seq = seq + len(bundle.sizes)
                kind = Delivery if s != me or site.own.let_go(ack) else OtherLife
                deliveries.append(kind(seq, s, ack.n, bundle, COMMITTED))
        log.cnts = upto
        if upto > logged:
            log.logged = upto
        transfers = self.transfers
        while transfers and transfers[0] < upto:
            transfers.popleft()

    def prune(self) -> None:
        """CM-N20: forget what every list member holds and has seen committed, less the history."""
        issues, have, log = self.issues, self.have, self.site.log
        floor = log.cnts
        while issues:
            held, member = issues[0]
            if have[member] == held:
                if held < floor:
                    floor = held + 1
                break
            issues.popleft()  # that site has been heard to hold more since
        if floor > log.pruned:
            log.forget(floor)

    def check_invariants(self) -> None:
        """In a list: nobody is known to hold what is not stamped."""
        site = self.site
        if site.phase != NORMAL:
            return  # what was known of the list before is void
        nts = site.log.nts
        transfers = self.transfers
        if transfers and not site.log.cnts <= transfers[0] <= transfers[-1] < nts:
            raise InvariantBroken(f"transfers {list(transfers)} are not in cnts … nts-1")
        if self.accepted_upto >= nts:
            raise InvariantBroken(f"the transfer {self.accepted_upto} is accepted, nts is {nts}")
        if self.issues and self.issues[-1][0] >= nts:
            raise InvariantBroken(f"{self.issues[-1]} holds more than there is: nts is {nts}")
        if 0 <= self.confirm_ts < nts:
            raise InvariantBroken(f"the confirmation of {self.confirm_ts} waits, nts is {nts}")
