"""The phases of a token site (CM84 Fig. 5), and which of them may follow which.

What a site answers to depends on its phase alone.  The phase changes in one place,
`TokenSite.become`, and only along TRANSITIONS; the diagram in `docs/token.md` is drawn from it.
"""

from __future__ import annotations

from typing import Final

START: Final = "START"  # not yet anything: an engine that is being made
NORMAL: Final = "NORMAL"  # in a list, sending, stamping, committing
OUT: Final = "OUT"  # left a list or an attempt, waiting at random before originating
O1: Final = "O1"  # originator, collecting votes on its invitation
O2: Final = "O2"  # originator, announcing the new list
S1: Final = "S1"  # slave, accepted an invitation
S2: Final = "S2"  # slave, recovering what the announced list requires
W3: Final = "W3"  # new token site, waiting for its token
BROKEN: Final = "BROKEN"  # its history and that of others differ: it does nothing more

ANY: Final = frozenset((NORMAL, OUT, O1, O2, S1, S2, W3))
"""All phases in which a site listens."""

FROZEN: Final = frozenset((OUT, O1, S1, BROKEN))
"""Who enters one of these has left its list for good: the resiliency test counts on it."""

_FORKED: Final = "two histories meet"

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    START: {NORMAL: "the group begins with a list", OUT: "cold boot, rejoin or restart"},
    NORMAL: {
        O1: "a failure, or a newer list",
        S1: "INVITE",
        OUT: "ABORT of a list without a token",
        BROKEN: _FORKED,
    },
    OUT: {O1: "the wait is over", S1: "INVITE", OUT: "no list version is left", BROKEN: _FORKED},
    O1: {O2: "the voters pass the tests", OUT: "a refusal, or a test fails", BROKEN: _FORKED},
    O2: {NORMAL: "all have committed", OUT: "a refusal, or 2R attempts", BROKEN: _FORKED},
    S1: {S2: "NEW_TL", OUT: "ABORT, time-out", BROKEN: _FORKED},
    S2: {
        NORMAL: "has everything, votes",
        W3: "has everything, votes, is elected",
        OUT: "ABORT, time-out",
        BROKEN: _FORKED,
    },
    W3: {NORMAL: "NEW_TOKEN", OUT: "ABORT, time-out", BROKEN: _FORKED},
    BROKEN: {OUT: "an operator ends this history"},
}
"""From each phase: where it leads, and what leads there."""
