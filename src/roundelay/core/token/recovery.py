"""Recovery: obtaining everything below the start of a new list, and serving those who lack it.

What comes from another list than ours is staged until the new list is entered, see `reformation`.

One log, not two.  Disks may be replaced by old copies of themselves.  If that leaves a majority
none of which knows what was committed since, it commits other messages at the same positions, and
nothing it knows could tell it.  But when somebody comes who has the first history, the two can be
seen to differ, and must: a site that recovers shows marks of what it has committed, near its end
and further back; the new token site compares them with its own log.  (Where it no longer keeps
those entries it cannot tell.)  A stamp is given once in a list, so a mark is the stamp and the list
it was given in, with a checksum of the message, should two lists have the same version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.notices import GapUnavailable, GroupBroken
from roundelay.core.token import pdu as p
from roundelay.core.token.part import Part
from roundelay.core.token.phases import BROKEN, NORMAL, O2, S1, S2, W3
from roundelay.core.token.stable import Base

MARKS: Final = 24
"""At distances of 1, 2, 4, … stamps from the end."""


def marks(log: dict[int, p.Entry], upto: int) -> tuple[p.Mark, ...]:
    """Marks of the entries below `upto`, the latest first."""
    shown = []
    for step in range(MARKS):
        entry = log.get(upto - (1 << step))
        if entry is None:
            break
        shown.append(mark(entry))
    return tuple(shown)


def mark(entry: p.Entry) -> p.Mark:
    return p.Mark(entry.ack, crc32(entry.bundle.data) if entry.ack.kind == p.DATA else 0)


def parted(
    log: dict[int, p.Entry], shown: tuple[p.Mark, ...], committed: int
) -> tuple[int, int] | None:
    """The stamps between which `shown` and `log` part ways; None if they agree, as far as known.

    Up to the first they are the same, at the second they are not.
    """
    same, other = 0, -1
    for theirs in shown:
        entry = log.get(theirs.ack.ts)
        if entry is None or theirs.ack.ts >= committed:
            continue  # what is not committed here may yet be given up
        if mark(entry) == theirs:
            same = theirs.ack.ts + 1
            break
        other = theirs.ack.ts
    return None if other < 0 else (same, other)


@dataclass(slots=True, eq=False)
class LogRecovery(Part):
    """How a log is completed before a list is entered."""

    staged: dict[int, p.Entry] = field(default_factory=dict)
    recover_from: int = 0
    gap: p.RecoverData | None = None  # where recovery has to leave something out

    # -- a site that lacks entries -------------------------------------------------------------

    def adopt(self, new: p.NewTl, now: int) -> None:
        """CM-R11: obtain everything below the start of the new list, then commit to it."""
        site = self.site
        log, token_list = site.log, site.token_list
        site.reformation.new_tl = new
        token_list.lives = dict(zip(new.members, new.boots, strict=True))
        self.staged.clear()
        self.gap = None
        # A site of another list may hold stamps that the old list has given away again.
        self.recover_from = log.nts if token_list.version == new.old else log.cnts
        if log.cnts > new.start_ts and site.config.forks:
            at = log.entries.get(new.start_ts)
            self.part(log.seq if at is None else at.seq, log.seq)
            return
        if self.recover_from > new.start_ts:
            raise InvariantBroken(
                f"list {new.v} starts at {new.start_ts}, below our {self.recover_from}"
            )
        self.go_on(now)

    def go_on(self, now: int) -> None:
        """Ask for what is still missing; with nothing missing, enter the list."""
        site, new = self.site, self.site.reformation.new_tl
        log = site.log
        assert new is not None
        if self.recover_from < new.start_ts:
            self.ask(now)
            return
        site.timers.token_due = NEVER
        gap, base = self.gap, None
        if gap is not None:
            base = self._skip(gap)
        elif site.token_list.version != new.old:
            # What we had beyond the commit mark belonged to a list without a say.
            log.roll_back(log.cnts, site.token_list.first)
        for ts in range(log.nts, new.start_ts):
            log.append(self.staged[ts])
        self.gap = None
        self.staged.clear()
        site.token_list.enter(new, base)
        if gap is not None:
            site.commit.commit_upto(min(gap.cnts, log.nts))
        site.reformation.committed(now)

    def ask(self, now: int) -> None:
        """Ask the new token site for what is still missing, again every t_retx."""
        site, new = self.site, self.site.reformation.new_tl
        assert new is not None
        shown = marks(site.log.entries, site.log.cnts) if site.config.forks else ()
        site.send(new.nts_site, p.RecoverReq(new.v, self.recover_from, shown))
        site.timers.token_due = site.arm(now + site.config.retx_ns)

    def on_recover_data(self, pdu: p.RecoverData, source: int, now: int) -> None:
        """CM-R11: take what comes next; commit at once what the sender has committed."""
        site, reformation = self.site, self.site.reformation
        log, version, new = site.log, site.token_list.version, reformation.new_tl
        if new is None or pdu.v != reformation.attempt:
            return
        if source != new.nts_site or version == new.v:
            return
        before = self.recover_from
        same_list = version == new.old
        if pdu.first_available > self.recover_from:
            # CM-R18.  Like everything staged, the gap becomes real with the list.
            self.gap = pdu
            self.staged.clear()
            self.recover_from = pdu.first_available
        for entry in pdu.entries:
            ts = entry.ack.ts
            if ts != self.recover_from or ts >= new.start_ts:
                continue
            self.recover_from = ts + 1
            if self.gap is not None:
                self.staged[ts] = entry
            elif same_list:
                log.append(entry)
            elif ts < pdu.cnts and not self.staged:
                self._commit_foreign(entry)
            else:  # once one is staged, so is what follows: commits have no holes
                self.staged[ts] = entry
        if same_list:
            site.commit.commit_upto(max(log.cnts, min(pdu.cnts, log.nts)))
        if self.recover_from == before:
            return
        if site.phase == S2:
            site.timers.reform_due = site.arm(now + site.config.slave_timeout_ns)
            if self.recover_from < new.start_ts:
                site.send(new.v[1], p.Vote2(new.v, p.PENDING, reformation.inviter))
        else:
            reformation.tries[site.me] = 0
        self.go_on(now)

    def _commit_foreign(self, entry: p.Entry) -> None:
        """An entry committed in another list than ours: it replaces what we have in its place."""
        site = self.site
        log, ts = site.log, entry.ack.ts
        ours = log.entries.get(ts) if ts < log.nts else None
        if ours is None or ours.ack != entry.ack:
            log.roll_back(ts, site.token_list.first)
            log.append(entry)
        site.commit.commit_upto(ts + 1)

    def _skip(self, gap: p.RecoverData) -> Base:
        """CM-R18: the new token site no longer has what we need; go on behind the gap."""
        site = self.site
        log = site.log
        log.roll_back(log.cnts, site.token_list.first)
        if gap.seq > log.seq:
            site.notify(GapUnavailable(log.seq, gap.seq))
        base = log.skip(gap)
        site.own.skip()
        return base

    # -- the new token site --------------------------------------------------------------------

    def on_recover_req(self, pdu: p.RecoverReq, source: int, now: int) -> None:
        """CM-R13: the new token site serves its list while it belongs to it."""
        site = self.site
        log, config, timers, token_list = site.log, site.config, site.timers, site.token_list
        if site.phase == NORMAL:
            if pdu.v != token_list.version:
                return
        elif pdu.v != site.reformation.attempt:
            return  # it is in another attempt by now
        elif site.phase in (S1, S2, W3):
            timers.reform_due = site.arm(now + config.token_timeout_ns)
        differ = parted(log.entries, pdu.marks, log.cnts)
        if differ is not None:
            lo, hi = (log.entries[ts].seq if ts in log.entries else log.nseq for ts in differ)
            site.send(source, p.Forked(pdu.v, lo, hi))
            return
        upto = log.nts if token_list.version != pdu.v else token_list.start_ts
        start = max(pdu.from_ts, log.first_kept)
        entries: list[p.Entry] = []
        size = 0
        for ts in range(start, min(upto, start + config.recover_batch)):
            entry = log.entries[ts]
            size += len(entry.bundle.data)
            if entries and size > config.reply_limit:
                break
            entries.append(entry)
        counters = log.counters_at(start) if start > pdu.from_ts else ()
        first = log.entries.get(start)
        seq = first.seq if first is not None else log.nseq
        site.send(
            source, p.RecoverData(pdu.v, tuple(entries), log.cnts, log.first_kept, counters, seq)
        )

    # -- two histories -------------------------------------------------------------------------

    def on_forked(self, pdu: p.Forked, source: int, now: int) -> None:
        """Two histories have met: whoever belongs to either stops, and says where."""
        if pdu.v in (self.site.reformation.attempt, self.site.token_list.version):
            self.part(pdu.lo, pdu.hi)

    def part(self, lo: int, hi: int) -> None:
        """Stop for good: what this site has committed and what others have cannot both be.

        All stop, unless the list has begun a history of its own: then only who has the other.
        """
        site = self.site
        new, token_list = site.reformation.new_tl, site.token_list
        if new is None or new.history[0] == token_list.history[0]:
            v = site.reformation.attempt or token_list.version
            site.send(EVERYONE, p.Forked(v, lo, hi))
        site.become(BROKEN, 0)
        site.timers.reform_due = site.deadline = NEVER
        self.staged.clear()
        reason = f"two histories: positions {lo} to {hi} differ between members"
        site.notify(GroupBroken(reason))

    def check_invariants(self) -> None:
        """Entries are staged in a row, and for a list that is not entered yet."""
        staged = self.staged
        if not staged:
            return
        if self.site.phase not in (S2, O2):
            raise InvariantBroken(f"{len(staged)} entries are staged in {self.site.phase}")
        if next(reversed(staged)) != self.recover_from - 1:
            raise InvariantBroken(f"recovers from {self.recover_from}, behind what is staged")
        if next(reversed(staged)) - next(iter(staged)) != len(staged) - 1:
            raise InvariantBroken("staged entries are not in a row")
