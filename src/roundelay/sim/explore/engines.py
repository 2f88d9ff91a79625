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
from roundelay.core.token.phases import NORMAL, O1, O2, S2, W3
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.explore.scope import KEEP_ALL

LONG_AGO: Final = -(1 << 60)


ALWAYS: Final = (
    "phase", "boot", "token_list.version", "token_list.members", "token_list.start_ts",
    "token_list.first", "token_list.history", "log.nts", "log.nseq", "log.cnts", "log.seq",
    "log.exp", "own.base", "reformation.max_joined", "reformation.seen_version",
    "reformation.attempt", "reformation.amnesia", "reformation.wiped", "reformation.inviter",
)  # fmt: skip
ALWAYS_MANY: Final = ("log.entries", "log.next_num", "own.kept", "own.waiting")
IN_A_LIST: Final = (  # of no use while frozen: entering the next list sets all of it anew
    "token_list.authorized", "stamping.holding", "commit.accepted_upto", "commit.confirm_ts",
    "commit.confirm_by", "own.outstanding", "log.uncommitted",
)  # fmt: skip
IN_A_LIST_MANY: Final = ("ordering.qb", "ordering.qc", "commit.transfers", "stamping.since_data")
WITH_THE_TOKEN: Final = ("stamping.hold_ts", "stamping.turn", "timers.hold_due")
RECOVERING: Final = (  # phases S2 and O2
    "reformation.new_tl", "recovery.recover_from", "recovery.gap", "recovery.staged",
)  # fmt: skip
VOTES: Final = ("reformation.votes", "reformation.yes_votes")  # phases O1 and O2
SHORT_HISTORY: Final = (  # what is forgotten, see `Scope`
    "log.first_kept", "log.pruned", "commit.have", "commit.issues",
)  # fmt: skip

TRIED: Final = ("hold_due", "beacon_due", "reform_due")  # timers; the others are left out below

LEFT_OUT: Final[dict[str, str]] = {
    "me config group rng out handlers log.config log.writes_stamped token_list.successor "
    "stamping.free_heirs commit.level":
        "the same in all states, or derived",
    "reformation.floor": "sites of the explorer have no recorders",
    "log.logged":
        "derived from the log and the disk, which is compared, too, where sites crash",
    "log.kept_bytes log.trim_bytes own.waiting_bytes":
        "derived; the bounds they are held to are out of reach",
    "timers.heard timers.progress own.send_last own.send_wait deadline stamping.beacon_wait":
        "time stands still",
    "stamping.pass_sent stamping.pass_time stamping.pass_vary stamping.pass_wait": "likewise",
    "drops reformation.blocked token_list.start_seq log.storage_max log.retained log.trimmed":
        "told to others, never looked at",
    "own.send_silent own.send_total stamping.pass_silent stamping.pass_total "
    "reformation.token_tries reformation.tries reformation.failures":
        "count attempts, of which there is one, or choose a duration",
    "timers.send_due timers.pass_due timers.request_due timers.silence_due timers.auth_due "
    "timers.token_due":
        "when they fire they start a reformation or repeat what was sent; `reform` is always tried",
    "timers.reform_due": "armed in the same phases always",
    "timers.beacon_due": "confirms again; `hold_due` does so too unless a NULL is due",
    "own.lists":
        "the lists it has committed to in this life, which its log and its disk tell as well",
    "token_list.lives": "there is one life of each site at a time: nobody is left to be refused",
    "reformation.seen":
        "only judges a site that forgot a list and does not know it; here a site that restarts "
        "keeps its boot number, or has lost its disk and knows that",
    "requests.pending requests.known_top requests.wanted_upto log.last_ts stamping.shown "
    "stamping.passing stamping.pass_ack own.current":
        "asking and answering: what is sent again is still in the network",
}  # fmt: skip

_COMPARED: Final = (
    ALWAYS + ALWAYS_MANY + IN_A_LIST + IN_A_LIST_MANY + WITH_THE_TOKEN + RECOVERING + VOTES
    + SHORT_HISTORY
)  # fmt: skip
_IGNORED: Final = tuple(name for names in LEFT_OUT for name in names.split())
PART_SLOTS: Final[dict[str, tuple[str, ...]]] = {
    name: tuple(slot for slot in part.__slots__ if slot != "site")
    for name, part in TokenSite.PARTS.items()
}
"""The state of each part of a site."""
_OWN_SLOTS: Final = tuple(
    slot
    for kind in TokenSite.__mro__
    for slot in getattr(kind, "__slots__", ())
    if slot not in PART_SLOTS
)
SLOTS: Final = _OWN_SLOTS + tuple(
    f"{part}.{slot}" for part, slots in PART_SLOTS.items() for slot in slots
)
"""The whole state of a site: its slots and those of its parts."""
_always = attrgetter(*ALWAYS)
_in_a_list = attrgetter(*IN_A_LIST)


