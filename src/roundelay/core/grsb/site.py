"""A GRSB site: one or several roles on one machine, without sockets and clocks.

Theory of operation (Hoque, Amin, Hossain §3–§6).  A user sends its message to the Central
Retransmitter, which gives it a position and a date and broadcasts it.  Everybody listens, but only
the Designated Acknowledger answers; the next broadcast waits for that, so whoever hears message 5
knows that the acknowledger has message 4.  Recorders that miss something get it from the
acknowledger at once; users get it from a recorder, whenever they like.  Nobody waits for a user.

Deviations from PROTOCOLS §6, each with its test in tests/core/test_grsb_*.py or the swarm:

- Positions count messages, not broadcasts, so a bundle takes several and the journal is dense.
- GR-27/28: one epoch counts both kinds of take-over, and a majority of the council (retransmitters,
  acknowledgers, recorders) decides on each.  With the acknowledger alone as arbiter of the
  retransmitter, and the retransmitter alone as that of the acknowledger, a network that is cut
  between {CR, standby DA} and {standby CR, DA} has two reigns, each with its own order.
- GR-27: the table of senders travels with the state.  It cannot be rebuilt from messages: the last
  one of a sender may be older than everything that is still buffered, and its repetition would be
  broadcast again.
- GR-15/27: a listener that enters an epoch drops all that it did not know to be stable, not only
  what lies above `start`: between two epochs it heard of there may have been one it did not.
- A member of the council that has lost its disk votes again when all others have told it what they
  know (`takeover`).
- GR-28: the new acknowledger has everything before the reign begins, not after, so that no moment
  has fewer copies.
- GR-11: a message that no recorder has is never let go, however many recorders are suspected; one
  that is further behind than the buffer holds up nobody.
- GR-11/12: an acknowledger that delays or withholds repeats its last mark, else the retransmitter
  would take it for dead (GR-8); it also answers signs of life, so that an idle group notices.
- GR-6: in dual mode line A hears a sign of life every t_alive even while line B is busy, else a
  node that is deaf on line B would think the group is silent, and a standby would take over.
- GR-22/24: line A may fail like line B: the acknowledger answers signs of life on both, and what
  is said to one site alone finds its way over line B (`ways`).
- GR-17: an answer says which positions it covers, so answers may be lost and overtake each other;
  a request is served at most `credit` messages, and the recorder keeps nothing of it.
- GR-2: a refused submission does not use up its number: a successor would wait for it.
- GR-19: the abort record is broadcast for senders that ever sent units, before their first message.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import NEVER, NO_POSITION, UNKNOWN_LIFE, Engine, Pdu
from roundelay.core.errors import UsageError
from roundelay.core.grsb import pdu as p
from roundelay.core.grsb.acknowledger import Acknowledger
from roundelay.core.grsb.base import Counters, Host, Reign
from roundelay.core.grsb.checks import countable, well_formed
from roundelay.core.grsb.config import GrsbConfig, Roles
from roundelay.core.grsb.invariants import check_site
from roundelay.core.grsb.recorder import Recorder
from roundelay.core.grsb.retransmitter import Admit, Retransmitter, Sequencer, answer_recover
from roundelay.core.grsb.stable import Accepted, Archive, GrsbStable
from roundelay.core.grsb.takeover import Candidate, Council
from roundelay.core.grsb.user import Submitter, User
from roundelay.core.limits import whole
from roundelay.core.selection import EVERYTHING, Selection

INC_MAX: Final = (1 << 31) - 1
ROLES: Final = ("retransmitter", "candidate", "council", "acknowledger", "recorder", "user")


NO_USER: Final = "site {} is no user: give it that role, or use another site"


class RoleEngine(Engine):
    """A site that plays roles, and what its application can do.

    See `Submitter` and `User` for the options of the verbs.
    """

    @property
    @abstractmethod
    def submitter(self) -> Submitter:
        """Where the application of this site is; raises UsageError if it has none."""

    @abstractmethod
    def _settle(self, now: int) -> None:
        """Bring about what a verb has led to."""

    @property
    def inc(self) -> int:
        """Which start of this site its submissions belong to."""
        return self.submitter.inc

    def submit(self, bundle: Bundle, now: int, **options: Any) -> int:
        first = self.submitter.submit(bundle, now, **options)
        self._settle(now)
        return first

    def submit_unit(self, parts: Sequence[bytes], now: int, **options: Any) -> int:
        first = self.submitter.submit_unit(parts, now, **options)
        self._settle(now)
        return first

    def select(self, selection: Selection, now: int) -> None:
        self.submitter.select(selection)
        self._settle(now)

    def history(self, selection: Selection, now: int, **options: Any) -> int:
        user = self.submitter
        if not isinstance(user, User):
            raise UsageError(f"site {self.me} has no recorder at hand: ask at an attached node")
        number = user.history(selection, now, **options)
        self._settle(now)
        return number


class GrsbSite(Host, RoleEngine):
    """Site `me` of a group with the roles that `roles` gives it.

    `inc` must be higher than at every earlier start of this site, the date in minutes for example
    (more than 2²⁹ submissions of one start count as another).  `stable` is what a crash left
    (None at the first start, or if the disk was lost: then `wiped`); `archive` is where a recorder
    reads what it stored.  `position` is how far the application has come, if it knows better than
    `stable`.  `base_us` is the date at `now` = 0.
    """

    # What plays the roles: the hierarchy (`core.wide`) has its own.
    retransmitter_class: type[Retransmitter] = Retransmitter
    recorder_class: type[Recorder] = Recorder
    user_class: type[User] | None = User

    def __init__(
        self,
        me: int,
        roles: Roles,
        config: GrsbConfig,
        rng: Random,
        now: int = 0,
        *,
        inc: int = 0,
        stable: GrsbStable | None = None,
        archive: Archive | None = None,
        wiped: bool = False,
        position: int | None = None,
        selection: Selection = EVERYTHING,
        base_us: int = 0,
        admit: Admit | None = None,
    ) -> None:
        whole("inc", inc, 0, INC_MAX)
        super().__init__(me, roles, config, rng, base_us, now)
        self.heard_at = now
        fresh = stable is None and not wiped
        # A council member that has never accepted anything does not know what it promised.
        wiped = wiped or (stable is not None and stable.accepted is None)
        known = stable if stable is not None else GrsbStable()
        reign = known.accepted or self.reign
        self.reign = reign
        self.candidate: Candidate | None = None
        self.user: User | None = None
        if me in roles.retransmitters:
            self.retransmitter = self.retransmitter_class(self, now, admit)
            self.candidate = Candidate(self, self.retransmitter, now)
        if me in roles.acknowledgers:
            self.acknowledger = Acknowledger(self, now, known.ceiling)
        if me in roles.recorders:
            counters = Counters(known.counters.by_sender.values())
            self.recorder = self.recorder_class(self, archive or known, counters)
        if me in roles.users and self.user_class is not None:
            handled = known.handled.at(position, reign.epoch)
            self.user = self.user_class(self, inc, handled, selection)
        if me in roles.council:
            self.promised = max(known.promised, reign.epoch)
            self.council = Council(self, reign, inc if wiped else -1, now)
        if fresh:
            self._found(reign, now)
        self._settle(now)

    def _found(self, reign: Reign, now: int) -> None:
        """The first start of the group: its first reign has begun."""
        self.announced = reign.epoch
        if self.council is not None:
            self.persist(Accepted(reign))
        if self.acknowledger is not None and reign.da == self.me:
            self.acknowledger.epoch = reign.epoch
        if self.retransmitter is not None and reign.cr == self.me:
            sequencer = Sequencer(p.State(0, 0, 0), reign.epoch, self.config.history)
            self.retransmitter.begin(reign, sequencer, 0, now)

    # -- verbs -----------------------------------------------------------------------------

    @property
    def submitter(self) -> User:
        if self.user is None:
            raise UsageError(NO_USER.format(self.me))
        return self.user

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = p.LINE_A, life: int = UNKNOWN_LIFE
    ) -> None:
        if not (0 <= source < self.roles.sites and well_formed(pdu)):
            self.drop("malformed")
            return
        if not countable(pdu, max(self.reign.epoch, self.promised)):
            self.drop("impossible epoch or position")
            return
        self.ways.now = now
        self.ways.hear(source, line, type(pdu) not in MULTICASTS)
        self._dispatch(pdu, source, now, line)
        self._settle(now)

    def on_timer(self, now: int) -> None:
        """Do whatever is due at `now`."""
        self.ways.now = now
        if self.retransmitter is not None:
            assert self.candidate is not None
            if self.retransmitter.deadline <= now and self.retransmitter.on_timer(now):
                self.candidate.begin(now)
            if self.candidate.deadline <= now:
                self.candidate.on_timer(now)
        for role in (self.council, self.acknowledger, self.recorder, self.user):
            if role is not None and role.deadline <= now:
                role.on_timer(now)
        self._settle(now)

    def _settle(self, now: int) -> None:
        """What roles of this site said to each other, then the deadline."""
        local = self.local
        while local:
            pdu, line = local.popleft()
            self._dispatch(pdu, self.me, now, line)
        due = NEVER
        for name in ROLES:
            role = getattr(self, name)
            if role is not None and role.deadline < due:
                due = role.deadline
        self.deadline = due

    # -- what comes in ---------------------------------------------------------------------

    def _dispatch(self, pdu: Pdu, source: int, now: int, line: int) -> None:
        kind = type(pdu)
        if kind in HANDLERS:
            HANDLERS[kind](self, pdu, source, now, line)
        elif kind in ROUTES:
            method, roles = ROUTES[kind]
            for name in roles:
                role = getattr(self, name)
                if role is not None:
                    getattr(role, method)(pdu, source, now)
        else:
            self.drop("unknown pdu")

    def _reigns(self, epoch: int, cr: int, da: int, now: int) -> bool:
        """The retransmitter `cr` was heard in `epoch`; False if that is over."""
        reign = self.reign
        if cr not in self.roles.retransmitters:
            self.drop("not a retransmitter")
            return False
        if da >= 0 and da not in self.roles.acknowledgers:
            self.drop("not an acknowledger")
            return False
        if epoch < reign.epoch:
            self.drop("old epoch")
            return False
        if epoch > reign.epoch or 0 <= da != reign.da:
            self.reign = Reign(epoch, cr, reign.da if da < 0 else da)
        if epoch > reign.epoch:
            self._enter(epoch, cr)
        if da >= 0 and self.council is not None:
            self.council.learn(self.reign)
        self.heard_at = now
        if self.candidate is not None and cr != self.me:
            self.candidate.heard(now)
        if self.user is not None:
            self.user.heard()
        return True

    def _enter(self, epoch: int, cr: int) -> None:
        self.note_waits((), ())
        if self.retransmitter is not None and cr != self.me:
            self.retransmitter.forget()
        for role in (self.acknowledger, self.recorder, self.user):
            if role is not None:
                role.enter(epoch)

    def _on_bcast(self, pdu: p.Bcast, source: int, now: int, line: int) -> None:
        message = pdu.message
        if self.acknowledger is not None and message.epoch < self.reign.epoch:
            self.acknowledger.on_bcast(pdu, source, line, now)  # to say that it is over
        if not self._reigns(message.epoch, source, -1, now):
            return
        if message.end > self.broadcast:
            self.broadcast = message.end
            if self.waited_by_cr:
                self.note_waits(cr=())  # something got its place
        if self.acknowledger is not None:
            self.acknowledger.on_bcast(pdu, source, line, now)
        if self.recorder is not None:
            self.recorder.hear(message, pdu.acked, now)
        if self.user is not None:
            self.user.hear(message, pdu.acked, now)

    def _on_da_ack(self, pdu: p.DaAck, source: int, now: int, line: int) -> None:
        if self.retransmitter is not None:
            self.retransmitter.on_ack(pdu, source, line, now)
        if pdu.epoch != self.reign.epoch or source not in self.roles.acknowledgers:
            return
        if pdu.waits != self.waited_by_da:
            self.note_waits(da=pdu.waits)
        if self.recorder is not None:
            self.recorder.marks(pdu.gseq, pdu.gseq, now)
        if self.user is not None:
            self.user.note_recorded(pdu.safe)
            self.user.marks(pdu.gseq, pdu.gseq, now)

    def _on_alive(self, pdu: p.Alive, source: int, now: int, line: int) -> None:
        if pdu.epoch < self.reign.epoch and self.council is not None:
            self.send(source, p.Stale(self.reign.epoch, self.reign.cr))
        if not self._reigns(pdu.epoch, source, pdu.da, now):
            return
        self.ways.change(pdu.mode)
        if pdu.waits != self.waited_by_cr:
            self.note_waits(cr=pdu.waits)
        if self.announced != pdu.epoch:
            self.announced = pdu.epoch
            if self.user is not None:
                self.user.begins(pdu.start)
        if self.acknowledger is not None:
            self.acknowledger.on_alive(pdu, line)
        if self.recorder is not None:
            self.recorder.marks(pdu.acked, pdu.top, now)
        if self.user is not None:
            self.user.note_recorded(pdu.recorded)
            self.user.marks(pdu.acked, pdu.top, now)

    def _on_recover(self, pdu: p.Recover, source: int, now: int, line: int) -> None:
        """Whoever has the first of it answers; if nobody has, the one that has most."""
        first = pdu.ranges[0][0]
        da, cr, recorder = self.acknowledger, self.retransmitter, self.recorder
        has = da is not None and da.epoch >= 0 and first in da.ring.messages
        if da is not None and (has or recorder is None):
            da.on_recover(pdu, source)
        elif cr is not None and (first in cr.sequencer.history.messages or recorder is None):
            answer_recover(self, cr.sequencer.history, pdu, source)
        elif recorder is not None:
            reign_from = 0
            if da is not None and da.epoch >= 0:
                reign_from = da.ring.first
            elif cr is not None and cr.reigning:
                reign_from = cr.sequencer.history.first
            recorder.on_recover(pdu, source, reign_from)

    def _on_stale(self, pdu: p.Stale, source: int, now: int, line: int) -> None:
        cr, candidate = self.retransmitter, self.candidate
        if cr is not None and candidate is not None:
            candidate.on_stale(pdu, now)
            if cr.reigning and pdu.epoch > cr.epoch:
                candidate.begin(now)
        elif pdu.epoch > self.reign.epoch and self.user is not None:
            # Only a hint where to send: what begins an epoch is its retransmitter's own word.
            self.user.ask_at(pdu.cr)

    # -- what is kept ----------------------------------------------------------------------

    @property
    def position(self) -> int:
        return NO_POSITION if self.user is None else self.user.upto

    def check_invariants(self) -> None:
        check_site(self)

    def bounds(self) -> dict[str, tuple[int, int]]:
        config, sites = self.config, self.roles.sites
        cr, da, recorder, user = self.retransmitter, self.acknowledger, self.recorder, self.user
        bounds: dict[str, tuple[int, int]] = {}
        if cr is not None:
            bounds["history"] = (len(cr.sequencer.history), config.history)
            bounds["queue"] = (len(cr.queue), sites)
        if da is not None:
            # With what an acknowledger is installed, which its successor had not stored yet.
            bounds["da_buffer"] = (len(da.ring), config.history)
        if recorder is not None:
            bounds["recorder_heard"] = (len(recorder.listener.heard), config.heard_max + 1)
            bounds["requests"] = (len(recorder.requests), sites)
        if user is not None:
            bounds["heard"] = (len(user.listener.heard), config.heard_max + 1)
            bounds["submissions"] = (len(user.queue), config.own_limit)
        return bounds


MULTICASTS: Final = (p.Bcast, p.DaAck, p.Alive)
"""What is said to everybody, on the lines that the retransmitter chooses."""

HANDLERS: Final[dict[type[Pdu], Any]] = {
    p.Bcast: GrsbSite._on_bcast,
    p.DaAck: GrsbSite._on_da_ack,
    p.Alive: GrsbSite._on_alive,
    p.Recover: GrsbSite._on_recover,
    p.Stale: GrsbSite._on_stale,
}

ROUTES: Final[dict[type[Pdu], tuple[str, tuple[str, ...]]]] = {
    p.Submit: ("on_submit", ("retransmitter",)),
    p.SubmitAck: ("on_submit_ack", ("user",)),
    p.Recovered: ("on_recovered", ("candidate", "acknowledger", "recorder")),
    p.Takeover: ("on_takeover", ("acknowledger", "council")),
    p.Grant: ("on_grant", ("council", "candidate")),
    p.Poll: ("on_poll", ("recorder",)),
    p.PollOk: ("on_poll_ok", ("acknowledger",)),
    p.Slow: ("on_slow", ("acknowledger",)),
    p.ReplayReq: ("on_request", ("recorder",)),
    p.ReplayData: ("on_replay", ("user",)),
    p.ReplayEnd: ("on_replay", ("user",)),
}
"""What concerns some roles alone, and the method of theirs that it is handed to."""
