"""Engines as the explorer handles them: compared, put aside, taken up again, and made to move.

Time stands still at 0: every timer is armed in the future, so none is due by itself, and `fire`
makes one due by moving its slot to 0.

Two engines are in the same state when `fingerprint` says so.  It leaves out what makes no
difference to any later step (LEFT_OUT has the reasons), and what a frozen site forgets anyway when
it enters its next list.  `explore_plain.py` compares everything and serves as a check.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from random import Random
from typing import Any, Final

from roundelay.core.engine import NEVER, Effects
from roundelay.core.errors import InvariantBroken
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.core.token.state import NORMAL, O1, O2, S2, W3
from roundelay.sim.explore_scope import KEEP_ALL

LONG_AGO: Final = -(1 << 60)


ALWAYS: Final = (
    "phase", "tl", "members", "start_ts", "first", "max_joined", "seen_version", "nts", "nseq",
    "cnts", "seq", "exp", "own_base", "attempt", "amnesia", "wiped", "boot", "inviter", "past",
)  # fmt: skip
ALWAYS_MANY: Final = ("log", "next_num", "own", "waiting")
IN_A_LIST: Final = (  # of no use while frozen: entering the next list sets all of it anew
    "authorized", "holding", "accepted_upto", "confirm_ts", "confirm_by", "outstanding",
    "uncommitted",
)  # fmt: skip
IN_A_LIST_MANY: Final = ("qb", "qc", "transfers", "since_data")
WITH_THE_TOKEN: Final = ("hold_ts", "turn", "hold_due")
RECOVERING: Final = ("new_tl", "recover_from", "gap", "staged")  # phases S2 and O2
VOTES: Final = ("votes", "yes_votes")  # phases O1 and O2
SHORT_HISTORY: Final = ("first_kept", "pruned", "have", "issues")  # what is forgotten, see `Scope`

TRIED: Final = ("hold_due", "beacon_due", "reform_due")  # timers; the others are left out below

LEFT_OUT: Final[dict[str, str]] = {
    "me config group resilience history rng out successor logs":
        "the same in all states, or derived",
    "floor": "sites of the explorer have no recorders",
    "logged": "derived from the log and the disk, which is compared, too, where sites crash",
    "kept_bytes trim_bytes waiting_bytes": "derived; the bounds they are held to are out of reach",
    "heard progress send_last send_wait deadline beacon_wait": "time stands still",
    "pass_sent pass_time pass_vary pass_wait": "likewise",
    "drops blocked start_seq storage_max retained trimmed": "told to others, never looked at",
    "send_silent send_total pass_silent pass_total token_tries tries failures":
        "count attempts, of which there is one, or choose a duration",
    "send_due pass_due request_due silence_due auth_due token_due":
        "when they fire they start a reformation or repeat what was sent; `reform` is always tried",
    "reform_due": "armed in the same phases always",
    "beacon_due": "confirms again; `hold_due` does so too unless a NULL is due",
    "mine": "the lists it has committed to in this life, which its log and its disk tell as well",
    "lives": "there is one life of each site at a time: nobody is left to be refused",
    "seen": "only judges a site that forgot a list and does not know it; here a site that restarts "
        "keeps its boot number, or has lost its disk and knows that",
    "requests known_top wanted_upto last_ts shown passing pass_ack current":
        "asking and answering: what is sent again is still in the network",
}  # fmt: skip

_COMPARED: Final = (
    ALWAYS + ALWAYS_MANY + IN_A_LIST + IN_A_LIST_MANY + WITH_THE_TOKEN + RECOVERING + VOTES
    + SHORT_HISTORY
)  # fmt: skip
_IGNORED: Final = tuple(name for names in LEFT_OUT for name in names.split())
_SLOTS: Final = tuple(name for kind in TokenSite.__mro__ for name in getattr(kind, "__slots__", ()))
_always = attrgetter(*ALWAYS)
_in_a_list = attrgetter(*IN_A_LIST)


def check_slots() -> None:
    """Raise unless every slot of the engine is either compared or left out for a reason.

    A slot that is neither would make the explorer take different states for one.
    """
    odd = set(_SLOTS) ^ set(_COMPARED + _IGNORED)
    if odd:
        raise InvariantBroken(f"the explorer does not know these slots: {', '.join(sorted(odd))}")


def fingerprint(site: TokenSite) -> tuple[Any, ...]:
    """What decides all later steps of `site`."""
    phase = site.phase
    common = (
        _always(site), tuple(site.log.values()), tuple(sorted(site.next_num.items())),
        tuple(site.own), tuple(site.waiting),
    )  # fmt: skip
    more: tuple[Any, ...] = ()
    if phase in (NORMAL, W3):
        more = (
            _in_a_list(site), tuple(site.qb.items()), tuple(sorted(site.qc.items())),
            tuple(site.transfers), min(site.since_data, site.config.kr),
        )  # fmt: skip
        if site.holding:
            # With `eager` a turn is this timer; without, it sends a NULL or confirms again.
            matters = site.config.eager or site.uncommitted > 0
            more += (site.hold_ts, site.turn, matters and site.hold_due < NEVER)
    elif phase == O1:
        more = tuple(sorted(site.votes.items()))
    elif phase in (O2, S2):
        more = (
            site.new_tl, site.recover_from, site.gap, tuple(site.staged.values()),
            tuple(sorted(site.yes_votes)) if phase == O2 else (),
        )  # fmt: skip
    if site.history < KEEP_ALL:
        more += (
            site.first_kept, site.pruned, tuple(sorted(site.have.items())), tuple(site.issues),
        )  # fmt: skip
    return common, more


def on_disk(stable: Stable) -> tuple[Any, ...]:
    """What decides a restart."""
    return (
        stable.max_joined, stable.tl, stable.members, stable.start_ts, stable.first, stable.cnts,
        stable.seq, stable.first_kept, stable.wiped, stable.forgot, stable.whole, stable.history,
        tuple(sorted(stable.counters.items())), tuple(sorted(stable.entries.items())),
    )  # fmt: skip


# -- engines put aside -------------------------------------------------------------------------

_CONTAINERS: Final[dict[str, type]] = {
    name: type(value)
    for name, value in (
        (name, getattr(TokenSite(0, (0, 1), TokenConfig(resilience=0), Random(0)), name))
        for name in _SLOTS
    )
    if isinstance(value, dict | set | deque) and name not in ("requests", "successor")
}
_VALUES: Final = tuple(name for name in _SLOTS if name not in (*_CONTAINERS, "out", "requests"))
_values = attrgetter(*_VALUES)

Frozen = tuple[type[TokenSite], tuple[Any, ...], tuple[Any, ...]]
"""An engine as tuples: a fifth of its size."""


def frozen(site: TokenSite) -> Frozen:
    many = [getattr(site, name) for name in _CONTAINERS]
    many.append(site.requests)
    return (
        site.__class__,
        _values(site),
        tuple([tuple(one.items()) if isinstance(one, dict) else tuple(one) for one in many]),
    )


def thawed(ice: Frozen) -> TokenSite:
    """A new engine in that state."""
    site_class, values, many = ice
    site = object.__new__(site_class)
    for name, value in zip(_VALUES, values, strict=True):
        setattr(site, name, value)
    for (name, kind), value in zip(_CONTAINERS.items(), many, strict=False):
        setattr(site, name, kind(value))
    site.requests = {key: list(request) for key, request in many[-1]}
    site.out = Effects()
    return site


def copied_disk(stable: Stable, whole: bool = False) -> Stable:
    """A disk of its own; `whole`: whether a restart from it will know that nothing is missing."""
    new = object.__new__(stable.__class__)
    for name in Stable.__slots__:
        value = getattr(stable, name)
        setattr(new, name, value.copy() if isinstance(value, dict) else value)
    new.whole = whole
    return new


class Still(Random):
    """Randomness decides back-offs, which do not matter while time stands still, and boot numbers.

    A site that restarts from its disk keeps its boot number here: numbers that differ could only
    make it refuse more.  One that lost its disk gets a new one, as it does in earnest.
    """

    def __init__(self, boot: int) -> None:
        super().__init__(0)
        self.boot = boot

    def randint(self, a: int, b: int) -> int:
        return a

    def getrandbits(self, k: int, /) -> int:
        return self.boot


def fire(site: TokenSite, due: str) -> None:
    """Let the timer `due` come."""
    setattr(site, due, 0)
    site.heard = site.progress = site.send_last = LONG_AGO
    if due == "request_due":
        for request in site.requests.values():
            request[0] = 0
    site.on_timer(0)
    site.heard = site.progress = site.send_last = 0