def check_slots() -> None:
    """Raise unless every slot of the engine is either compared or left out for a reason.

    A slot that is neither would make the explorer take different states for one.
    """
    odd = set(SLOTS) ^ set(_COMPARED + _IGNORED)
    if odd:
        raise InvariantBroken(f"the explorer does not know these slots: {', '.join(sorted(odd))}")


def fingerprint(site: TokenSite) -> tuple[Any, ...]:
    """What decides all later steps of `site`."""
    phase, log, commit, reformation = site.phase, site.log, site.commit, site.reformation
    common = (
        _always(site), tuple(log.entries.values()), tuple(sorted(log.next_num.items())),
        tuple(site.own.kept), tuple(site.own.waiting),
    )  # fmt: skip
    more: tuple[Any, ...] = ()
    if phase in (NORMAL, W3):
        stamping, ordering = site.stamping, site.ordering
        more = (
            _in_a_list(site), tuple(ordering.qb.items()), tuple(sorted(ordering.qc.items())),
            tuple(commit.transfers), min(stamping.since_data, site.config.kr),
        )  # fmt: skip
        if stamping.holding:
            # With `eager` a turn is this timer; without, it sends a NULL or confirms again.
            matters = site.config.eager or log.uncommitted > 0
            more += (stamping.hold_ts, stamping.turn, matters and site.timers.hold_due < NEVER)
    elif phase == O1:
        more = tuple(sorted(reformation.votes.items()))
    elif phase in (O2, S2):
        recovery = site.recovery
        more = (
            reformation.new_tl, recovery.recover_from, recovery.gap,
            tuple(recovery.staged.values()),
            tuple(sorted(reformation.yes_votes)) if phase == O2 else (),
        )  # fmt: skip
    if site.config.history < KEEP_ALL:
        more += (
            log.first_kept, log.pruned, tuple(sorted(commit.have.items())), tuple(commit.issues),
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

_EXAMPLE: Final = TokenSite(0, (0, 1), TokenConfig(resilience=0), Random(0))
_CONTAINERS: Final[dict[str, dict[str, type]]] = {
    name: {
        slot: type(value)
        for slot, value in ((slot, getattr(getattr(_EXAMPLE, name), slot)) for slot in slots)
        if isinstance(value, dict | set | deque) and slot not in ("pending", "successor")
    }
    for name, slots in PART_SLOTS.items()
}
_VALUES: Final = {
    name: tuple(slot for slot in slots if slot not in (*_CONTAINERS[name], "pending"))
    for name, slots in PART_SLOTS.items()
}
_SITE_VALUES: Final = tuple(slot for slot in _OWN_SLOTS if slot not in ("drops", "handlers", "out"))
_ALL_VALUES: Final = (
    *_SITE_VALUES, *(f"{name}.{slot}" for name, slots in _VALUES.items() for slot in slots)
)  # fmt: skip
_ALL_CONTAINERS: Final = tuple(
    f"{name}.{slot}" for name, slots in _CONTAINERS.items() for slot in slots
)
_values = attrgetter(*_ALL_VALUES)
_many = attrgetter("drops", *_ALL_CONTAINERS, "requests.pending")

Frozen = tuple[type[TokenSite], tuple[Any, ...], tuple[Any, ...]]
"""An engine as tuples: a fifth of its size."""


def frozen(site: TokenSite) -> Frozen:
    return (
        site.__class__,
        _values(site),
        tuple([tuple(v.items()) if isinstance(v, dict) else tuple(v) for v in _many(site)]),
    )


def thawed(ice: Frozen) -> TokenSite:
    """A new engine in that state."""
    site_class, values, many = ice
    site = object.__new__(site_class)
    value, items = iter(values), iter(many)
    for slot in _SITE_VALUES:
        setattr(site, slot, next(value))
    site.drops = dict(next(items))
    for name, kind in site_class.PARTS.items():
        part: Any = object.__new__(kind)
        setattr(site, name, part)
        if name != "log":
            part.site = site
        for slot in _VALUES[name]:
            setattr(part, slot, next(value))
        for slot, container in _CONTAINERS[name].items():
            setattr(part, slot, container(next(items)))
    site.requests.pending = {item: list(request) for item, request in next(items)}
    site.out = Effects()
    site.bind_handlers()
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
    timers, own = site.timers, site.own
    setattr(timers, due, 0)
    timers.heard = timers.progress = own.send_last = LONG_AGO
    if due == "request_due":
        for request in site.requests.pending.values():
            request[0] = 0
    site.on_timer(0)
    timers.heard = timers.progress = own.send_last = 0
