"""What decides all later steps of a token site, and what of its disk decides a restart.

Two engines are in the same state when `fingerprint` says so.  It leaves out what makes no
difference to any later step (LEFT_OUT has the reasons), and what a frozen site forgets anyway when
it enters its next list.  `tests/sim/unreduced.py` compares everything and serves as a check.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from roundelay.core.engine import NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.token.phases import NORMAL, O1, O2, S2, W3
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.explore.scope import KEEP_ALL
from roundelay.sim.explore.snapshot import slots_of

_ALWAYS: Final = (
    "phase boot token_list.version token_list.members token_list.start_ts token_list.first "
    "token_list.history log.nts log.nseq log.cnts log.seq log.exp own.base reformation.max_joined "
    "reformation.seen_version reformation.attempt reformation.amnesia reformation.wiped "
    "reformation.inviter"
)
# Of no use while frozen: entering the next list sets all of it anew.
_IN_A_LIST: Final = (
    "token_list.authorized stamping.holding commit.accepted_upto commit.confirm_ts "
    "commit.confirm_by own.outstanding log.uncommitted"
)
_ON_DISK: Final = (
    "max_joined tl members start_ts first cnts seq first_kept wiped forgot whole history"
)
_COMPARED: Final = (
    _ALWAYS,
    _IN_A_LIST,
    "log.entries log.next_num own.kept own.waiting",
    "ordering.qb ordering.qc commit.transfers stamping.since_data",  # in a list, too
    "stamping.hold_ts stamping.turn timers.hold_due",  # with the token
    "reformation.new_tl recovery.recover_from recovery.gap recovery.staged",  # in S2 and O2
    "reformation.votes reformation.yes_votes",  # in O1 and O2
    "log.first_kept log.pruned commit.have commit.issues",  # with a short history, see `Scope`
)

TRIED: Final = ("hold_due", "beacon_due", "reform_due")
"""The timers that are let fire; the others are left out below."""

LEFT_OUT: Final[dict[str, str]] = {
    "me config group rng out handlers log.config log.writes_stamped token_list.successor "
    "stamping.free_heirs commit.level": "the same in all states, or derived",
    "reformation.floor": "sites of the explorer have no recorders",
    "log.logged": "derived from the log and the disk, which is compared, too, where sites crash",
    "log.kept_bytes log.trim_bytes own.waiting_bytes": (
        "derived; the bounds they are held to are out of reach"
    ),
    "timers.heard timers.progress own.send_last own.send_wait deadline stamping.beacon_wait "
    "stamping.pass_sent stamping.pass_time stamping.pass_vary stamping.pass_wait": (
        "time stands still"
    ),
    "drops reformation.blocked token_list.start_seq log.storage_max log.retained log.trimmed": (
        "told to others, never looked at"
    ),
    "own.send_silent own.send_total stamping.pass_silent stamping.pass_total "
    "reformation.token_tries reformation.tries reformation.failures": (
        "count attempts, of which there is one, or choose a duration"
    ),
    "timers.send_due timers.pass_due timers.request_due timers.silence_due timers.auth_due "
    "timers.token_due": (
        "when they fire they start a reformation or repeat what was sent; `reform` is always tried"
    ),
    "timers.reform_due": "armed in the same phases always",
    "timers.beacon_due": "confirms again; `hold_due` does so too unless a NULL is due",
    "own.lists": (
        "the lists it has committed to in this life, which its log and its disk tell as well"
    ),
    "token_list.lives": "there is one life of each site at a time: nobody is left to be refused",
    "reformation.seen": (
        "only judges a site that forgot a list and does not know it; here a site that restarts "
        "keeps its boot number, or has lost its disk and knows that"
    ),
    "requests.pending requests.known_top requests.wanted_upto log.last_ts stamping.shown "
    "stamping.passing stamping.pass_ack own.current": (
        "asking and answering: what is sent again is still in the network"
    ),
}

SLOTS: Final = tuple(name for name in slots_of(TokenSite) if name not in TokenSite.PARTS) + tuple(
    f"{name}.{slot}"
    for name, part in TokenSite.PARTS.items()
    for slot in slots_of(part)
    if slot != "site"
)
"""The state of a site: its slots and those of its parts."""

_values_always = attrgetter(*_ALWAYS.split())
_values_in_a_list = attrgetter(*_IN_A_LIST.split())
_values_on_disk = attrgetter(*_ON_DISK.split())


def check_slots() -> None:
    """Raise unless every slot of the engine is either compared or left out for a reason.

    A slot that is neither would make the explorer take different states for one.
    """
    unknown = set(SLOTS) ^ set(" ".join((*_COMPARED, *LEFT_OUT)).split())
    if unknown:
        names = ", ".join(sorted(unknown))
        raise InvariantBroken(f"the explorer does not know these slots: {names}")


def fingerprint(site: TokenSite) -> tuple[Any, ...]:
    """Return what decides all later steps of `site`."""
    phase, log, commit, reformation = site.phase, site.log, site.commit, site.reformation
    common = (
        _values_always(site),
        tuple(log.entries.values()),
        tuple(sorted(log.next_num.items())),
        tuple(site.own.kept),
        tuple(site.own.waiting),
    )
    more: tuple[Any, ...] = ()
    if phase in (NORMAL, W3):
        stamping, ordering = site.stamping, site.ordering
        more = (
            _values_in_a_list(site),
            tuple(ordering.qb.items()),
            tuple(sorted(ordering.qc.items())),
            tuple(commit.transfers),
            min(stamping.since_data, site.config.kr),
        )
        if stamping.holding:
            # With `eager` a turn is this timer; without, it sends a NULL or confirms again.
            matters = site.config.eager or log.uncommitted > 0
            more += (stamping.hold_ts, stamping.turn, matters and site.timers.hold_due < NEVER)
    elif phase == O1:
        more = tuple(sorted(reformation.votes.items()))
    elif phase in (O2, S2):
        recovery = site.recovery
        more = (
            reformation.new_tl,
            recovery.recover_from,
            recovery.gap,
            tuple(recovery.staged.values()),
            tuple(sorted(reformation.yes_votes)) if phase == O2 else (),
        )
    if site.config.history < KEEP_ALL:
        have = tuple(sorted(commit.have.items()))
        more += (log.first_kept, log.pruned, have, tuple(commit.issues))
    return common, more


def disk_fingerprint(stable: Stable) -> tuple[Any, ...]:
    """Return what decides a restart."""
    counters, entries = sorted(stable.counters.items()), sorted(stable.entries.items())
    return _values_on_disk(stable), tuple(counters), tuple(entries)
