"""Who reigns: the council's part in take-overs (GR-27, GR-28).

Every retransmitter, acknowledger and recorder is a member of the council.  A reign begins when a
majority has promised to support no older one and has then accepted it.  Any two majorities share
a member, so a candidate always hears of the last reign that may have begun, and takes its state
from the retransmitter or the acknowledger of that one: each of the two has everything stable, and
one of them that has promised something else ends the old reign by that alone.

Promises are made durable before they are given.  A member that has lost its disk cannot know what
it promised.  It asks all other members, and votes again when every one of them has answered: what
it accepted was accepted by the candidate too, what it promised was promised by the candidate too,
and nobody but a member can be a candidate.
"""

from __future__ import annotations

from msgspec import structs

from roundelay.core.engine import NEVER
from roundelay.core.grsb.base import Host, Reign
from roundelay.core.grsb.pdu import (
    ACCEPT,
    BLANK,
    NO_STATE,
    OF_ACKNOWLEDGER,
    OF_RECORDER,
    OF_RETRANSMITTER,
    PREPARE,
    REJOIN,
    Grant,
    Stale,
    State,
    Takeover,
)
from roundelay.core.grsb.stable import Accepted, Promised
from roundelay.core.notices import Voting


class Council:
    """One member's vote."""

    def __init__(self, host: Host, accepted: Reign, lost: int, now: int) -> None:
        self.host = host
        self.accepted = accepted
        self.lost = lost  # which start this is, of a member that has lost its disk; -1: it has not
        self.answers: dict[int, Grant] = {}
        self.due = NEVER if lost < 0 else now
        self.rounds = 0  # of questions

    @property
    def voting(self) -> bool:
        return self.lost < 0

    @property
    def deadline(self) -> int:
        return self.due

    def on_timer(self, now: int) -> None:
        """Without a disk: ask those who have not answered."""
        self.due = NEVER if self.voting else now + self.host.config.alive_ns
        self.rounds += 1
        for member in self.host.roles.council:
            if not self.voting and member != self.host.me and member not in self.answers:
                rejoin = Takeover(REJOIN, self.lost, 0, 0, NO_STATE)
                self.host.ask(member, rejoin, self.rounds - 1)

    def on_grant(self, grant: Grant, source: int) -> None:
        """A member says what it knows."""
        if self.voting or grant.epoch != self.lost or source not in self.host.roles.council:
            return
        self.answers[source] = grant
        if len(self.answers) < len(self.host.roles.council) - 1:
            return
        best = max(self.answers.values(), key=lambda answer: answer.last_epoch)
        self.lost = -1
        self.due = NEVER
        if best.last_epoch >= self.accepted.epoch:
            self.accept(Reign(best.last_epoch, best.last_cr, best.last_da))
        promised = max(answer.state.top for answer in self.answers.values())
        if promised > self.host.promised:
            self.promise(promised)
        self.answers.clear()
        self.host.notice(Voting())

    def promise(self, epoch: int) -> None:
        self.host.promised = epoch
        self.host.persist(Promised(epoch))

    def accept(self, reign: Reign) -> None:
        self.accepted = reign
        self.host.promised = max(self.host.promised, reign.epoch)
        self.host.persist(Accepted(reign))

    def on_takeover(self, pdu: Takeover, source: int, now: int) -> None:
        """GR-27: steps PREPARE and ACCEPT, and REJOIN; INSTALL is the acknowledger's."""
        host = self.host
        if not self.voting:
            host.drop("no vote")
            return
        if pdu.step == REJOIN:
            self._grant(source, REJOIN, pdu.epoch, BLANK, State(0, host.promised, 0))
            return
        epoch = pdu.epoch
        if epoch < host.promised or source not in host.roles.retransmitters:
            host.send(source, Stale(host.promised, host.reign.cr))
            return
        if pdu.step == ACCEPT:
            if epoch != self.accepted.epoch:
                self.accept(Reign(epoch, pdu.cr, pdu.da))
            self._grant(source, ACCEPT, epoch, BLANK, NO_STATE)
            return
        if pdu.step != PREPARE or epoch == self.accepted.epoch:
            return
        if epoch > host.promised:
            if source not in (host.reign.cr, host.me) and self._content(now):
                host.send(source, Stale(host.reign.epoch, host.reign.cr))
                return
            self.promise(epoch)
            if host.retransmitter is not None and source != host.me:
                host.retransmitter.stand_by()
        whose, pages = self._state()
        for page in pages:
            self._grant(source, PREPARE, epoch, whose, page)

    def _content(self, now: int) -> bool:
        """Whether the reign is in order as far as can be seen from here (GR-27)."""
        cr = self.host.retransmitter
        last = cr.answered_at if cr is not None and cr.reigning else self.host.heard_at
        return now - last < self.host.config.takeover_ns // 2

    def _state(self) -> tuple[int, list[State]]:
        """What this site knows of the last reign it has accepted."""
        last = self.accepted.epoch
        host = self.host
        da, cr, recorder = host.acknowledger, host.retransmitter, host.recorder
        if da is not None and da.epoch == last:
            return OF_ACKNOWLEDGER, da.pages()
        if cr is not None and cr.epoch == last:
            return OF_RETRANSMITTER, cr.pages()
        # Memory is lost: what may have been acknowledged here is below `top` (cold start).
        ceiling = da.ceiling if da is not None and host.config.ceiling else 0
        if recorder is not None:
            pages = recorder.pages()
            return OF_RECORDER, [
                structs.replace(page, top=max(page.top, ceiling)) for page in pages
            ]
        return BLANK, [State(0, ceiling, 0)]

    def _grant(self, to: int, step: int, epoch: int, whose: int, state: State) -> None:
        last = self.accepted
        grant = Grant(step, epoch, last.epoch, last.cr, last.da, whose, state)
        self.host.send(to, grant)

    def learn(self, reign: Reign) -> None:
        """`reign` has begun: a majority has accepted it."""
        if self.voting and reign.epoch > self.accepted.epoch:
            self.accept(reign)
