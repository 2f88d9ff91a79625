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

Theory of operation: `normal.py` and `reform.py`; the state they share: `state.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Final

from roundelay.core.engine import EVERYONE, NEVER, Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.token import pdu as p
from roundelay.core.token.checks import CHECKS
from roundelay.core.token.config import PREFORMED, REJOIN, TokenConfig
from roundelay.core.token.lives import UNKNOWN
from roundelay.core.token.reform import ANOTHER_LIFE, Reformation
from roundelay.core.token.stable import Stable, Wiped
from roundelay.core.token.state import BROKEN, NORMAL, O2, OUT, S2

PDUS: dict[type[Pdu], str] = {
    p.B: "on_b",
    p.Ack: "on_ack",
    p.Confirm: "on_confirm",
    p.RetxReq: "on_retx_req",
    p.RetxAck: "on_retx_ack",
    p.RetxMsg: "on_retx_msg",
    p.RetxBulk: "on_retx_bulk",
    p.AckRun: "on_ack_run",
    p.TlHint: "on_tl_hint",
    p.Invite: "on_invite",
    p.Vote1: "on_vote1",
    p.NewTl: "on_new_tl",
    p.Vote2: "on_vote2",
    p.NewToken: "on_new_token",
    p.Abort: "on_abort",
    p.RecoverReq: "on_recover_req",
    p.RecoverData: "on_recover_data",
    p.Forked: "on_forked",
}

OF_A_LIST: frozenset[type[Pdu]] = frozenset(
    (p.B, p.Ack, p.AckRun, p.Confirm, p.RetxReq, p.RetxAck, p.RetxMsg, p.RetxBulk, p.RecoverData,
     p.NewToken)
)  # fmt: skip
"""PDUs that only the lives a list is made of may send."""

# Each timer and what it does; `on_timer` goes through them in this order.
TIMERS = (
    ("send_due", "on_send_timer"),
    ("request_due", "on_request_timer"),
    ("hold_due", "on_hold_timer"),
    ("pass_due", "on_pass_timer"),
    ("beacon_due", "on_beacon_timer"),
    ("token_due", "on_list_timer"),
    ("auth_due", "on_auth_timer"),
    ("silence_due", "on_silence_timer"),
    ("reform_due", "on_reform_timer"),
)


PATIENCE: Final = 4
"""Invitations to one that is believed to be gone."""

PREFORMED_PAST: Final[p.History] = (1, 0, 0)
"""The history of a group that begins with a list."""

Handler = Callable[[Any, Any, int, int], None]


def guarded(check: Callable[[Any, Any, int], str], handler: Handler) -> Handler:
    """`handler`, for PDUs that pass `check`."""

    def handle(site: Any, pdu: Any, source: int, now: int) -> None:
        reason = check(site, pdu, source)
        if reason:
            site.drop(reason)
        else:
            handler(site, pdu, source, now)

    return handle


def handlers_of(cls: type[Reformation]) -> dict[type[Pdu], Handler]:
    """What a site of that class answers to: one look-up per arrival."""
    plain = {kind: getattr(cls, name) for kind, name in PDUS.items()}
    return plain | {kind: guarded(check, plain[kind]) for kind, check in CHECKS.items()}


class TokenSite(Reformation):
    """One site of a token group (CM84)."""

    __slots__ = ()

    HANDLERS: ClassVar[dict[type[Pdu], Handler]] = {}

    def __init_subclass__(cls) -> None:
        cls.HANDLERS = handlers_of(cls)

    def __init__(
        self,
        me: int,
        group: tuple[int, ...],
        config: TokenConfig,
        rng: Random,
        stable: Stable | None = None,
        now: int = 0,
    ) -> None:
        if me not in group:
            raise ConfigError("me", me, f"one of the group's sites {group}")
        if len(set(group)) != len(group):
            raise ConfigError("group", group, "each site once")
        config.check(len(group))
        super().__init__(me, group, config, rng)
        self.heard = self.progress = now
        if stable is not None:
            # CM-R17: whatever list is remembered, never resume it.
            self.restore(stable)
        elif config.boot == PREFORMED:
            self.boot_preformed(now)
            return
        else:
            self.wiped = self.amnesia = config.boot == REJOIN
            if self.wiped:
                self.out.persists.append(Wiped(True))
        self.phase = OUT
        # Restart, rejoin, cold boot: originate after a random wait.
        self.reform_due = self.arm(now + rng.randint(1, 4 * config.retx_ns))

    def boot_preformed(self, now: int) -> None:
        """Everybody starts in list (0, 0); the lowest site has the token."""
        self.join_version((0, 0))
        self.enter_list((0, 0), self.group, 0, self.group[0], None, PREFORMED_PAST)
        self.phase = NORMAL
        self.watch(now)
        self.authorize(now)
        if self.me == self.first:
            self.accept(-1, now)
            self.shown = True
            self.hold_due = NEVER
            self.beacon_due = self.arm(now + self.config.idle_ns)

    def reform(self, now: int) -> None:
        """Start a reformation, as if a failure had been detected."""
        if self.phase in (NORMAL, OUT):
            self.start_reformation(now, "asked for")

    def conclude(self) -> None:
        """Commit all that is here, although nobody agrees: an operator ends this history with it
        (`node.recovery`).  The site must not take part in anything afterwards."""
        self.freeze()
        self.phase = OUT
        self.reform_due = NEVER
        self.commit_upto(self.nts)

    def without(self, now: int) -> None:
        """The owner has reason to believe that a member is gone: agree on a list without waiting
        long for those who say nothing.  It may be wrong: who is there after all is let in again.
        """
        if self.phase == NORMAL:
            self.start_reformation(now, "a member is missed")
            self.tries[EVERYONE] = max(0, self.config.attempts - PATIENCE)

    def nudge(self, now: int) -> None:
        """CM-N21 by hand, for groups without the idle beacon: confirm again if holding."""
        if self.holding:
            self.confirm(self.hold_ts)

    @property
    def role(self) -> str:
        """`token`, `passing` or the phase: what a picture of the group shows."""
        if self.phase != NORMAL:
            return self.phase
        return "token" if self.holding else "passing" if self.passing >= 0 else "idle"

    def receive(self, pdu: Pdu, source: int, now: int, life: int = UNKNOWN) -> None:
        if self.phase is BROKEN:
            return
        if life and self.lives.get(source, life) != life and pdu.__class__ in OF_A_LIST:
            self.drop(ANOTHER_LIFE)
            return
        if self.passing >= 0 and source == self.exp:
            self.pass_silent = 0  # CM-N16: the next site is alive, if slow
            if self.pass_total and self.config.impatient:
                self.hurry(now)
        handler = self.HANDLERS.get(pdu.__class__)
        if handler is None:
            self.drop("not a PDU of the token protocol")
            return
        handler(self, pdu, source, now)

    def on_timer(self, now: int) -> None:
        # One by one, in the order of TIMERS: this is called for nearly every PDU.
        if self.send_due <= now:
            self.on_send_timer(now)
        if self.request_due <= now:
            self.on_request_timer(now)
        if self.hold_due <= now:
            self.on_hold_timer(now)
        if self.pass_due <= now:
            self.on_pass_timer(now)
        if self.beacon_due <= now:
            self.on_beacon_timer(now)
        if self.token_due <= now:
            self.on_list_timer(now)
        if self.auth_due <= now:
            self.on_auth_timer(now)
        if self.silence_due <= now:
            self.on_silence_timer(now)
        if self.reform_due <= now:
            self.on_reform_timer(now)
        self.deadline = min(
            self.send_due, self.request_due, self.hold_due, self.pass_due, self.beacon_due,
            self.token_due, self.auth_due, self.silence_due, self.reform_due,
        )  # fmt: skip

    def on_list_timer(self, now: int) -> None:
        """`token_due` serves the recovery before the list is entered and its token afterwards."""
        if self.phase in (S2, O2):
            self.on_recovery_timer(now)
        else:
            self.on_token_timer(now)

    def on_auth_timer(self, now: int) -> None:
        """CM-R15: a list whose token never came."""
        self.start_reformation(now, "no token")


TokenSite.HANDLERS = handlers_of(TokenSite)
