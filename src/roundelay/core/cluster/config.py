"""Parameters of a cluster, checked once."""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct

from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, MS, NEVER, PREACKNOWLEDGED
from roundelay.core.errors import ConfigError
from roundelay.core.limits import one_of, whole

DEFERRED: Final = "deferred"
EAGER: Final = "eager"
STATIC: Final = "static"
DYNAMIC: Final = "dynamic"
STAGES: Final = (ACCEPTED, PREACKNOWLEDGED, ACKNOWLEDGED)

MEMBERS_MAX: Final = 128

FROM_ZERO: Final = ("ack_ns", "buffers")
FROM_ONE: Final = (
    *("wait_ns", "stat_ns", "reset_ns", "window", "share"),
    *("attempts", "retx_burst", "own_limit", "max_payload"),
)
"""Parameters by the least value that they may have."""


class ClusterConfig(Struct, frozen=True, kw_only=True):
    """Constants of one cluster; every member must use the same ones, but for `deliver_at` and
    `early`."""

    ack_ns: int = 5 * MS
    """t_ack: how long an owed acknowledgement waits for data to ride on."""
    wait_ns: int = 30 * MS
    """t_wait: what is late may still come; more than the spread of delays between channels."""
    stat_ns: int = 100 * MS
    """t_stat: a member that makes no progress polls the others this often."""
    reset_ns: int = 30 * MS
    """t_rst: repeat a reset PDU."""
    window: int = 8
    """W: own data PDUs under way."""
    share: int = 2
    """H, C: how much more buffer than n² PDUs of each there must be per PDU in the window."""
    buffers: int = 0
    """PDUs a member has room for; 0 stands for 64 n²."""
    attempts: int = 8
    """R: unanswered polls after which a member is suspected; twice as many break the cluster."""
    policy: str = DEFERRED
    """`deferred`: acknowledge when owed, on data if there is any; `eager`: the worst case."""
    deliver_at: str = ACKNOWLEDGED
    """The stage at which messages are handed over."""
    early: str = ""
    """An earlier stage at which they are handed over once more before, without a place in the
    order; empty: none.  For who wants them soon, beside those who want them for good."""
    retx_burst: int = 16
    """PDUs sent again for one request."""
    bundle: bool = False
    """Put all waiting messages with the same destinations into the next PDU."""
    own_limit: int = 4096
    """Submitted bundles that have not been sent."""
    max_payload: int = 1200
    """Bytes in one bundle."""
    boot: str = STATIC
    """`static`: everybody knows that everybody starts at 1; `dynamic`: agree on it first."""

    def check(self, sites: int) -> Self:
        """Raise ConfigError unless this configuration can run a cluster of that many members."""
        if not 2 <= sites <= MEMBERS_MAX:
            raise ConfigError("sites", sites, f"2 to {MEMBERS_MAX} members in a cluster")
        for name in (*FROM_ZERO, *FROM_ONE):
            whole(name, getattr(self, name), int(name in FROM_ONE), NEVER)
        one_of("policy", self.policy, (DEFERRED, EAGER))
        one_of("deliver_at", self.deliver_at, STAGES, ", ")
        if self.early and self.early not in STAGES[: STAGES.index(self.deliver_at)]:
            raise ConfigError("early", self.early, f"a stage before {self.deliver_at}, or none")
        one_of("boot", self.boot, (STATIC, DYNAMIC))
        return self
