"""The reformation phase (CM84 §5): agree on a new token list when a site fails or comes back.

    originator   O1 ── all voted, tests pass ──▶ O2 ── all committed ──▶ NORMAL, sends NEW_TOKEN
    slave        S1 ── NEW_TL ──▶ S2 ── recovered, votes ──▶ NORMAL, not authorized yet
    new token site                               S2 ──▶ W3 ── NEW_TOKEN ──▶ NORMAL, holds the token
    any of them ── abort, refusal or time-out ──▶ OUT ── random wait ──▶ O1

A site that joins an attempt has left its old list for good.  That freeze, a majority, rising
versions and one surviving witness of the old list's last token sites make sure that at most one
list can commit, and that it starts with everything ever committed.

Rules CM-R1 to CM-R18; the numbers CM-R6 and CM-R7 are not in use (what they said of phase III and
of its failure is part of CM-R5 and CM-R8).

Deviations from the paper
- Votes, joined versions and entries below the start of the new list are durable before they are
  promised (CM-R9, CM-R11): the paper's "discard on recovery" breaks its own argument.
- A restarted site is no witness of what it forgot (`strict`, CM-R3); one whose disk has all that it
  ever processed has forgotten nothing.  One that lost its disk is not one of the half of the group
  that must remember, until it has entered a list again.  `docs/token.md`.
- Recovery into a list built on another one than ours is staged: our own uncommitted entries are
  kept until the new list is committed to, so that an aborted attempt costs us no evidence.  The
  design's rule discards them first; then a later attempt could take us for a witness that never
  processed them.  `tests/core/test_token_reform.py`.
- NEW_TOKEN is repeated; an abort goes to everybody; a list without a token times out (CM-R15).
- A list is made of lives, not of sites alone: two processes of one name are not one (`lives`).
  `tests/core/test_token_lives.py`.
- The longest wait before another attempt doubles 3 times at most, not 6 (CM-R8): a group must not
  stand still for ten seconds because two sites have started at once twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.token.forks import marks, parted
from roundelay.core.token.lives import UNKNOWN, entered, judged
from roundelay.core.token.pdu import (
    NO,
    NO_LIST,
    PENDING,
    YES,
    Abort,
    Entry,
    Forked,
    Invite,
    NewTl,
    NewToken,
    RecoverData,
    RecoverReq,
    Vote1,
    Vote2,
)
from roundelay.core.token.stable import Base
from roundelay.core.token.state import BROKEN, NORMAL, O1, O2, OUT, S1, S2, W3
from roundelay.core.token.voters import Voters

ANOTHER_LIFE: Final = "from or for another life of its site"

VERSION_MAX: Final = (1 << 32) - 2
"""The number of a list version has four bytes on the wire, the highest of which means no list."""


BACKOFFS: Final = 3
"""How often the longest wait before another attempt doubles.

