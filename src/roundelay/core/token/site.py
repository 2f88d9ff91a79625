"""TokenSite: one member of a token group, as an engine.

    >>> from random import Random
    >>> from roundelay.core.bundle import Bundle
    >>> group = (0, 1)
    >>> config = TokenConfig(resilience=0)
    >>> a, b = (TokenSite(me, group, config, Random(me)) for me in group)
    >>> b.submit(Bundle.of(b"hello"), now=0)
    >>> message = b.take().sends[0][1]
    >>> a.receive(message, 1, now=1)          # a holds the first token: it stamps the message
    >>> [d.bundle.data for d in a.take().deliveries]
    [b'hello']

A site is made of parts, each with its own state and invariants; they find each other here.  The
site itself has the phase, and sees to it that each PDU and each timer reaches its part.  The theory
of the normal phase is in `ordering`, that of reformation in `reformation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from typing import Any, ClassVar, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import (
    COMMITTED,
    EVERYONE,
    NEVER,
    ONLY_LINE,
    UNKNOWN_LIFE,
    Delivery,
    Engine,
    Pdu,
)
from roundelay.core.errors import ConfigError, InvariantBroken
from roundelay.core.token import checks
from roundelay.core.token import pdu as p
from roundelay.core.token.ballot import Ballot
from roundelay.core.token.config import PREFORMED, REJOIN, TokenConfig
from roundelay.core.token.log import TRIM_EVERY, Commit, Log
from roundelay.core.token.ordering import Ordering
from roundelay.core.token.own import OwnMessages
from roundelay.core.token.part import Part
from roundelay.core.token.phases import (
    ANY,
    BROKEN,
    FROZEN,
    NORMAL,
    O1,
    O2,
    OUT,
    S1,
    S2,
    START,
    TRANSITIONS,
    W3,
)
from roundelay.core.token.recovery import LogRecovery
from roundelay.core.token.reformation import ANOTHER_LIFE, Reformation
from roundelay.core.token.retransmission import Answers, Requests
from roundelay.core.token.stable import Forgot, Stable, Wiped
from roundelay.core.token.stamping import Stamping
from roundelay.core.token.token_list import TokenList

IN_LIST: Final = frozenset((NORMAL,))

_tl = attrgetter("tl")


class Dispatch(Struct, frozen=True):
    """How a PDU is handled: by which part, after which check, in which phases.

    With `version` it belongs to a list, and a PDU of another list than ours, or one that arrives
    while we are in none, goes to `TokenList.other` instead.  Otherwise what arrives in another
    phase is ignored.
    """

    part: str
    handler: str
    check: Callable[[Any, Any, int], str] = checks.nothing
    phases: frozenset[str] = ANY
    version: Callable[[Any], p.Version] | None = None
    lives: bool = False
    """Only the lives that a list is made of may send it."""


PDUS: Final[dict[type[Pdu], Dispatch]] = {
    p.B: Dispatch("ordering", "on_b", checks.b, IN_LIST, _tl, True),
    p.Ack: Dispatch("ordering", "on_ack", checks.ack, IN_LIST, _tl, True),
    # Each of its stamps is one of these.
    p.AckRun: Dispatch("ordering", "on_ack_run", checks.ack_run, lives=True),
    p.Confirm: Dispatch("ordering", "on_confirm", checks.confirm, IN_LIST, _tl, True),
    p.RetxReq: Dispatch("answers", "on_retx_req", checks.retx_req, IN_LIST, _tl, True),
    p.RetxAck: Dispatch(
        "ordering", "on_retx_ack", checks.retx_ack, IN_LIST, attrgetter("ack.tl"), True
    ),
    p.RetxMsg: Dispatch(
        "ordering", "on_retx_msg", checks.retx_msg, IN_LIST, attrgetter("b.tl"), True
    ),
    p.RetxBulk: Dispatch("ordering", "on_retx_bulk", checks.retx_bulk, lives=True),
    p.TlHint: Dispatch("token_list", "on_tl_hint", checks.tl_hint),
    p.Invite: Dispatch("reformation", "on_invite", checks.invite),
    p.Vote1: Dispatch("reformation", "on_vote1", checks.vote1, frozenset((O1,))),
    p.NewTl: Dispatch("reformation", "on_new_tl", checks.new_tl),
    p.Vote2: Dispatch("reformation", "on_vote2", checks.vote2, frozenset((O2,))),
    p.NewToken: Dispatch(
        "reformation", "on_new_token", checks.of_list, frozenset((W3, NORMAL)), lives=True
    ),
    p.Abort: Dispatch("reformation", "on_abort", checks.of_list, frozenset((S1, S2, W3, NORMAL))),
    p.RecoverReq: Dispatch(
        "recovery", "on_recover_req", checks.recover_req, frozenset((S1, S2, W3, O2, NORMAL))
    ),
    p.RecoverData: Dispatch(
        "recovery", "on_recover_data", checks.recover_data, frozenset((S2, O2)), lives=True
    ),
    p.Forked: Dispatch("recovery", "on_forked"),
}

OF_A_LIST: Final = frozenset(kind for kind, row in PDUS.items() if row.lives)

Handler = Callable[[Any, int, int], None]


@dataclass(slots=True, eq=False)
class Timers(Part):
    """Nine moments, in the order in which `TokenSite.on_timer` looks at them.

    `heard` and `progress` are when anything, and anything new, was last heard of the list: a timer
    that restarts with every arrival is not moved each time; it looks at these when it comes.
    """

    send_due: int = NEVER
    request_due: int = NEVER
    hold_due: int = NEVER
    pass_due: int = NEVER
    beacon_due: int = NEVER
    token_due: int = NEVER
    auth_due: int = NEVER
    silence_due: int = NEVER
    reform_due: int = NEVER
    heard: int = 0
    progress: int = 0

    def stop(self) -> None:
        """Disarm the timers of a list; that of the reformation goes on."""
        self.send_due = self.hold_due = self.pass_due = self.request_due = NEVER
        self.beacon_due = self.silence_due = self.token_due = self.auth_due = NEVER

    def watch(self, now: int) -> None:
        """A list is entered: start its watchdogs (CM-R15, CM-N21)."""
        site, config = self.site, self.site.config
        self.heard = self.progress = now
        self.auth_due = site.arm(now + config.auth_timeout_ns)
        if config.silence_ns < NEVER:
            self.silence_due = site.arm(now + config.silence_ns)

    def earliest(self) -> int:
        """When the first of them is due."""
        return min(
            self.send_due,
            self.request_due,
            self.hold_due,
            self.pass_due,
            self.beacon_due,
            self.token_due,
            self.auth_due,
            self.silence_due,
            self.reform_due,
        )

    def check_invariants(self) -> None:
        if self.site.deadline > self.earliest():
            raise InvariantBroken(f"a timer is due before the deadline {self.site.deadline}")


PATIENCE: Final = 4
"""Invitations to one that is believed to be gone."""

PREFORMED_PAST: Final[p.History] = (1, 0, 0)
"""The history of a group that begins with a list."""


class TokenSite(Engine):
    """One site of a token group (CM84)."""

    PARTS: ClassVar[dict[str, type[Part]]] = {
        "timers": Timers,
        "log": Log,
        "token_list": TokenList,
        "commit": Commit,
        "stamping": Stamping,
        "own": OwnMessages,
        "requests": Requests,
        "answers": Answers,
        "ordering": Ordering,
        "reformation": Reformation,
        "recovery": LogRecovery,
    }
    BALLOT: ClassVar[type[Ballot]] = Ballot

    __slots__ = ("boot", "config", "handlers", "phase", "rng", *PARTS)

    timers: Timers  # when what is due
    log: Log  # stamped entries and their marks
    token_list: TokenList  # the list it is committed to
    commit: Commit  # who holds what, and what is safe
    stamping: Stamping  # the token
    own: OwnMessages  # its own messages
    requests: Requests  # what it misses
    answers: Answers  # what others miss
    ordering: Ordering  # how arrivals become entries
    reformation: Reformation  # agreeing on another list
    recovery: LogRecovery  # what that list requires

    def __init__(
        self,
        me: int,
        group: tuple[int, ...],
        config: TokenConfig,
        rng: Random,
        now: int = 0,
        stable: Stable | None = None,
    ) -> None:
        if me not in group:
            raise ConfigError("me", me, f"one of the group's sites {group}")
        if len(set(group)) != len(group):
            raise ConfigError("group", group, "each site once")
        config.check(len(group))
        super().__init__(me, tuple(sorted(group)))
        self.config = config
        self.rng = rng
        self.boot = rng.getrandbits(32)  # a number of this life of the site
        self.phase: str = START
        for name, part in self.PARTS.items():
            setattr(self, name, part(self))
        self.timers.heard = self.timers.progress = now
        if stable is not None:
            self.restore(stable)
        elif config.boot == PREFORMED:
            self.boot_preformed(now)
            return
        elif config.boot == REJOIN:
            self.reformation.wiped = self.reformation.amnesia = True
            self.out.persists.append(Wiped(True))
        self.become(OUT, now)
        # Restart, rejoin, cold boot: originate after a random wait.
        self.timers.reform_due = self.arm(now + rng.randint(1, 4 * config.retx_ns))

    def bind_handlers(self) -> None:
        """What this site answers to in its phase: check and handler, by one look-up per arrival."""
        phase = self.phase
        self.handlers: dict[type[Pdu], tuple[Any, Handler]] = {}
        for kind, row in PDUS.items():
            if phase in row.phases:
                handler = getattr(getattr(self, row.part), row.handler)
            else:
                handler = self._ignore if row.version is None else self._other_list
            self.handlers[kind] = (row.check, handler)

    def boot_preformed(self, now: int) -> None:
        """Everybody starts in list (0, 0); the lowest site has the token."""
        first = self.group[0]
        self.reformation.join((0, 0))
        self.token_list.enter(p.NewTl((0, 0), self.group, 0, first, p.NO_LIST, (), PREFORMED_PAST))
        self.become(NORMAL, now)
        self.token_list.authorize()
        if self.me == first:
            self.stamping.accept_first(now)
            self.stamping.shown = True

    def restore(self, stable: Stable) -> None:
        """CM-R17: what a site that restarts knows.  Whatever its list was, it never resumes it."""
        log, token_list, reformation = self.log, self.token_list, self.reformation
        reformation.max_joined = stable.max_joined
        reformation.seen_version = max(0, stable.max_joined[0])
        reformation.wiped = stable.wiped
        reformation.seen = dict(stable.seen)
        token_list.first = stable.first
        token_list.history = stable.history
        log.restore(stable)
        if stable.tl != p.NO_LIST:
            token_list.begin(stable.tl, stable.members, stable.start_ts, stable.first)
            before = log.entries.get(log.nts - 1)
            if log.nts > stable.start_ts and before is not None:
                log.exp = before.ack.next
        # With L = 0 whatever was processed was committed, so nothing can have been forgotten.
        forgot = stable.forgot or not stable.whole
        reformation.amnesia = self.config.resilience >= 1 and forgot
        if reformation.amnesia and not stable.forgot:
            self.out.persists.append(Forgot())

    # -- the phase ---------------------------------------------------------------------------

    def become(self, phase: str, now: int) -> None:
        """Enter `phase`.  Every change of phase is made here, see `phases`."""
        if phase not in TRANSITIONS[self.phase]:
            raise InvariantBroken(f"a site in phase {self.phase} cannot become {phase}")
        self.phase = phase
        self.bind_handlers()
        if phase in FROZEN:
            self.freeze()
        elif phase == NORMAL:
            self.timers.reform_due = NEVER
            self.timers.watch(now)

    def freeze(self) -> None:
        """Stop all work of the list, for good: the resiliency test counts on it (CM84 §5.1)."""
        self.stamping.stop()
        self.own.stop()
        self.requests.pending.clear()
        self.timers.stop()

    @property
    def role(self) -> str:
        """`token`, `passing` or the phase: what a picture of the group shows."""
        if self.phase != NORMAL:
            return self.phase
        return "token" if self.holding else "passing" if self.stamping.passing >= 0 else "idle"

    # -- verbs -------------------------------------------------------------------------------

    def submit(self, bundle: Bundle, now: int) -> None:
        self.own.submit(bundle, now)

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        if self.phase is BROKEN:
            return
        kind = pdu.__class__
        if life and self.token_list.lives.get(source, life) != life and kind in OF_A_LIST:
            self.drop(ANOTHER_LIFE)
            return
        stamping = self.stamping
        if stamping.passing >= 0 and source == self.log.exp:
            stamping.pass_silent = 0  # CM-N16: the next site is alive, if slow
            if stamping.pass_total and self.config.impatient:
                stamping.hurry(now)
        row = self.handlers.get(kind)
        if row is None:
            self.drop("not a PDU of the token protocol")
            return
        check, handler = row
        reason = check(self, pdu, source)
        if not reason:
            handler(pdu, source, now)
        elif reason is checks.OTHER_LIST:
            self._other_list(pdu, source, now)
        else:
            self.drop(reason)

    def _other_list(self, pdu: Pdu, source: int, now: int) -> None:
        """A PDU of another list than ours has come, or one of a list while we are in none."""
        version = PDUS[pdu.__class__].version
        assert version is not None
        self.token_list.other(version(pdu), source, now)

    def _ignore(self, pdu: Pdu, source: int, now: int) -> None:
        """A PDU has come that means nothing in this phase."""

    def on_timer(self, now: int) -> None:
        # One by one, in the order of their table: this is called for nearly every PDU.
        timers = self.timers
        if timers.send_due <= now:
            self.own.on_send_timer(now)
        if timers.request_due <= now:
            self.requests.on_request_timer(now)
        if timers.hold_due <= now:
            self.stamping.on_hold_timer(now)
        if timers.pass_due <= now:
            self.stamping.on_pass_timer(now)
        if timers.beacon_due <= now:
            self.stamping.on_beacon_timer(now)
        if timers.token_due <= now:
            self.reformation.on_list_timer(now)
        if timers.auth_due <= now:
            self.reformation.start(now)  # CM-R15: a list whose token never came
        if timers.silence_due <= now:
            self.token_list.on_silence_timer(now)
        if timers.reform_due <= now:
            self.reformation.on_reform_timer(now)
        self.deadline = timers.earliest()

    # -- what its owner may ask for ----------------------------------------------------------

    def reform(self, now: int) -> None:
        """Start a reformation, as if a failure had been detected."""
        if self.phase in (NORMAL, OUT):
            self.reformation.start(now)

    def conclude(self) -> None:
        """Commit all that is here, although nobody agrees: an operator ends this history with it
        (`node.membership.recovery`).  The site must not take part in anything afterwards."""
        self.become(OUT, 0)
        self.timers.reform_due = NEVER
        self.commit.commit_upto(self.log.nts)

    def without(self, now: int) -> None:
        """The owner has reason to believe that a member is gone: agree on a list without waiting
        long for those who say nothing.  It may be wrong: who is there after all is let in again.
        """
        if self.phase == NORMAL:
            self.reformation.start(now)
            self.reformation.tries[EVERYONE] = max(0, self.config.attempts - PATIENCE)

    def nudge(self, now: int) -> None:
        """CM-N21 by hand, for groups without the idle beacon: confirm again if holding."""
        if self.holding:
            self.stamping.confirm(self.stamping.hold_ts)

    # -- what others look at -----------------------------------------------------------------

    @property
    def tl(self) -> p.Version:
        """The version of the list this site is committed to."""
        return self.token_list.version

    @property
    def nts(self) -> int:
        """The next timestamp to process."""
        return self.log.nts

    @property
    def cnts(self) -> int:
        """The next timestamp to commit."""
        return self.log.cnts

    @property
    def position(self) -> int:
        return self.log.seq

    @property
    def token(self) -> Stamping:
        return self.stamping

    @property
    def holding(self) -> bool:
        """Whether the token is here."""
        return self.stamping.holding

    @property
    def is_formed(self) -> bool:
        return self.phase == NORMAL or self.phase == BROKEN  # which refuses whatever it is given

    @property
    def takes_more(self) -> bool:
        return not self.own.waiting or self.phase == BROKEN

    def kept_deliveries(self) -> Iterator[Delivery]:
        log = self.log
        for ts in range(log.first_kept, log.cnts):
            entry = log.entries[ts]
            if entry.ack.kind == p.DATA:
                yield Delivery(entry.seq, entry.ack.s, entry.ack.n, entry.bundle, COMMITTED)

    def shown(self) -> dict[str, object]:
        version = "{}.{}".format(*self.tl)
        return {"resilience": self.config.resilience, "role": self.role, "list": version}

    def bounds(self) -> dict[str, tuple[int, int]]:
        config = self.config
        # A rotation of the token, with NULLs, before and after a list change.
        turns = 4 * (len(self.group) + config.resilience + 1) * (config.kw + 1)
        kept = config.history + TRIM_EVERY + turns
        early = config.request_burst if config.bulk else 0
        return {
            "own": (len(self.own.kept) + len(self.own.waiting), config.own_limit),
            "qb": (len(self.ordering.qb), config.qb_limit + 2 + early),
            "qc": (len(self.ordering.qc), config.window + 1),
            "requests": (len(self.requests.pending), config.request_burst + 1),
            "log": (len(self.log.entries), kept),
            "staged": (len(self.recovery.staged), kept),
        }

    def check_invariants(self) -> None:
        """Raise InvariantBroken unless every part is consistent, by itself and with the others."""
        for name in self.PARTS:
            getattr(self, name).check_invariants()
