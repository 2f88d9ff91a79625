"""The state of a token site, and the steps both phases share: commit, prune, roll back.

The normal phase (`normal.py`) extends the log by one stamped entry at a time; the reformation
(`reform.py`) freezes it, repairs it and starts a new list on it.  Both do so through the methods
of this class, so that what a commit or a discarded entry means is written once.

Timestamps run over everything the token sites stamped, NULLs included; `seq` counts application
messages only and is dense.  Three marks move along the log, never backwards within a list::

    first_kept ≤ pruned ≤ cnts ≤ nts          cnts: next to commit      nts: next to process
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, NEVER, Delivery, Engine, Notice, Pdu
from roundelay.core.errors import InvariantBroken
from roundelay.core.limits import UNLIMITED
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.lives import OtherLife, Seen, note
from roundelay.core.token.pdu import (
    AT_START,
    DATA,
    NO_HISTORY,
    NO_LIST,
    Ack,
    AckRun,
    B,
    Entry,
    History,
    NewTl,
    RecoverData,
    Version,
    Vote1,
)
from roundelay.core.token.stable import Base, Committed, Forgot, Joined, Listed, Stable, Trimmed

# Phases of a site (CM84 Fig. 5).  What a site answers to depends on its phase alone.
NORMAL: Final = "NORMAL"  # in a list, sending, stamping, committing
OUT: Final = "OUT"  # left a list or an attempt, waiting at random before originating
O1: Final = "O1"  # originator, collecting votes on its invitation
O2: Final = "O2"  # originator, announcing the new list
S1: Final = "S1"  # slave, accepted an invitation
S2: Final = "S2"  # slave, recovering what the announced list requires
BROKEN: Final = "BROKEN"  # its history and that of others differ: it does nothing more
W3: Final = "W3"  # new token site, waiting for its token

TRIM_EVERY: Final = 256
TRIM_BYTES: Final = 1 << 22
"""Entries, or bytes of them, after which stable storage is told to forget: one record for many."""

LISTS_KEPT: Final = 1024
"""Lists of this life that are remembered; nobody commits what was stamped so many lists ago."""

ENTRY_COST: Final = 512
MESSAGE_COST: Final = 8
"""What an entry takes in memory beyond its bytes, and for each of its messages, about."""


def weight(entry: Entry) -> int:
    """The memory that keeping `entry` takes, about."""
    bundle = entry.bundle
    return len(bundle.data) + MESSAGE_COST * len(bundle.sizes) + ENTRY_COST


class TokenState(Engine):
    """Fields of one site; the paper's names are in the comments."""

    __slots__ = (
        "accepted_upto", "amnesia", "attempt", "auth_due", "authorized", "beacon_due",
        "beacon_wait", "blocked",
        "boot", "cnts", "config", "confirm_by", "confirm_ts", "current", "exp", "failures",
        "first", "first_kept", "floor", "gap", "have", "heard", "history", "hold_due", "hold_ts",
        "holding", "inviter", "issues", "kept_bytes", "known_top", "last_ts", "lives", "log",
        "logged", "logs", "max_joined", "members", "mine", "new_tl", "next_num", "nseq", "nts",
        "outstanding", "own", "own_base", "past",
        "pass_ack", "pass_due", "pass_sent", "pass_silent", "pass_time", "pass_total",
        "pass_vary", "pass_wait", "passing", "phase", "progress", "pruned", "qb", "qc",
        "recover_from", "reform_due", "request_due", "requests", "resilience", "retained",
        "rng", "seen", "seen_version", "send_due", "send_last", "send_silent",
        "send_total", "send_wait", "seq", "shown", "silence_due", "since_data", "staged",
        "start_seq", "start_ts", "storage_max", "successor", "tl", "token_due", "token_tries",
        "transfers", "tries", "trim_bytes", "trimmed", "turn", "uncommitted", "votes", "waiting",
        "waiting_bytes", "wanted_upto", "wiped", "yes_votes",
    )  # fmt: skip

    def __init__(self, me: int, group: tuple[int, ...], config: TokenConfig, rng: Random) -> None:
        super().__init__(me, tuple(sorted(group)))
        self.config = config
        self.rng = rng
        self.resilience = config.resilience  # L
        self.history = config.history
        self.logs = not config.sync_commits  # entries are written when they are processed
        self.phase = OUT

        # The list this site is committed to.
        self.tl: Version = NO_LIST  # tl_i
        self.members: tuple[int, ...] = ()  # in ring order
        self.successor: dict[int, int] = {}
        self.start_ts = 0
        self.start_seq = 0
        self.first = -1  # its first token site
        self.authorized = False  # its token is known to exist
        self.past: History = NO_HISTORY  # the history of the group that it belongs to
        self.max_joined: Version = NO_LIST  # highest version ever joined, aborted ones too
        self.seen_version = 0  # highest version # heard of

        # The log.
        self.next_num: dict[int, int] = dict.fromkeys(self.group, 0)  # M_i[s]
        self.nts = 0  # nts_i
        self.nseq = 0  # dense position of the next data entry
        self.log: dict[int, Entry] = {}
        self.last_ts: dict[int, int] = {}  # stamp of each source's latest message
        self.exp = -1  # the site expected to issue nts
        self.qb: dict[tuple[int, int], Bundle] = {}  # Q_B: received, not stamped
        self.qc: dict[int, Ack] = {}  # Q_c: acknowledgements that must wait
        self.cnts = 0
        self.logged = 0  # entries below are written, or need not be
        self.floor = 0  # a recorder beside this site has all positions below on disk
        self.seq = 0  # dense position at cnts
        self.pruned = 0  # below: no list member can ask for it
        self.first_kept = 0
        self.trimmed = 0  # below: stable storage was told to forget
        self.kept_bytes = 0  # weight of first_kept … pruned-1, the history
        self.trim_bytes = 0  # weight of trimmed … first_kept-1
        self.uncommitted = 0  # data entries in cnts … nts-1
        self.retained = 0  # data entries in pruned … nts-1: the storage of Table I
        self.storage_max = 0

        # What is known of the other holders.
        self.transfers: deque[int] = deque()  # stamps ≥ cnts that moved the token
        self.accepted_upto = -1  # newest stamp whose transfer is known to be accepted
        self.have: dict[int, int] = {}  # highest stamp each member is known to hold
        self.issues: deque[tuple[int, int]] = deque()  # (have[j], j) in rising order, lazily
        self.confirm_ts = -1  # a CONFIRM ahead of our log
        self.confirm_by = -1

        # The token.
        self.holding = False
        self.hold_ts = -1  # the stamp that brought it
        self.turn = 0  # acknowledgements issued since it came
        self.shown = False  # others can have seen that we accepted it
        self.since_data = config.kr  # transfers since the last data acknowledgement (K_r)
        self.passing = -1  # stamp with which it was passed on, acceptance unseen
        self.pass_ack: Ack | AckRun | None = None
        self.pass_silent = self.pass_total = 0
        self.pass_sent = 0
        self.pass_wait = config.pass_ns
        self.pass_time = self.pass_vary = 0  # how long transfers take: mean, mean deviation

        # Own messages: `own` has numbers own_base, own_base + 1, …; `waiting` has none yet.
        self.own: deque[Bundle] = deque()
        self.own_base = 0
        self.mine: dict[Version, None] = {}  # lists that this life was in, the latest ones
        self.waiting: deque[Bundle] = deque()
        self.waiting_bytes = 0
        self.outstanding = -1  # number on its way to a stamp
        self.current: B | None = None
        self.send_last = self.send_silent = self.send_total = 0
        self.send_wait = config.resend_ns  # t_b of the message that is out

        # Missing items: stamp, or (source, number) → [due, last sent, silent, total, doublings].
        self.requests: dict[int | tuple[int, int], list[int]] = {}
        self.known_top = -1  # highest stamp known to exist
        self.wanted_upto = -1  # stamps up to here were looked at

        # Reformation.
        self.attempt: Version | None = None
        self.votes: dict[int, Vote1] = {}
        self.yes_votes: set[int] = set()
        self.tries: dict[int, int] = {}
        self.new_tl: NewTl | None = None
        self.staged: dict[int, Entry] = {}
        self.recover_from = 0
        self.gap: RecoverData | None = None  # where recovery has to leave something out
        self.boot = rng.getrandbits(32)
        self.inviter = 0  # boot number of the originator whose attempt we are in
        self.lives: dict[int, int] = {}  # boot numbers of the list, or of the one announced
        self.seen: Seen = {}  # the last list known of each site
        self.token_tries = 0
        self.failures = 0  # consecutive ones, for the back-off
        self.amnesia = False  # restarted with loss of uncommitted entries
        self.wiped = False  # lost stable storage too
        self.blocked: tuple[str, tuple[int, ...], tuple[int, ...]] | None = None  # see `block`

        # Time: when each timer is due.  `heard`, `progress`: a timer that restarts with every
        # arrival is not moved each time; it looks at these when it comes.
        self.heard = 0
        self.progress = 0
        self.beacon_wait = config.idle_ns  # until the next beacon after this one
        self.send_due = self.hold_due = self.pass_due = self.request_due = NEVER
        self.beacon_due = self.silence_due = NEVER
        self.reform_due = self.token_due = self.auth_due = NEVER

    # -- small helpers ---------------------------------------------------------------------

    def send(self, destination: int, pdu: Pdu) -> None:
        self.out.sends.append((destination, pdu))

    def notify(self, kind: str, *info: object) -> None:
        self.out.notices.append(Notice(kind, info))

    def arm(self, due: int) -> int:
        """Make sure `on_timer` is called by `due`."""
        if due < self.deadline:
            self.deadline = due
        return due

    def patience(self, most: int) -> int:
        """How long to wait for an answer before a repetition: `most`, or less where transfers of
        the token are seen to take less (`adapt_ns`)."""
        least = self.config.adapt_ns
        if not least or not self.pass_time:
            return most
        return min(most, max(least, self.pass_time + 2 * self.pass_vary))

    def transfer_took(self, took: int) -> None:
        """Learn from a transfer that needed no repetition: only then is it known which was
        answered (as for the round trips of TCP)."""
        if not self.pass_time:
            self.pass_time, self.pass_vary = max(1, took), took // 2
            return
        off = took - self.pass_time
        self.pass_vary += (abs(off) - self.pass_vary) // 4
        self.pass_time = max(1, self.pass_time + off // 8)

    def join_version(self, v: Version) -> None:
        """Promise never to join `v` or a lower list again; durable before any vote leaves."""
        self.max_joined = v
        self.seen_version = max(self.seen_version, v[0])
        self.out.persists.append(Joined(v))

    # -- commit ----------------------------------------------------------------------------

    def commit(self) -> None:
        """CM-N15: commit, in timestamp order, what L accepted transfers have made safe.

        A NULL obeys the same rule as a message: committing it early would let `cnts` run over a
        timestamp that the next list gives to a message.  CM-R16: entries below `start_ts` need no
        transfers, since every member of an authorized list holds them.
        """
        if not self.authorized:
            return
        level = self.resilience
        upto = self.nts
        if level:
            # The stamp of the L-th accepted transfer from the end, and all before it, are safe.
            transfers, accepted = self.transfers, self.accepted_upto
            known = len(transfers)
            while known and transfers[known - 1] > accepted:
                known -= 1
            upto = transfers[known - level] + 1 if known >= level else 0
            if upto < self.start_ts:
                upto = self.start_ts
        if upto > self.cnts:
            self.commit_upto(upto)

    def commit_upto(self, upto: int) -> None:
        """The entries below `upto` are part of the agreed log: record them, hand them over."""
        log, out = self.log, self.out
        persists, deliveries = out.persists, out.deliveries
        logged = self.logged
        if logged > self.cnts:
            persists.append(Committed(min(logged, upto)))
        for ts in range(self.cnts, upto):
            entry = log[ts]
            if ts >= logged:
                persists.append(entry)  # COMMIT
            ack = entry.ack
            if ack.kind:  # DATA
                seq, bundle, s = entry.seq, entry.bundle, ack.s
                self.uncommitted -= 1
                self.seq = seq + len(bundle.sizes)
                kind = Delivery if s != self.me or self.let_go(ack) else OtherLife
                deliveries.append(kind(seq, s, ack.n, bundle, COMMITTED))
        self.cnts = upto
        if upto > logged:
            self.logged = upto
        transfers = self.transfers
        while transfers and transfers[0] < upto:
            transfers.popleft()

    def let_go(self, ack: Ack) -> bool:
        """CM-N5: own messages are kept until they are committed.  Whether this is one of them.

        What another life of this site sent is none of ours, whatever its number; it was stamped in
        a list that this life was not in.  Numbers alone do not tell: one whose stamp came to
        nothing is given again.
        """
        if ack.tl not in self.mine:
            return False
        if self.own:
            self.own.popleft()
            self.own_base += 1
        else:
            self.own_base = max(self.own_base, ack.n + 1)
        return True

    def renumber(self) -> None:
        """A list begins: own messages that have no stamp get the numbers that come next.

        Those that have one keep it, and come first in `own`.  Where another life of this site has
        stamped messages behind them, `own_base` is above their numbers: it is such that the first
        one without a stamp has the next number.
        """
        ours = 0
        for ts in range(self.cnts, self.nts):
            ack = self.log[ts].ack
            ours += ack.kind == DATA and ack.s == self.me and ack.tl in self.mine
        self.own_base = self.next_num[self.me] - (ours if self.own else 0)

    # -- the log ---------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Put `entry` at nts, outside the normal phase: the log grows, nothing else happens."""
        ack = entry.ack
        if ack.ts != self.nts:
            raise InvariantBroken(f"entry {ack.ts} appended at {self.nts}")
        self.log[ack.ts] = entry
        self.nts = ack.ts + 1
        self.exp = ack.next
        if ack.kind == DATA:
            self.next_num[ack.s] = ack.n + 1
            self.last_ts[ack.s] = ack.ts
            self.nseq = entry.seq + len(entry.bundle)
            self.uncommitted += 1
            self.retained += 1

    def roll_back(self, ts: int) -> None:
        """Discard the uncommitted entries from `ts` on: their list has lost its say."""
        if ts < self.cnts:
            raise InvariantBroken(f"roll back to {ts} below the commit mark {self.cnts}")
        for t in range(self.nts - 1, ts - 1, -1):
            entry = self.log.pop(t)
            if entry.ack.kind == DATA:
                self.next_num[entry.ack.s] = entry.ack.n
                self.nseq = entry.seq
                self.uncommitted -= 1
                self.retained -= 1
        self.nts = ts
        self.logged = min(self.logged, ts)
        before = self.log.get(ts - 1)
        self.exp = before.ack.next if before else self.first

    def counters_at(self, ts: int) -> tuple[tuple[int, int], ...]:
        """M as it was before entry `ts`, which the log must still hold."""
        counters = dict(self.next_num)
        for t in range(self.nts - 1, ts - 1, -1):
            ack = self.log[t].ack
            if ack.kind == DATA:
                counters[ack.s] = ack.n
        return tuple(sorted(counters.items()))

    def prune(self) -> None:
        """CM-N20: forget what every list member holds and has seen committed, less the history."""
        issues, have = self.issues, self.have
        floor = self.cnts
        while issues:
            held, site = issues[0]
            if have[site] == held:
                if held < floor:
                    floor = held + 1
                break
            issues.popleft()  # that site has been heard to hold more since
        ts = self.pruned
        if ts >= floor:
            return
        log = self.log
        while ts < floor:
            if log[ts].ack.kind:  # DATA
                self.retained -= 1
            ts += 1
        held_from, self.pruned = self.pruned, ts
        # The last committed entry always stays: its `next` says who is expected at cnts.
        keep_from = ts - self.history
        if keep_from >= self.cnts:
            keep_from = self.cnts - 1
        if self.config.history_bytes < UNLIMITED:
            keep_from = self.weigh(held_from, keep_from)
        first = self.first_kept
        while first < keep_from:
            del log[first]
            first += 1
        self.first_kept = first

    def weigh(self, held_from: int, keep_from: int) -> int:
        """Entries from `held_from` up to `pruned` have become history, those below `keep_from` are
        to go: which else must go, so that what is kept has its bound in bytes, too?"""
        log, kept = self.log, self.kept_bytes
        for ts in range(held_from, self.pruned):
            kept += weight(log[ts])
        most, last = self.config.history_bytes, min(self.pruned, self.cnts - 1)
        first = self.first_kept
        while first < keep_from or (kept > most and first < last):
            gone = weight(log[first])
            kept -= gone
            self.trim_bytes += gone
            first += 1
        self.kept_bytes = kept
        return first

    def trim(self) -> None:
        """Tell stable storage what is no longer kept.

        Only in a batch that delivers nothing yet: a crash between persisting and delivering must
        find on disk what the application has not been given.
        """
        enough = self.first_kept - self.trimmed >= TRIM_EVERY or self.trim_bytes >= TRIM_BYTES
        if enough and not self.out.deliveries:
            self.trimmed = self.first_kept
            self.trim_bytes = 0
            self.out.persists.append(Trimmed(self.first_kept))

    # -- a new list ------------------------------------------------------------------------

    def enter_list(
        self,
        tl: Version,
        members: tuple[int, ...],
        start_ts: int,
        first: int,
        base: Base | None = None,
        past: History = NO_HISTORY,
        floor: int = 0,
        boots: tuple[int, ...] = (),
    ) -> None:
        """Commit to list `tl`: end of CM-R11.  Durable before the vote that says so."""
        if self.nts != start_ts:
            raise InvariantBroken(f"enters a list that starts at {start_ts} with nts {self.nts}")
        if past[2] == AT_START:
            past = (past[0], past[1], max(self.nseq, floor))
        promised = tuple(self.log[ts] for ts in range(self.cnts, start_ts))
        self.out.persists.append(Listed(tl, members, start_ts, first, promised, base, past, boots))
        self.logged = start_ts
        self.past = past
        self.nseq = max(self.nseq, past[2])
        note(self.seen, tl, members, boots)
        self.mine[tl] = None
        if len(self.mine) > LISTS_KEPT:
            del self.mine[next(iter(self.mine))]
        self.take_list(tl, members, start_ts, first)

    def take_list(self, tl: Version, members: tuple[int, ...], start_ts: int, first: int) -> None:
        self.tl, self.members = tl, members
        self.start_ts, self.first = start_ts, first
        self.start_seq = self.nseq
        self.successor = {site: members[(i + 1) % len(members)] for i, site in enumerate(members)}
        self.exp = first
        self.authorized = False
        self.amnesia = False
        self.qb.clear()
        self.qc.clear()
        self.requests.clear()
        self.request_due = NEVER
        self.known_top = self.wanted_upto = self.accepted_upto = start_ts - 1
        self.confirm_ts = -1
        self.transfers.clear()
        self.have = dict.fromkeys(members, start_ts - 1)
        self.issues = deque((start_ts - 1, site) for site in members if site != self.me)
        self.since_data = self.config.kr
        self.outstanding = -1
        self.current = None
        self.renumber()

    def freeze(self) -> None:
        """Stop all work of the list, for good: the resiliency test counts on it (CM84 §5.1)."""
        self.holding = False
        self.passing = -1
        self.pass_ack = None
        self.outstanding = -1
        self.current = None
        self.requests.clear()
        self.send_due = self.hold_due = self.pass_due = self.request_due = NEVER
        self.beacon_due = self.silence_due = self.token_due = self.auth_due = NEVER

    def restore(self, stable: Stable) -> None:
        """CM-R17: what is left after a crash: committed entries, and those promised in a vote."""
        self.max_joined = stable.max_joined
        self.seen_version = max(0, stable.max_joined[0])
        self.cnts = stable.cnts
        self.seq = stable.seq
        self.next_num.update(stable.counters)
        self.first_kept = self.trimmed = min(stable.entries, default=stable.cnts)
        self.pruned = stable.cnts
        self.log = {ts: e for ts, e in sorted(stable.entries.items()) if ts < stable.cnts}
        self.nts, self.nseq = stable.cnts, stable.seq
        for entry in self.log.values():
            self.kept_bytes += weight(entry)
            if entry.ack.kind == DATA:
                self.last_ts[entry.ack.s] = entry.ack.ts
        self.first = stable.first
        self.past = stable.history
        ts = stable.cnts
        # What was promised may be void, since another list committed something else in its place.
        while ts in stable.entries:
            self.append(stable.entries[ts])
            ts += 1
        self.logged = ts
        if ts >= stable.start_ts:
            self.nseq = max(self.nseq, stable.history[2])
        if stable.tl != NO_LIST:
            nts = self.nts
            self.take_list(stable.tl, stable.members, stable.start_ts, stable.first)
            before = self.log.get(nts - 1)
            if self.nts > stable.start_ts and before is not None:
                self.exp = before.ack.next
        # With L = 0 whatever was processed was committed, so nothing can have been forgotten.
        self.amnesia = self.resilience >= 1 and (stable.forgot or not stable.whole)
        if self.amnesia and not stable.forgot:
            self.out.persists.append(Forgot())
        self.wiped = stable.wiped
        self.seen = dict(stable.seen)

    # -- bounds ----------------------------------------------------------------------------

    def usage(self) -> dict[str, int]:
        """How much of everything is held at the moment (invariant I6)."""
        return {
            "own": len(self.own) + len(self.waiting),
            "qb": len(self.qb),
            "qc": len(self.qc),
            "requests": len(self.requests),
            "log": len(self.log),
            "staged": len(self.staged),
        }

    def caps(self) -> dict[str, int]:
        """The bound of each of those."""
        config = self.config
        # A rotation of the token, with NULLs, before and after a list change.
        turns = 4 * (len(self.group) + self.resilience + 1) * (config.kw + 1)
        return {
            "own": config.own_limit,
            "qb": config.qb_limit + 2 + (config.request_burst if config.bulk else 0),
            "qc": config.window + 1,
            "requests": config.request_burst + 1,
            "log": config.history + TRIM_EVERY + turns,
            "staged": config.history + TRIM_EVERY + turns,
        }
