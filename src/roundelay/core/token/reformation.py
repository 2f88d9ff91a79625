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
- A list is made of lives, not of sites alone: two processes of one name are not one (`ballot`).
  `tests/core/test_token_lives.py`.
- The longest wait before another attempt doubles 3 times at most, not 6 (CM-R8): a group must not
  stand still for ten seconds because two sites have started at once twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from roundelay.core.engine import EVERYONE, UNKNOWN_LIFE
from roundelay.core.errors import InvariantBroken
from roundelay.core.notices import Blocked
from roundelay.core.token import pdu as p
from roundelay.core.token.ballot import Seen, entered
from roundelay.core.token.part import Part
from roundelay.core.token.phases import NORMAL, O1, O2, OUT, S1, S2, W3
from roundelay.core.token.stable import Joined

ANOTHER_LIFE: Final = "from or for another life of its site"

VERSION_MAX: Final = (1 << 32) - 2
"""The number of a list version has four bytes on the wire, the highest of which means no list."""

BACKOFFS: Final = 3
"""How often the longest wait before another attempt doubles.

Who wakes first invites the others, who then wait for it: 32 t_retx have room for many.
"""


@dataclass(slots=True, eq=False)
class Reformation(Part):
    """What a site does between two lists: the attempt it is in, and what its vote tells."""

    max_joined: p.Version = p.NO_LIST  # highest version ever joined, aborted ones too
    seen_version: int = 0  # highest version # heard of
    attempt: p.Version | None = None
    votes: dict[int, p.Vote1] = field(default_factory=dict)
    yes_votes: set[int] = field(default_factory=set)
    tries: dict[int, int] = field(default_factory=dict)
    new_tl: p.NewTl | None = None
    inviter: int = 0  # boot number of the originator whose attempt we are in
    seen: Seen = field(default_factory=dict)  # the last list known of each site
    token_tries: int = 0
    failures: int = 0  # consecutive ones, for the back-off
    amnesia: bool = False  # restarted with loss of uncommitted entries
    wiped: bool = False  # lost stable storage too
    floor: int = 0  # a recorder beside this site has all positions below on disk
    blocked: tuple[str, tuple[int, ...], tuple[int, ...]] | None = None  # see `block`

    def join(self, v: p.Version) -> None:
        """Promise never to join `v` or a lower list again; durable before any vote leaves."""
        self.max_joined = v
        self.seen_version = max(self.seen_version, v[0])
        self.site.out.persists.append(Joined(v))

    def _begin_attempt(self, phase: str, v: p.Version, inviter: int, now: int, wait: int) -> None:
        """Leave the list for the attempt to form `v`, as originator or as slave."""
        site = self.site
        site.become(phase, now)
        self.join(v)
        self.attempt = v
        self.inviter = inviter
        self.new_tl = None
        site.recovery.staged.clear()
        site.timers.reform_due = site.arm(now + wait)

    def _end_attempt(self) -> None:
        self.attempt = None
        self.new_tl = None

    def succeeded(self) -> None:
        """The list has its token: nothing is left to agree on."""
        self._end_attempt()
        self.failures = 0

    # -- originator ------------------------------------------------------------------------

    def start(self, now: int) -> None:
        """CM-R1: invite everybody to a list with a version higher than any seen."""
        site = self.site
        v = (max(self.seen_version, self.max_joined[0]) + 1, site.me)
        if v[0] > VERSION_MAX:
            # Nobody reforms so often: somebody forged a version.  Better blocked than broken.
            self.block("no higher list version is left")
            self.back_off(now)
            return
        self._begin_attempt(O1, v, site.boot, now, site.config.retx_ns)
        self.votes = {site.me: self.vote(v)}
        self.tries = {}
        self._invite(v)
        if len(self.votes) == len(site.group):
            self.judge(now)

    def _invite(self, v: p.Version) -> None:
        site = self.site
        for member in site.group:
            if member not in self.votes:
                site.send(member, p.Invite(v, site.boot))

    def vote(self, v: p.Version) -> p.Vote1:
        """Yes to list `v`, with what we know."""
        site = self.site
        log, token_list = site.log, site.token_list
        # `exp` may come from an entry that another list committed; then nobody will use it.
        exp = log.exp if log.exp in token_list.members else token_list.first
        return p.Vote1(
            v,
            True,
            token_list.version,
            token_list.members,
            log.nts,
            exp,
            self.amnesia,
            self.wiped,
            site.boot,
            self.max_joined,
            token_list.history,
            self.floor,
            self.inviter,
            entered(self.seen),
        )

    def _answers_us(self, pdu: p.Vote1 | p.Vote2) -> bool:
        """Whether the vote is for the attempt we are in, and not for one of another life."""
        if pdu.v != self.attempt:
            return False
        if pdu.inviter not in (UNKNOWN_LIFE, self.site.boot):
            self.site.drop(ANOTHER_LIFE)
            return False
        return True

    def on_vote1(self, pdu: p.Vote1, source: int, now: int) -> None:
        """CM-R2: one refusal ends the attempt."""
        if not self._answers_us(pdu):
            return
        if not pdu.yes:
            self.seen_version = max(self.seen_version, pdu.max_joined[0])
            self.fail(now)
            return
        self.votes[source] = pdu
        if len(self.votes) == len(self.site.group):
            self.judge(now)

    def on_invite_timer(self, now: int) -> None:
        """CM-R2: invite the silent ones again, R times at most; then go on without them."""
        config = self.site.config
        tried = self.tries.get(EVERYONE, 0) + 1
        if tried > config.attempts:
            self.judge(now)
            return
        self.tries[EVERYONE] = tried
        assert self.attempt is not None
        self._invite(self.attempt)
        self.site.timers.reform_due = now + config.retx_ns

    def judge(self, now: int) -> None:
        """CM-R3: the end of phase I: does the list of all voters pass the tests?"""
        site = self.site
        ballot = site.BALLOT(self.votes, site.group, site.config)
        if not ballot.majority():
            self.block("majority", site.group, lambda vote: not vote.wiped)
        elif not ballot.resilient():
            self.block("resiliency", ballot.asked_for(), ballot.witness)
        else:
            assert self.attempt is not None
            self.announce(ballot.new_list(self.attempt, site.rng), now)
            return
        self.fail(now)

    def announce(self, new: p.NewTl, now: int) -> None:
        """CM-R4: phase II."""
        site = self.site
        site.become(O2, now)
        self.yes_votes = set()
        self.tries = {}
        for member in new.members:
            if member != site.me:
                site.send(member, new)
        site.timers.reform_due = site.arm(now + site.config.retx_ns)
        site.recovery.adopt(new, now)

    def on_vote2(self, pdu: p.Vote2, source: int, now: int) -> None:
        if not self._answers_us(pdu):
            return
        if pdu.status == p.NO:
            self.fail(now)
        elif pdu.status == p.PENDING:
            self.tries[source] = 0
        else:
            self.yes_votes.add(source)
            self.close_vote(now)

    def on_announce_timer(self, now: int) -> None:
        """CM-R4: announce again to those who have not committed, 2R times each."""
        site, new = self.site, self.new_tl
        assert new is not None
        for member in new.members:
            if member in self.yes_votes:
                continue
            tried = self.tries.get(member, 0) + 1
            self.tries[member] = tried
            if tried > 2 * site.config.attempts:
                self.fail(now)
                return
            if member != site.me:
                site.send(member, new)
        site.timers.reform_due = now + site.config.retx_ns

    def unanimous(self) -> bool:
        """CM-R5: every member of the new list has committed to it."""
        assert self.new_tl is not None
        return self.yes_votes.issuperset(self.new_tl.members)

    def close_vote(self, now: int) -> None:
        """CM-R5: phase III, once every member has committed: create the token."""
        site = self.site
        # A broken unanimity test must not make us skip our own recovery.
        if not self.unanimous() or site.token_list.version != self.attempt:
            return
        site.become(NORMAL, now)
        if site.token_list.first == site.me:
            self.take_token(now)
        else:
            self.token_tries = 0
            self._send_token(now)
            site.ordering.work(now)

    def _send_token(self, now: int) -> None:
        site = self.site
        site.send(site.token_list.first, p.NewToken(site.token_list.version))
        site.timers.token_due = site.arm(now + site.config.retx_ns)

    def on_token_timer(self, now: int) -> None:
        """CM-R5: NEW_TOKEN again until the list is heard to live, R times; then from scratch."""
        self.token_tries += 1
        if self.token_tries > self.site.config.attempts:
            self.start(now)
        else:
            self._send_token(now)

    def fail(self, now: int) -> None:
        """CM-R8: call the attempt off."""
        assert self.attempt is not None
        self.site.send(EVERYONE, p.Abort(self.attempt))
        self.back_off(now)

    def back_off(self, now: int) -> None:
        """CM-R8, CM-R14: wait at random, longer after each failure, then originate."""
        site = self.site
        site.become(OUT, now)
        self._end_attempt()
        site.recovery.staged.clear()
        least = site.config.retx_ns
        most = 4 * least << min(self.failures, BACKOFFS)
        self.failures += 1
        site.timers.reform_due = site.arm(now + site.rng.randint(least, most))

    def block(
        self,
        reason: str,
        asked: tuple[int, ...] = (),
        good: Callable[[p.Vote1], bool] = lambda vote: True,
    ) -> None:
        """Say why no list can be formed: who of those `asked` for is silent, and who has forgotten
        what it would have to know."""
        silent = tuple(site for site in asked if site not in self.votes)
        forgetful = tuple(s for s in asked if s in self.votes and not good(self.votes[s]))
        if self.blocked != (reason, silent, forgetful):
            self.blocked = (reason, silent, forgetful)
            self.site.notify(Blocked(reason, silent, forgetful))

    # -- slave -----------------------------------------------------------------------------

    def on_invite(self, pdu: p.Invite, source: int, now: int) -> None:
        """CM-R9: join a list with a higher version than any joined before (sequence test)."""
        site = self.site
        v, phase = pdu.v, site.phase
        self.seen_version = max(self.seen_version, v[0])
        if v > self.max_joined and phase in (NORMAL, OUT):
            self._begin_attempt(S1, v, pdu.boot, now, site.config.slave_timeout_ns)
            site.send(source, self.vote(v))
        elif v == self.attempt and phase == S1 and pdu.boot == self.inviter:
            site.send(source, self.vote(v))
        elif v not in (self.attempt, site.token_list.version) or pdu.boot != self.inviter:
            # Also to an originator that forgot its attempt and starts another of that version.
            no = p.Vote1(
                v, False, p.NO_LIST, (), 0, 0, False, False, 0, self.max_joined, inviter=pdu.boot
            )
            site.send(source, no)

    def on_new_tl(self, pdu: p.NewTl, source: int, now: int) -> None:
        """CM-R10: the list is announced; only a site that still belongs to the attempt may vote."""
        site = self.site
        boots = dict(zip(pdu.members, pdu.boots, strict=True))
        inviter = boots.get(pdu.v[1], UNKNOWN_LIFE)
        if pdu.v == self.attempt and site.phase == S1:
            if boots[site.me] != site.boot:
                site.drop("announcement of a list that an earlier run voted for")
                return
            if inviter != self.inviter:
                site.drop(ANOTHER_LIFE)
                return
            site.become(S2, now)
            site.timers.reform_due = site.arm(now + site.config.slave_timeout_ns)
            site.recovery.adopt(pdu, now)
        elif pdu.v == site.token_list.version and site.phase in (NORMAL, W3):
            if inviter == self.inviter:
                site.send(source, p.Vote2(pdu.v, p.YES, inviter))
        elif pdu.v != self.attempt:
            site.send(source, p.Vote2(pdu.v, p.NO, inviter))

    def committed(self, now: int) -> None:
        """CM-R11, CM-R12: everything below the start of the new list is here, and it is entered."""
        site, new = self.site, self.new_tl
        assert new is not None
        if site.phase == O2:
            self.yes_votes.add(site.me)
            self.close_vote(now)
            return
        site.send(new.v[1], p.Vote2(new.v, p.YES, self.inviter))
        if new.nts_site == site.me:
            # The new token site waits for its token.
            site.become(W3, now)
            site.timers.reform_due = site.arm(now + site.config.token_timeout_ns)
        else:
            site.become(NORMAL, now)
            site.ordering.work(now)

    # -- the new list's token --------------------------------------------------------------

    def on_new_token(self, pdu: p.NewToken, source: int, now: int) -> None:
        """CM-R13: accept the token of the list we still belong to; ignore it otherwise."""
        site = self.site
        token_list = site.token_list
        created_here = token_list.authorized and token_list.first == site.me
        if site.phase == W3 and pdu.v == self.attempt:
            site.become(NORMAL, now)
            self.take_token(now)
        elif pdu.v == token_list.version and site.phase == NORMAL and created_here:
            site.stamping.confirm(token_list.start_ts - 1)

    def take_token(self, now: int) -> None:
        """CM-R13: as CM-N13, with the stamp before the first one; tell everybody at once."""
        site = self.site
        site.token_list.authorize()
        site.stamping.accept_first(now)
        site.stamping.confirm(site.stamping.hold_ts)
        site.ordering.work(now)

    def on_abort(self, pdu: p.Abort, source: int, now: int) -> None:
        """CM-R14: leave the attempt, or the list that was never authorized."""
        site = self.site
        if site.phase == NORMAL:
            ours = pdu.v == site.token_list.version and not site.token_list.authorized
        else:
            ours = pdu.v == self.attempt
        if ours:
            self.back_off(now)

    # -- timers ----------------------------------------------------------------------------

    def on_reform_timer(self, now: int) -> None:
        """TIMEOUT_i, _j, _k and the back-off: what the one reformation timer means by phase."""
        by_phase = {O1: self.on_invite_timer, O2: self.on_announce_timer, OUT: self.start}
        # CM-R14: S1, S2 or W3 have waited long enough.
        by_phase.get(self.site.phase, self.back_off)(now)

    def on_list_timer(self, now: int) -> None:
        """`token_due` serves the recovery before the list is entered and its token afterwards."""
        if self.site.phase in (S2, O2):
            self.site.recovery.ask(now)
        else:
            self.on_token_timer(now)

    def check_invariants(self) -> None:
        """Who is in an attempt has joined it; what is announced belongs to it."""
        site = self.site
        phase = site.phase
        if self.attempt is not None and self.attempt > self.max_joined:
            raise InvariantBroken(f"in attempt {self.attempt}, joined {self.max_joined}")
        if phase == NORMAL:
            return
        if phase in (O1, O2, S1, S2, W3) and self.attempt is None:
            raise InvariantBroken(f"in no attempt in phase {phase}")
        if phase == OUT and self.attempt is not None:
            raise InvariantBroken(f"in attempt {self.attempt} in phase OUT")
        if phase in (O2, S2, W3) and (self.new_tl is None or self.new_tl.v != self.attempt):
            raise InvariantBroken(f"no list is announced in phase {phase}")
        if phase == W3 and self.attempt != site.token_list.version:
            raise InvariantBroken(f"waits for the token of {self.attempt}, and is not in it")
        if phase in (O1, O2) and site.me not in self.votes:
            raise InvariantBroken("an originator without its own vote")
