"""Parameters of the token protocol, checked once, with errors that name the field.

Times are integer nanoseconds.  The defaults are for a local network.  `TokenConfig.paper()` has the
settings under which CM84's Fig. 6 was simulated: requests at once and one by one, no idle beacon,
no limit of attempts, no kept history.  `TokenConfig.fast()` is what live groups use: nobody waits
for T, what is lost is repeated within milliseconds, and repetitions that remain unanswered become
rarer.
"""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct

from roundelay.core.engine import MS, NEVER
from roundelay.core.errors import ConfigError
from roundelay.core.limits import UNLIMITED, whole

PREFORMED: Final = "preformed"
COLD: Final = "cold"
REJOIN: Final = "rejoin"

MIB: Final = 1 << 20
BACKOFF_MAX: Final = 20


def most_resilience(sites: int) -> int:
    """L that a group of that many sites can have: a majority that has lost L sites of a list must
    have room for L + 1 holders, else nothing in it could commit.

    Two sites are a majority only together.  So they never go on with one, whatever L; but with
    L = 1 what is committed is at both, and either can lose its memory and come back.
    """
    return 1 if sites == 2 else (sites + 1) // 2 - 1


class TokenConfig(Struct, frozen=True, kw_only=True):
    """Group-wide constants of one token group; every member must use the same ones."""

    resilience: int = 1
    """L: sites that may fail without a committed message being lost."""
    hold_ns: int = 50 * MS
    """T: how long a token site waits for a message before a NULL or a confirmation."""
    kw: int = 1
    """K_w: data acknowledgements per token transfer."""
    kr: int = 1
    """K_r: token transfers per data acknowledgement."""
    resend_ns: int = 150 * MS
    """t_b: silence after which a source repeats its message; better above t_tok."""
    resend_jitter_ns: int = 0
    """How far t_b may be off, either way, drawn anew for each message."""
    pass_ns: int = 100 * MS
    """t_tok: repeat a transferring acknowledgement; must exceed T and a round trip."""
    request_ns: int = 50 * MS
    """t_req: repeat a retransmission request."""
    request_delay_ns: int = 1 * MS
    """Wait before the first request: jitter makes an acknowledgement overtake its message."""
    retx_ns: int = 50 * MS
    """t_retx: repeat a reformation message."""
    attempts: int = 8
    """R: unanswered attempts after which a silent site counts as failed."""
    attempts_hard: int = 32
    """R_hard: attempts in total, however much else is heard."""
    idle_ns: int = 1000 * MS
    """t_idle: beacon of an idle token site; NEVER turns the beacon and t_silence off."""
    eager: bool = False
    """A token site stamps all waiting messages, up to K_w, and passes the token with the last of
    them; with none to stamp it sends its NULL or confirmation at once, not after T."""
    to_source: bool = False
    """With `eager`, L = 1 and a group of 4 sites or fewer: a token site that stamps one message
    of another site passes the token to that site, which then knows of the commit by itself."""
    backoff: int = 0
    """How often the wait between two unanswered repetitions doubles."""
    adapt_ns: int = 0
    """Least wait before a repetition, where that follows the time that transfers of the token
    take; t_b, t_tok and t_req are then the longest.  0: it is always these."""
    batch: bool = True
    """Ask for ranges of acknowledgements instead of one by one."""
    bulk: bool = False
    """Ask for ranges of messages, too, and answer with several entries in one PDU."""
    bundle: bool = True
    """Put all waiting messages into the next PDU."""
    forks: bool = True
    """Whether a site that recovers shows what it has committed, to be compared (`recovery`)."""
    strict: bool = True
    """A restarted site is no witness of what it forgot (CM-R3)."""
    boot: str = PREFORMED
    """How a site without stable state begins: `preformed`, `cold`, `rejoin` (lost its disk)."""
    deliver_stamped: bool = False
    """Also hand messages over when they are stamped, before the commit."""
    history: int = 4096
    """Entries kept for sites that were away, beyond what list members may still ask for."""
    history_bytes: int = 64 * MIB
    """Memory for those entries, about; whichever bound is reached first counts."""
    own_limit: int = 4096
    """Submitted bundles waiting for their commit."""
    own_bytes: int = 16 * MIB
    """Bytes of submitted messages that have not been sent yet."""
    qb_limit: int = 1024
    """Received messages waiting for their stamp; more are dropped, which is loss like any other."""
    window: int = 4096
    """How far ahead of the next timestamp an acknowledgement is kept, and requested."""
    request_burst: int = 64
    """Missing acknowledgements asked for at once; the rest follow."""
    recover_batch: int = 32
    """Entries in one RECOVER_DATA."""
    max_payload: int = 1200
    """Bytes in one bundle."""
    reply_bytes: int = 0
    """Bytes of entries in one RECOVER_DATA or RETX_BULK, about; 0: as many as in a bundle."""

    @classmethod
    def paper(cls, unit_ns: int = 50 * MS, **changes: object) -> Self:
        """The settings of CM84's simulation, with T = `unit_ns` as the unit of time."""
        fiftieth = unit_ns // 50
        values: dict[str, object] = {
            "hold_ns": unit_ns,
            # t_b is about t_tok here: when a transfer is lost, its repetition and those of all
            # waiting sources coincide, but not to the nanosecond.
            "resend_ns": unit_ns + 2 * fiftieth // 3,
            "resend_jitter_ns": fiftieth // 2,
            "pass_ns": unit_ns + fiftieth,
            "request_ns": fiftieth,
            "request_delay_ns": 0,
            "retx_ns": fiftieth,
            "attempts": UNLIMITED,
            "attempts_hard": UNLIMITED,
            "idle_ns": NEVER,
            "batch": False,
            "bundle": False,
            "history": 0,
            "history_bytes": UNLIMITED,
            "own_limit": UNLIMITED,
            "own_bytes": UNLIMITED,
            "qb_limit": UNLIMITED,
        }
        return cls(**(values | changes))  # type: ignore[arg-type]

    @classmethod
    def fast(cls, **changes: object) -> Self:
        """What live groups use, on a local network or within one machine.

        A failed token site is noticed after about a second.  An idle group sends one PDU a second.
        """
        values: dict[str, object] = {
            "hold_ns": 1 * MS,
            "resend_ns": 15 * MS,
            "pass_ns": 10 * MS,
            "request_ns": 10 * MS,
            "request_delay_ns": 1 * MS,
            "retx_ns": 40 * MS,
            "eager": True,
            "to_source": True,
            "kw": 64,
            "backoff": 4,
            "adapt_ns": 1 * MS,
            "bulk": True,
            "history": 65536,
            "history_bytes": 32 * MIB,
            "own_bytes": 4 * MIB,
            "qb_limit": 256,
            "recover_batch": 255,
        }
        return cls(**(values | changes))  # type: ignore[arg-type]

    @property
    def sync_commits(self) -> bool:
        """Whether COMMIT records must be durable before the sends of their batch."""
        return self.resilience == 0

    @property
    def reply_limit(self) -> int:
        """After so many bytes of entries a reply goes on in another PDU."""
        return self.reply_bytes or self.max_payload

    @property
    def impatient(self) -> bool:
        """Whether repetitions follow each other at growing distances."""
        return bool(self.backoff or self.adapt_ns)

    def free_heirs(self, sites: int) -> bool:
        """Whether the token need not go around the ring, in a group of that many sites.

        In a group of 4 a majority lacks one site at most, so that it costs the resiliency test
        nothing not to know whom the missing one may have passed the token to.
        """
        return self.to_source and self.eager and self.resilience == 1 and sites <= 4

    @property
    def silence_ns(self) -> int:
        """t_silence: a site that hears nothing of its list for this long starts a reformation."""
        return NEVER if self.idle_ns >= NEVER else (self.attempts + 1) * self.idle_ns

    @property
    def slave_timeout_ns(self) -> int:
        """TIMEOUT_j: how long a slave waits for its originator."""
        return (2 * self.attempts + 4) * self.retx_ns

    @property
    def token_timeout_ns(self) -> int:
        """TIMEOUT_k: how long the new token site waits for its token."""
        return (3 * self.attempts + 4) * self.retx_ns

    @property
    def auth_timeout_ns(self) -> int:
        """t_auth: how long a list may stay without a token (CM-R15)."""
        return max(4 * self.attempts, 1) * self.retx_ns

    def check(self, sites: int) -> Self:
        """Raise ConfigError unless this configuration can run a group of that many sites."""
        whole("sites", sites, 1, 65535)
        most = most_resilience(sites)
        whole("resilience", self.resilience, 0, most, f" for {sites} sites")
        whole("kw", self.kw, 1, UNLIMITED)
        whole("kr", self.kr, 1, max(1, sites - 1), f" for {sites} sites")
        if self.kw > 1 and self.kr > 1:
            raise ConfigError("kr", self.kr, f"1 when kw is above 1 (kw = {self.kw})")
        for name in ("hold_ns", "resend_ns", "pass_ns", "request_ns", "retx_ns", "idle_ns"):
            whole(name, getattr(self, name), 1, NEVER)
        whole("resend_jitter_ns", self.resend_jitter_ns, 0, self.resend_ns - 1)
        whole("request_delay_ns", self.request_delay_ns, 0, NEVER)
        if self.pass_ns <= self.hold_ns:
            raise ConfigError("pass_ns", self.pass_ns, f"above hold_ns = {self.hold_ns}")
        whole("backoff", self.backoff, 0, BACKOFF_MAX)
        whole("adapt_ns", self.adapt_ns, 0, min(self.pass_ns, self.request_ns, self.resend_ns))
        if self.adapt_ns and not self.eager:
            raise ConfigError("adapt_ns", self.adapt_ns, "0 unless eager: T is no transfer time")
        if self.to_source and self.kr > 1:
            raise ConfigError("to_source", self.to_source, f"off when kr is above 1 ({self.kr})")
        if self.idle_ns <= self.resend_ns << self.backoff:
            # A beacon counts as progress; more frequent than t_b, it would keep a source from
            # ever repeating its message (CM-N4).
            doubled = f" doubled {self.backoff} times (backoff)" if self.backoff else ""
            allowed = f"above resend_ns = {self.resend_ns}{doubled}"
            raise ConfigError("idle_ns", self.idle_ns, allowed)
        whole("attempts", self.attempts, 0, UNLIMITED)
        whole("attempts_hard", self.attempts_hard, self.attempts, UNLIMITED)
        for name in ("own_limit", "qb_limit", "window", "request_burst", "recover_batch"):
            whole(name, getattr(self, name), 1, UNLIMITED)
        whole("history", self.history, 0, UNLIMITED)
        whole("history_bytes", self.history_bytes, 0, UNLIMITED)
        whole("own_bytes", self.own_bytes, 1, UNLIMITED)
        whole("max_payload", self.max_payload, 1, UNLIMITED)
        whole("reply_bytes", self.reply_bytes, 0, UNLIMITED)
        if self.boot not in (PREFORMED, COLD, REJOIN):
            raise ConfigError("boot", self.boot, f"{PREFORMED}, {COLD} or {REJOIN}")
        return self
