"""How a retransmitter comes to reign, or changes its acknowledger (GR-27, GR-28).

Every retransmitter, acknowledger and recorder is a member of the council.  A reign begins when a
majority has promised to support no older one and has then accepted it.  Any two majorities share
a member, so a candidate always hears of the last reign that may have begun, and takes its state
from the retransmitter or the acknowledger of that one: each of the two has everything stable, and
one of them that has promised something else ends the old reign by that alone.

Promises are made durable before they are given.  A member that has lost its disk cannot know what
it promised.  It asks all other members, and votes again when every one of them has answered: what
it accepted was accepted by the candidate too, what it promised was promised by the candidate too,
and nobody but a member can be a candidate.

A standby that has heard neither broadcast nor sign of life for t_takeover becomes a candidate, and
so does a reigning retransmitter whose acknowledger does not answer any more::

    PREPARING   the council promises; whoever has the state of the last reign sends it
    FETCHING    the messages that the recorders may lack come from there
    INSTALLING  the acknowledger-to-be gets state and messages
    ACCEPTING   the council accepts the new reign
    (reigning)  the retransmitter says so

An attempt that gets stuck ends, and another one with a higher epoch follows after a random wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from roundelay.core.engine import NEVER
from roundelay.core.grsb import pdu as p
from roundelay.core.grsb.base import Counters, Host, Pages, Reign
from roundelay.core.grsb.retransmitter import Retransmitter, Sequencer
from roundelay.core.grsb.stable import Accepted, Promised
from roundelay.core.notices import NoReign, ReignBegun, Voting

IDLE: Final = "idle"
PREPARING: Final = "preparing"
FETCHING: Final = "fetching"
INSTALLING: Final = "installing"
ACCEPTING: Final = "accepting"


class Candidate:
    """The retransmitter of one site, as far as it is about to reign."""

    def __init__(self, host: Host, retransmitter: Retransmitter, now: int) -> None:
        self.host = host
        self.config = host.config
        self.cr = retransmitter
        self.phase = IDLE
        self.highest = 0  # epoch heard of
        self.epoch = -1  # of this attempt
        self.attempts = 0  # in a row, without a reign
        self.tries = 0  # repetitions within the phase
        self.due = NEVER  # repeat a step, or give up
        self.silent_since = now
        self.wait_ns = self._wait()
        self.grants: dict[int, p.Grant] = {}  # by member: its last reign
        self.pages: dict[int, Pages] = {}
        self.complete: dict[int, p.State] = {}
        self.last = Reign(-1, -1, -1)
        self.source = -1
        self.state = p.NO_STATE
        self.da = -1
        self.fetched: dict[int, p.Message] = {}
        self.fetch_at = 0  # everything below has been fetched
        self.sequencer: Sequencer | None = None
        self.accepted: set[int] = set()

    def _wait(self) -> int:
        """t_takeover, later for those who are further down the list, and a little at random."""
        roles = self.host.roles.retransmitters
        rank = roles.index(self.host.me)
        base = self.config.takeover_ns
        return base + rank * base // 4 + int(self.host.rng.random() * base / 4)

    # -- when ------------------------------------------------------------------------------

    def heard(self, now: int) -> None:
        """GR-26: another one reigns: stand by."""
        self.silent_since = now
        self.attempts = 0
        if self.phase != IDLE:
            self.stop(now)

    @property
    def deadline(self) -> int:
        if self.phase != IDLE:
            return self.due
        return NEVER if self.cr.reigning else self.silent_since + self.wait_ns

    def on_timer(self, now: int) -> None:
        if self.phase == IDLE:
            if self.host.council is None or not self.host.council.voting:
                self.silent_since = now
            elif not self.cr.reigning and self.silent_since + self.wait_ns <= now:
                self.begin(now)
        elif self.due <= now:
            self.tries += 1
            if self.tries > self.config.attempts:
                self._fail(now)
            else:
                self._step(now)

    def stop(self, now: int) -> None:
        self.phase = IDLE
        self.due = NEVER
        self.silent_since = now
        self.wait_ns = self._wait()

    def _fail(self, now: int) -> None:
        """This attempt came to nothing."""
        reason, mute = self._trouble()
        self.attempts += 1
        if self.attempts % 4 == 0:
            self.host.notify(NoReign(reason, tuple(mute)))
        self.stop(now)
        self.cr.stand_by()
        spread = self.config.takeover_ns >> 2
        self.wait_ns = int(spread * (0.5 + self.host.rng.random() * min(self.attempts, 4)))

    def _trouble(self) -> tuple[str, list[int]]:
        """Why this attempt comes to nothing, and those who would have to answer."""
        roles, last = self.host.roles, self.last
        if len(self.grants) < roles.majority:
            return "no majority of the council answers", self._mute(roles.council)
        if self.phase != PREPARING:
            asked = {FETCHING: self.source, INSTALLING: self.da}.get(self.phase)
            return f"stuck while {self.phase}", [] if asked is None else [asked]
        if self._choose() < 0:
            return "no acknowledger answers", self._mute(roles.acknowledgers)
        if mute := self._mute((last.cr, last.da)):
            return "nobody who answers has the state of the last reign", mute
        lost = "retransmitter and acknowledger of the last reign have lost their state"
        if self.config.cold_start:
            return f"{lost}: all are needed to begin anew", self._mute(roles.council)
        remedy = "begin anew from the recorders (cold_start), or restart one that has it"
        return f"{lost}: {remedy}", []

    def _mute(self, sites: Sequence[int]) -> list[int]:
        return [site for site in sites if site not in self.grants]

    # -- the steps -------------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """GR-27: a new attempt with an epoch that nobody else can use."""
        self.cr.stand_by()  # nothing more gets a place in the old reign
        council = self.host.roles.council
        rank = council.index(self.host.me)
        # Never an epoch that was used before, not even by this site before a crash.
        known = max(self.highest, self.host.reign.epoch, self.epoch, self.host.promised)
        self.epoch = (known // len(council) + 1) * len(council) + rank
        self.highest = self.epoch
        self.grants.clear()
        self.pages.clear()
        self.complete.clear()
        self.fetched.clear()
        self.accepted.clear()
        self.source = self.da = -1
        self.sequencer = None
        self._enter(PREPARING, now)

    @property
    def unanswered(self) -> int:
        """Questions that came to nothing, those of earlier attempts too: of two lines, the one
        that they went on may be why (GR-24)."""
        return self.attempts * self.config.attempts + self.tries

    def _enter(self, phase: str, now: int) -> None:
        self.phase = phase
        self.tries = 0
        self._step(now)

    def _step(self, now: int) -> None:
        """Say what this phase has to say, again."""
        host = self.host
        self.due = now + self.config.bcast_ns
        if self.phase == PREPARING:
            prepare = p.Takeover(p.PREPARE, self.epoch, host.me, 0, p.NO_STATE)
            for member in host.roles.council:
                if member not in self.grants or member not in self.complete:
                    host.ask(member, prepare, self.unanswered)
        elif self.phase == FETCHING:
            self._fetch()
        elif self.phase == INSTALLING:
            assert self.sequencer is not None
            for page in self.sequencer.counters.pages(self.state.safe, self.sequencer.next):
                install = p.Takeover(p.INSTALL, self.epoch, host.me, self.da, page)
                host.ask(self.da, install, self.unanswered)
        elif self.phase == ACCEPTING:
            accept = p.Takeover(p.ACCEPT, self.epoch, host.me, self.da, p.NO_STATE)
            for member in host.roles.council:
                if member not in self.accepted:
                    host.ask(member, accept, self.unanswered)

    def on_stale(self, stale: p.Stale, now: int) -> None:
        """Somebody knows better; the next attempt will be above that."""
        self.highest = max(self.highest, stale.epoch)
        if self.phase in (PREPARING, ACCEPTING) and stale.epoch > self.epoch:
            self._fail(now)

    def on_grant(self, grant: p.Grant, source: int, now: int) -> None:
        if grant.epoch != self.epoch or source not in self.host.roles.council:
            return
        if grant.step == p.PREPARE and self.phase == PREPARING:
            self.grants[source] = grant
            pages = self.pages.setdefault(source, Pages())
            if pages.add(grant.state):
                self.complete[source] = pages.state
            self._look(now)
        elif grant.step == p.INSTALL and self.phase == INSTALLING and source == self.da:
            assert self.sequencer is not None
            self.cr.hold(self.epoch, self.sequencer, self.state.safe)
            self._enter(ACCEPTING, now)
        elif grant.step == p.ACCEPT and self.phase == ACCEPTING:
            self.accepted.add(source)
            if len(self.accepted) >= self.host.roles.majority:
                self._reign(now)

    def _look(self, now: int) -> None:
        """Whether the promises are enough to go on."""
        host = self.host
        if len(self.grants) < host.roles.majority:
            return
        best = max(self.grants.values(), key=lambda grant: grant.last_epoch)
        last = Reign(best.last_epoch, best.last_cr, best.last_da)
        self.last = last
        da = self._choose()
        if da < 0:
            return
        if self.cr.epoch == last.epoch:  # our own reign goes on with another acknowledger
            self.source, self.da = host.me, da
            self.state = self.cr.pages()[0]
            self.sequencer = self.cr.sequencer
            self._enter(INSTALLING, now)
            return
        for site in (last.da, last.cr):
            grant = self.grants.get(site)
            if (
                grant is not None
                and site in self.complete
                and grant.last_epoch == last.epoch
                and grant.whose not in (p.BLANK, p.OF_RECORDER)
            ):
                self._take(site, self.complete[site], da, now)
                return
        if self.config.cold_start and all(site in self.complete for site in host.roles.council):
            # Nobody has the state of the last reign: what all recorders have is what is left.
            site = max(host.roles.recorders, key=lambda pr: self.complete[pr].safe)
            state = self.complete[site]
            if self.config.ceiling:  # behind all that may have been acknowledged
                base = max(state.top for state in self.complete.values())
                state = structs.replace(state, safe=base, top=base)
            self._take(site, state, da, now)

    def _take(self, site: int, state: p.State, da: int, now: int) -> None:
        self.source, self.da = site, da
        self.state = state
        self.fetch_at = self.state.safe
        self._enter(FETCHING, now)
        self._fetched(now)

    def _choose(self) -> int:
        """GR-28: the acknowledger of the new reign: the old one if it answers, else another."""
        able = [site for site in self.host.roles.acknowledgers if site in self.grants]
        if self.last.da in able and self.attempts % 2 == 0:
            return self.last.da
        return able[self.attempts // 2 % len(able)] if able else -1

    def _fetch(self) -> None:
        if self.fetch_at < self.state.top:
            ranges = ((self.fetch_at, self.state.top),)
            self.host.ask(self.source, p.Recover(ranges, self.epoch), self.unanswered)

    def on_recovered(self, recovered: p.Recovered, source: int, now: int) -> None:
        if self.phase != FETCHING or source != self.source or recovered.epoch != self.epoch:
            return
        for message in recovered.messages:
            in_range = self.fetch_at <= message.gseq < self.state.top
            if in_range and len(self.fetched) < self.config.history:
                self.fetched[message.gseq] = message
        if not recovered.messages and recovered.lo == self.fetch_at:
            self._fail(now)  # it has lost what it promised
            return
        self._fetched(now)

    def _fetched(self, now: int) -> None:
        """Go on when everything from `safe` to `top` is here."""
        moved = 0
        while self.fetch_at in self.fetched:
            self.fetch_at = self.fetched[self.fetch_at].end
            moved += 1
        if self.fetch_at < self.state.top:
            if moved:
                self.tries = 0
                if len(self.fetched) % self.config.rec_burst == 0:
                    self._fetch()
            return
        state = self.state
        sequencer = Sequencer(
            p.State(state.safe, state.safe, state.time), self.epoch, self.config.history
        )
        while sequencer.next in self.fetched:  # one behind the other: who answers may overlap
            sequencer.remember(self.fetched[sequencer.next])
        if sequencer.next != state.top:
            self._fail(now)  # it is not what it promised
            return
        sequencer.counters = Counters(state.counters, sequencer.counters.time)
        self.sequencer = sequencer
        self.fetched.clear()
        self._enter(INSTALLING, now)

    def _reign(self, now: int) -> None:
        """A majority has accepted: the reign begins."""
        assert self.sequencer is not None
        reign = Reign(self.epoch, self.host.me, self.da)
        self.phase = IDLE
        self.due = NEVER
        self.attempts = 0
        self.cr.begin(reign, self.sequencer, self.state.safe, now)
        self.host.notify(ReignBegun(self.epoch, self.host.me, self.da))


class Council:
    """One member's vote."""

    def __init__(self, host: Host, accepted: Reign, lost: int, now: int) -> None:
        self.host = host
        self.accepted = accepted
        self.lost = lost  # which start this is, of a member that has lost its disk; -1: it has not
        self.answers: dict[int, p.Grant] = {}
        self.deadline = NEVER if lost < 0 else now
        self.rounds = 0  # of questions

    @property
    def voting(self) -> bool:
        return self.lost < 0

    def on_timer(self, now: int) -> None:
        """Without a disk: ask those who have not answered."""
        self.deadline = NEVER if self.voting else now + self.host.config.alive_ns
        self.rounds += 1
        for member in self.host.roles.council:
            if not self.voting and member != self.host.me and member not in self.answers:
                rejoin = p.Takeover(p.REJOIN, self.lost, 0, 0, p.NO_STATE)
                self.host.ask(member, rejoin, self.rounds - 1)

    def on_grant(self, grant: p.Grant, source: int, now: int) -> None:
        """REJOIN: a member says what it knows."""
        asked = not self.voting and (grant.step, grant.epoch) == (p.REJOIN, self.lost)
        if not asked or source not in self.host.roles.council:
            return
        self.answers[source] = grant
        if len(self.answers) < len(self.host.roles.council) - 1:
            return
        best = max(self.answers.values(), key=lambda answer: answer.last_epoch)
        self.lost = -1
        self.deadline = NEVER
        if best.last_epoch >= self.accepted.epoch:
            self.accept(Reign(best.last_epoch, best.last_cr, best.last_da))
        promised = max(answer.state.top for answer in self.answers.values())
        if promised > self.host.promised:
            self.promise(promised)
        self.answers.clear()
        self.host.notify(Voting())

    def promise(self, epoch: int) -> None:
        self.host.promised = epoch
        self.host.persist(Promised(epoch))

    def accept(self, reign: Reign) -> None:
        self.accepted = reign
        self.host.promised = max(self.host.promised, reign.epoch)
        self.host.persist(Accepted(reign))

    def on_takeover(self, pdu: p.Takeover, source: int, now: int) -> None:
        """GR-27: steps PREPARE and ACCEPT, and REJOIN; INSTALL is the acknowledger's."""
        host = self.host
        if pdu.step == p.INSTALL:
            return
        if not self.voting:
            host.drop("no vote")
            return
        if pdu.step == p.REJOIN:
            self._grant(source, p.REJOIN, pdu.epoch, p.BLANK, p.State(0, host.promised, 0))
            return
        epoch = pdu.epoch
        if epoch < host.promised or source not in host.roles.retransmitters:
            host.send(source, p.Stale(host.promised, host.reign.cr))
            return
        if pdu.step == p.ACCEPT:
            if epoch != self.accepted.epoch:
                self.accept(Reign(epoch, pdu.cr, pdu.da))
            self._grant(source, p.ACCEPT, epoch, p.BLANK, p.NO_STATE)
            return
        if pdu.step != p.PREPARE or epoch == self.accepted.epoch:
            return
        if epoch > host.promised:
            if source not in (host.reign.cr, host.me) and self._content(now):
                host.send(source, p.Stale(host.reign.epoch, host.reign.cr))
                return
            self.promise(epoch)
            if host.retransmitter is not None and source != host.me:
                host.retransmitter.stand_by()
        whose, pages = self._state()
        for page in pages:
            self._grant(source, p.PREPARE, epoch, whose, page)

    def _content(self, now: int) -> bool:
        """Whether the reign is in order as far as can be seen from here (GR-27)."""
        cr = self.host.retransmitter
        last = cr.answered_at if cr is not None and cr.reigning else self.host.heard_at
        return now - last < self.host.config.takeover_ns // 2

    def _state(self) -> tuple[int, list[p.State]]:
        """What this site knows of the last reign it has accepted."""
        last = self.accepted.epoch
        host = self.host
        da, cr, recorder = host.acknowledger, host.retransmitter, host.recorder
        if da is not None and da.epoch == last:
            return p.OF_ACKNOWLEDGER, da.pages()
        if cr is not None and cr.epoch == last:
            return p.OF_RETRANSMITTER, cr.pages()
        # Memory is lost: what may have been acknowledged here is below `top` (cold start).
        ceiling = da.ceiling if da is not None and host.config.ceiling else 0
        if recorder is not None:
            mark = recorder.mark
            return p.OF_RECORDER, recorder.counters.pages(mark, max(mark, ceiling))
        return p.BLANK, [p.State(0, ceiling, 0)]

    def _grant(self, to: int, step: int, epoch: int, whose: int, state: p.State) -> None:
        last = self.accepted
        grant = p.Grant(step, epoch, last.epoch, last.cr, last.da, whose, state)
        self.host.send(to, grant)

    def learn(self, reign: Reign) -> None:
        """`reign` has begun: a majority has accepted it."""
        if self.voting and reign.epoch > self.accepted.epoch:
            self.accept(reign)