Who wakes first invites the others, who then wait for it: 32 t_retx have room for many.
"""


class Reformation(Voters):
    """What a site does between two lists."""

    __slots__ = ()

    # -- originator ------------------------------------------------------------------------

    def start_reformation(self, now: int, why: str) -> None:
        """CM-R1: invite everybody to a list with a version higher than any seen."""
        self.freeze()
        v = (max(self.seen_version, self.max_joined[0]) + 1, self.me)
        if v[0] > VERSION_MAX:
            # Nobody reforms so often: somebody forged a version.  Better blocked than broken.
            self.block("no higher list version is left")
            self.back_off(now)
            return
        self.join_version(v)
        self.attempt = v
        self.inviter = self.boot
        self.new_tl = None
        self.staged.clear()
        self.phase = O1
        self.votes = {self.me: self.vote()}
        self.tries = {}
        self.reform_due = self.arm(now + self.config.retx_ns)
        for site in self.group:
            if site != self.me:
                self.send(site, Invite(v, self.boot))
        if len(self.votes) == len(self.group):
            self.judge(now)

    def vote(self) -> Vote1:
        assert self.attempt is not None
        # `exp` may come from an entry that another list committed; then nobody will use it.
        exp = self.exp if self.exp in self.members else self.first
        return Vote1(
            self.attempt, True, self.tl, self.members, self.nts, exp,
            self.amnesia, self.wiped, self.boot, self.max_joined, self.past, self.floor,
            self.inviter, entered(self.seen),
        )  # fmt: skip

    def on_vote1(self, pdu: Vote1, source: int, now: int) -> None:
        """CM-R2: one refusal ends the attempt."""
        if self.phase != O1 or pdu.v != self.attempt:
            return
        if pdu.inviter not in (UNKNOWN, self.boot):
            self.drop(ANOTHER_LIFE)
            return
        if not pdu.yes:
            self.seen_version = max(self.seen_version, pdu.max_joined[0])
            self.fail(now)
            return
        self.votes[source] = pdu
        if len(self.votes) == len(self.group):
            self.judge(now)

    def on_invite_timer(self, now: int) -> None:
        """CM-R2: invite the silent ones again, R times at most; then go on without them."""
        tried = self.tries.get(EVERYONE, 0) + 1
        if tried > self.config.attempts:
            self.judge(now)
            return
        self.tries[EVERYONE] = tried
        assert self.attempt is not None
        for site in self.group:
            if site not in self.votes:
                self.send(site, Invite(self.attempt, self.boot))
        self.reform_due = now + self.config.retx_ns

    def judge(self, now: int) -> None:
        """CM-R3: the end of phase I: does the list of all voters pass the tests?"""
        votes = self.believed()
        old, start_ts = self.basis(votes)
        if not self.majority(votes):
            self.block("majority", self.group, lambda vote: not vote.wiped)
        elif not self.resilient(votes, old, start_ts):
            asked = self.asked_for(votes, old, start_ts)
            self.block("resiliency", asked, lambda vote: self.witness(vote, old))
        else:
            assert self.attempt is not None
            elected = self.elect(votes, old, start_ts)
            members = tuple(sorted(votes))
            boots = tuple(votes[site].boot for site in members)
            past = self.past_of(votes, old, start_ts, elected)
            floor = self.floor_of(votes, elected)
            new = NewTl(self.attempt, members, start_ts, elected, old, boots, past, floor)
            self.announce(new, now)
            return
        self.fail(now)

    def believed(self) -> dict[int, Vote1]:
        """The votes, but who was replaced, or has an old disk, counts as if it had none."""
        return judged(self.votes, len(self.group))

    def announce(self, new: NewTl, now: int) -> None:
        """CM-R4: phase II."""
        self.phase = O2
        self.yes_votes = set()
        self.tries = {}
        for site in new.members:
            if site != self.me:
                self.send(site, new)
        self.reform_due = self.arm(now + self.config.retx_ns)
        self.adopt(new, now)

    def on_vote2(self, pdu: Vote2, source: int, now: int) -> None:
        if self.phase != O2 or pdu.v != self.attempt:
            return
        if pdu.inviter not in (UNKNOWN, self.boot):
            self.drop(ANOTHER_LIFE)
            return
        if pdu.status == NO:
            self.fail(now)
        elif pdu.status == PENDING:
            self.tries[source] = 0
        else:
            self.yes_votes.add(source)
            self.close_vote(now)

    def on_announce_timer(self, now: int) -> None:
        """CM-R4: announce again to those who have not committed, 2R times each."""
        new = self.new_tl
        assert new is not None
        for site in new.members:
            if site in self.yes_votes:
                continue
            tried = self.tries.get(site, 0) + 1
            self.tries[site] = tried
            if tried > 2 * self.config.attempts:
                self.fail(now)
                return
            if site != self.me:
                self.send(site, new)
        self.reform_due = now + self.config.retx_ns

    def unanimous(self) -> bool:
        """CM-R5: every member of the new list has committed to it."""
        assert self.new_tl is not None
        return self.yes_votes.issuperset(self.new_tl.members)

    def close_vote(self, now: int) -> None:
        """CM-R5: phase III, once every member has committed: create the token."""
        if not self.unanimous():
            return
        if self.tl != self.attempt:
            return  # a broken unanimity test must not make us skip our own recovery
        self.reform_due = NEVER
        self.phase = NORMAL
        self.watch(now)
        if self.first == self.me:
            self.take_token(now)
        else:
            self.token_tries = 0
            self.send_token(now)
            self.work(now)

    def send_token(self, now: int) -> None:
        self.send(self.first, NewToken(self.tl))
        self.token_due = self.arm(now + self.config.retx_ns)

    def on_token_timer(self, now: int) -> None:
        """CM-R5: NEW_TOKEN again until the list is heard to live, R times; then from scratch."""
        self.token_tries += 1
        if self.token_tries > self.config.attempts:
            self.start_reformation(now, "the new token site is silent")
        else:
            self.send_token(now)

    def fail(self, now: int) -> None:
        """CM-R8: call the attempt off."""
        assert self.attempt is not None
        self.send(EVERYONE, Abort(self.attempt))
        self.back_off(now)

    def back_off(self, now: int) -> None:
        """CM-R8, CM-R14: wait at random, longer after each failure, then originate."""
        self.freeze()
        self.phase = OUT
        self.attempt = None
        self.new_tl = None
        self.staged.clear()
        least = self.config.retx_ns
        most = 4 * least << min(self.failures, BACKOFFS)
        self.failures += 1
        self.reform_due = self.arm(now + self.rng.randint(least, most))

    def block(
        self, reason: str, asked: tuple[int, ...] = (),
        good: Callable[[Vote1], bool] = lambda vote: True,
    ) -> None:  # fmt: skip
        """Say why no list can be formed: who of those `asked` for is silent, and who has forgotten
        what it would have to know."""
        silent = tuple(site for site in asked if site not in self.votes)
        forgetful = tuple(s for s in asked if s in self.votes and not good(self.votes[s]))
        if self.blocked != (reason, silent, forgetful):
            self.blocked = (reason, silent, forgetful)
            self.notify("blocked", reason, silent, forgetful)

    # -- slave -----------------------------------------------------------------------------

    def on_invite(self, pdu: Invite, source: int, now: int) -> None:
        """CM-R9: join a list with a higher version than any joined before (sequence test)."""
        v = pdu.v
        self.seen_version = max(self.seen_version, v[0])
        if v > self.max_joined and self.phase in (NORMAL, OUT):
            self.freeze()
            self.join_version(v)
            self.attempt = v
            self.new_tl = None
            self.staged.clear()
            self.phase = S1
            self.inviter = pdu.boot
            self.reform_due = self.arm(now + self.config.slave_timeout_ns)
            self.send(source, self.vote())
        elif v == self.attempt and self.phase == S1 and pdu.boot == self.inviter:
            self.send(source, self.vote())
        elif (v != self.attempt and v != self.tl) or pdu.boot != self.inviter:
            # Also to an originator that forgot its attempt and starts another of that version.
            no = Vote1(
                v, False, NO_LIST, (), 0, 0, False, False, 0, self.max_joined, inviter=pdu.boot
            )
            self.send(source, no)

    def on_new_tl(self, pdu: NewTl, source: int, now: int) -> None:
        """CM-R10: the list is announced; only a site that still belongs to the attempt may vote."""
        inviter = pdu.boots[pdu.members.index(pdu.v[1])] if pdu.v[1] in pdu.members else UNKNOWN
        if pdu.v == self.attempt and self.phase == S1:
            if pdu.boots[pdu.members.index(self.me)] != self.boot:
                self.drop("announcement of a list that an earlier run voted for")
                return
            if inviter != self.inviter:
                self.drop(ANOTHER_LIFE)
                return
            self.phase = S2
            self.reform_due = self.arm(now + self.config.slave_timeout_ns)
            self.adopt(pdu, now)
        elif pdu.v == self.tl and self.phase in (NORMAL, W3):
            if inviter == self.inviter:
                self.send(source, Vote2(pdu.v, YES, inviter))
        elif pdu.v != self.attempt:
            self.send(source, Vote2(pdu.v, NO, inviter))

    def adopt(self, new: NewTl, now: int) -> None:
        """CM-R11: obtain everything below the start of the new list, then commit to it."""
        self.new_tl = new
        self.lives = dict(zip(new.members, new.boots, strict=True))
        self.staged.clear()
        self.gap = None
        # A site of another list may hold stamps that the old list has given away again.
        self.recover_from = self.nts if self.tl == new.old else self.cnts
        if self.cnts > new.start_ts and self.config.forks:
            at = self.log.get(new.start_ts)
            self.part(self.seq if at is None else at.seq, self.seq)
            return
        if self.recover_from > new.start_ts:
            raise InvariantBroken(
                f"list {new.v} starts at {new.start_ts}, below our {self.recover_from}"
            )
        self.go_on_recovering(now)

    def go_on_recovering(self, now: int) -> None:
        new = self.new_tl
        assert new is not None
        if self.recover_from < new.start_ts:
            self.ask_recovery()
            self.token_due = self.arm(now + self.config.retx_ns)
            return
        self.token_due = NEVER
        gap = self.gap
        base = None
        if gap is not None:
            base = self.skip(gap)
        elif self.tl != new.old:
            # What we had beyond the commit mark belonged to a list without a say.
            self.roll_back(self.cnts)
        for ts in range(self.nts, new.start_ts):
            self.append(self.staged[ts])
        self.gap = None
        self.staged.clear()
        self.enter_list(
            new.v, new.members, new.start_ts, new.nts_site, base, new.history, new.floor, new.boots
        )
        if gap is not None:
            self.commit_upto(min(gap.cnts, self.nts))
        if self.phase == O2:
            self.yes_votes.add(self.me)
            self.close_vote(now)
            return
        self.send(new.v[1], Vote2(new.v, YES, self.inviter))
        if new.nts_site == self.me:
            # CM-R12: the new token site waits for its token.
            self.phase = W3
            self.reform_due = self.arm(now + self.config.token_timeout_ns)
        else:
            self.phase = NORMAL
            self.reform_due = NEVER
            self.watch(now)
            self.work(now)

    def ask_recovery(self) -> None:
        assert self.new_tl is not None
        shown = marks(self.log, self.cnts) if self.config.forks else ()
        self.send(self.new_tl.nts_site, RecoverReq(self.new_tl.v, self.recover_from, shown))

    def on_recovery_timer(self, now: int) -> None:
        self.ask_recovery()
        self.token_due = now + self.config.retx_ns

    def on_recover_req(self, pdu: RecoverReq, source: int, now: int) -> None:
        """CM-R13: the new token site serves its list while it belongs to it."""
        if pdu.v == self.attempt and self.phase in (S1, S2, W3):
            self.reform_due = self.arm(now + self.config.token_timeout_ns)
        elif not (pdu.v == self.attempt and self.phase == O2) and not (
            pdu.v == self.tl and self.phase == NORMAL
        ):
            return  # it is in another attempt by now
        differ = parted(self.log, pdu.marks, self.cnts)
        if differ is not None:
            lo, hi = (self.log[ts].seq if ts in self.log else self.nseq for ts in differ)
            self.send(source, Forked(pdu.v, lo, hi))
            return
        upto = self.nts if self.tl != pdu.v else self.start_ts
        start = max(pdu.from_ts, self.first_kept)
        entries: list[Entry] = []
        size = 0
        for ts in range(start, min(upto, start + self.config.recover_batch)):
            entry = self.log[ts]
            size += len(entry.bundle.data)
            if entries and size > self.config.reply_limit:
                break
            entries.append(entry)
        pruned = start > pdu.from_ts
        counters = self.counters_at(start) if pruned else ()
        first = self.log.get(start)
        seq = first.seq if first is not None else self.nseq
        self.send(
            source,
            RecoverData(pdu.v, tuple(entries), self.cnts, self.first_kept, counters, seq),
        )

    def on_recover_data(self, pdu: RecoverData, source: int, now: int) -> None:
        """CM-R11: take what comes next; commit at once what the sender has committed."""
        new = self.new_tl
        if new is None or pdu.v != self.attempt or self.phase not in (S2, O2):
            return
        if source != new.nts_site or self.tl == new.v:
            return
        before = self.recover_from
        same_list = self.tl == new.old
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
                self.append(entry)
            elif ts < pdu.cnts and not self.staged:
                self.commit_foreign(entry)
            else:  # once one is staged, so is what follows: commits have no holes
                self.staged[ts] = entry
        if same_list:
            self.commit_upto(max(self.cnts, min(pdu.cnts, self.nts)))
        if self.recover_from == before:
            return
        if self.phase == S2:
            self.reform_due = self.arm(now + self.config.slave_timeout_ns)
            if self.recover_from < new.start_ts:
                self.send(new.v[1], Vote2(new.v, PENDING, self.inviter))
        else:
            self.tries[self.me] = 0
        self.go_on_recovering(now)

    def on_forked(self, pdu: Forked, source: int, now: int) -> None:
        """Two histories have met: whoever belongs to either stops, and says where."""
        if pdu.v in (self.attempt, self.tl):
            self.part(pdu.lo, pdu.hi)

    def part(self, lo: int, hi: int) -> None:
        """Stop for good: what this site has committed and what others have cannot both be.

        All stop, unless the list has begun a history of its own: then only who has the other.
        """
        new = self.new_tl
        if new is None or new.history[0] == self.past[0]:
            self.send(EVERYONE, Forked(self.attempt or self.tl, lo, hi))
        self.freeze()
        self.phase = BROKEN
        self.reform_due = self.deadline = NEVER
        self.staged.clear()
        self.notify("broken", f"two histories: positions {lo} to {hi} differ between members")

    def commit_foreign(self, entry: Entry) -> None:
        """An entry committed in another list than ours: it replaces what we have in its place."""
        ts = entry.ack.ts
        mine = self.log.get(ts) if ts < self.nts else None
        if mine is None or mine.ack != entry.ack:
            self.roll_back(ts)
            self.append(entry)
        self.commit_upto(ts + 1)

    def skip(self, pdu: RecoverData) -> Base:
        """CM-R18: the new token site no longer has what we need; go on behind the gap."""
        self.roll_back(self.cnts)
        if pdu.seq > self.seq:
            self.notify("gap_unavailable", self.seq, pdu.seq)
        ts = pdu.first_available
        self.log.clear()
        self.last_ts.clear()
        self.uncommitted = self.retained = 0
        self.cnts = self.nts = ts
        self.pruned = self.first_kept = self.trimmed = ts
        self.kept_bytes = self.trim_bytes = 0
        self.seq = self.nseq = pdu.seq
        self.next_num = dict.fromkeys(self.group, 0) | dict(pdu.counters)
        self.exp = pdu.entries[0].ack.by
        mine = self.next_num[self.me]
        if self.own and self.own_base < mine:
            # Own messages stamped inside the gap: committed, but where we cannot see it.
            lost = min(mine - self.own_base, len(self.own))
            self.notify("indeterminate", self.own_base, self.own_base + lost)
            for _ in range(lost):
                self.own.popleft()
        self.own_base = max(self.own_base, mine)
        return Base(ts, pdu.counters, pdu.seq)

    # -- the new list's token --------------------------------------------------------------

    def on_new_token(self, pdu: NewToken, source: int, now: int) -> None:
        """CM-R13: accept the token of the list we still belong to; ignore it otherwise."""
        if self.phase == W3 and pdu.v == self.attempt:
            self.phase = NORMAL
            self.reform_due = NEVER
            self.watch(now)
            self.take_token(now)
        elif self.phase == NORMAL and pdu.v == self.tl and self.holding_list():
            self.confirm(self.start_ts - 1)

    def holding_list(self) -> bool:
        """Whether the token of our list was created here."""
        return self.authorized and self.first == self.me

    def take_token(self, now: int) -> None:
        """CM-R13: as CM-N13, with the stamp before the first one; tell everybody at once."""
        self.authorize(now)
        self.accept(self.start_ts - 1, now)
        self.hold_due = NEVER
        self.confirm(self.hold_ts)
        self.beacon_due = self.arm(now + self.config.idle_ns)
        self.work(now)

    def on_abort(self, pdu: Abort, source: int, now: int) -> None:
        """CM-R14: leave the attempt, or the list that was never authorized."""
        in_attempt = pdu.v == self.attempt and self.phase in (S1, S2, W3)
        orphaned = self.phase == NORMAL and pdu.v == self.tl and not self.authorized
        if in_attempt or orphaned:
            self.back_off(now)

    def on_reform_timer(self, now: int) -> None:
        """TIMEOUT_i, _j, _k and the back-off: what the one reformation timer means by phase."""
        if self.phase == O1:
            self.on_invite_timer(now)
        elif self.phase == O2:
            self.on_announce_timer(now)
        elif self.phase == OUT:
            self.start_reformation(now, "back-off over")
        else:  # CM-R14: S1, S2 or W3 have waited long enough
            self.back_off(now)

    def watch(self, now: int) -> None:
        """Entering NORMAL: start the watchdogs (CM-R15, CM-N21)."""
        self.heard = self.progress = now
        self.auth_due = self.arm(now + self.config.auth_timeout_ns)
        if self.config.silence_ns < NEVER:
            self.silence_due = self.arm(now + self.config.silence_ns)
