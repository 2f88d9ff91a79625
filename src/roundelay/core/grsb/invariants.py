"""What must hold of a GRSB site between two calls, whatever has happened.

A rule says what holds, and is asked of a part of the site.  Marks are exclusive, as everywhere:
everything below is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.grsb.base import REPLAYED, Ring
from roundelay.core.grsb.config import FAST
from roundelay.core.grsb.takeover import ACCEPTING, IDLE, INSTALLING

if TYPE_CHECKING:
    from roundelay.core.grsb.acknowledger import Acknowledger
    from roundelay.core.grsb.retransmitter import Retransmitter
    from roundelay.core.grsb.site import GrsbSite
    from roundelay.core.grsb.user import User

Rules = Mapping[str, Callable[[Any], bool]]


def check_rules(me: int, part: object, rules: Rules) -> None:
    """Raise InvariantBroken if `part` of site `me` breaks one of `rules`."""
    for rule, holds in rules.items():
        if not holds(part):
            raise InvariantBroken(f"{type(part).__name__} of site {me}: not so: {rule}")


def _joined(ring: Ring) -> bool:
    """As far as its ends show: it may be long, and this is asked after every batch."""
    if not ring.messages:
        return ring.first == ring.end
    last = next(reversed(ring.messages.values()))
    return ring.first in ring.messages and last.end == ring.end


def _in_flight(cr: Retransmitter) -> bool:
    """What is outstanding is what lies between the marks, in a row."""
    flight = cr.outstanding
    if not flight:
        return cr.acked == cr.sequencer.next
    in_a_row = all(before.end == after.gseq for before, after in pairwise(flight))
    return in_a_row and flight[0].end > cr.acked and flight[-1].end == cr.sequencer.next


RETRANSMITTER: Final[Rules] = {
    "its history has no hole": lambda cr: _joined(cr.sequencer.history),
    "its history ends where the next message begins": lambda cr: (
        cr.sequencer.history.end == cr.sequencer.next
    ),
    "one that stands by has nothing to say": lambda cr: (
        cr.reigning or not (cr.queue or min(cr.bcast_due, cr.alive_due, cr.probe_due) < NEVER)
    ),
}

REIGNING: Final[Rules] = {
    "start ≤ acked ≤ next, and recorded ≤ acked": lambda cr: (
        max(cr.sequencer.start, cr.recorded) <= cr.acked <= cr.sequencer.next
    ),
    "what is not acknowledged is outstanding": _in_flight,
    "at most a window is outstanding": lambda cr: len(cr.outstanding) <= cr.config.window,
    "what is outstanding is repeated": lambda cr: bool(cr.outstanding) == (cr.bcast_due < NEVER),
    "its reign is the last that was heard of": lambda cr: (
        (cr.epoch, cr.host.me) == (cr.host.reign.epoch, cr.host.reign.cr)
    ),
    "it is no candidate": lambda cr: cr.host.candidate.phase == IDLE,
}

CANDIDATE: Final[Rules] = {
    "one that is on its way has a next step": lambda candidate: (
        (candidate.phase == IDLE) == (candidate.due >= NEVER)
    ),
    "one that installs has a state and an acknowledger": lambda candidate: (
        candidate.phase not in (INSTALLING, ACCEPTING)
        or (candidate.sequencer is not None and candidate.da >= 0)
    ),
    "its own council member has promised its epoch": lambda candidate: (
        candidate.phase == IDLE or candidate.host.promised >= candidate.epoch
    ),
}

COUNCIL: Final[Rules] = {
    "what is accepted was promised": lambda council: (
        council.accepted.epoch <= council.host.promised
    ),
}


def _marks_of_recorders(da: Acknowledger) -> bool:
    return all(mark <= da.expected for mark in da.marks.values()) and da.suspected <= set(da.marks)


ACKNOWLEDGER: Final[Rules] = {
    "its buffer has no hole": lambda da: _joined(da.ring),
    "it acknowledges in no epoch above what was promised": lambda da: da.epoch <= da.host.promised,
}

ACKNOWLEDGING: Final[Rules] = {
    "first ≤ safe ≤ acked ≤ expected": lambda da: (
        da.ring.first <= da.safe <= da.acked <= da.expected
    ),
    "no recorder has more than was acknowledged": _marks_of_recorders,
    "without a delay nothing waits for it": lambda da: (
        da.ack_due < NEVER or da.acked == da.expected
    ),
}

LISTENER: Final[Rules] = {
    "stable ≤ top": lambda listener: listener.stable <= listener.top,
    "nothing is kept that has been released": lambda listener: (
        not listener.heard or min(listener.heard) >= listener.next
    ),
    "at most heard_max are kept behind a gap": lambda listener: (
        len(listener.heard) <= listener.limit + 1
    ),
}

SAFE: Final[Rules] = {
    "nothing is released that is not stable": lambda listener: listener.next <= listener.stable,
}


RECORDER: Final[Rules] = {
    # What the archive does not show yet is in this batch.
    "its archive ends at its mark, or before": lambda recorder: (
        recorder.archive.end <= recorder.mark
    ),
    "what it has at hand is recorded": lambda recorder: (
        not recorder.recent or next(reversed(recorder.recent)) < recorder.mark
    ),
    "it is in the epoch of its site": lambda recorder: (
        recorder.listener.epoch == recorder.host.reign.epoch
    ),
    "what it lacks it asks for": lambda recorder: (
        recorder.listener.missing <= (recorder.repairs.due < NEVER)
    ),
    "a request that waits is served": lambda recorder: (
        bool(recorder.requests) <= (recorder.serve_due < NEVER)
    ),
}


def _epoch_on_disk(user: User) -> bool:
    """The application may know better how far it is: the epoch of that must not be lost."""
    given = any(delivery.stage != REPLAYED for delivery in user.host.out.deliveries)
    return not given or user.persisted.epoch == user.listener.epoch


SUBMITTER: Final[Rules] = {
    "persisted ≤ done ≤ upto": lambda submitter: (
        submitter.persisted.upto <= submitter.done[0] <= submitter.upto
    ),
    "what is under way is repeated": lambda submitter: (
        (submitter.under_way is None) == (submitter.submit_due >= NEVER)
    ),
    "what waits, waits for what is under way": lambda submitter: (
        submitter.under_way is not None or not submitter.queue
    ),
}

USER: Final[Rules] = {
    "it listens from where it is, or where open units began": lambda user: (
        user.listener.next <= user.upto
    ),
    "its epoch is that of its site, or one that a recorder told it of": lambda user: (
        user.host.reign.epoch <= user.listener.epoch >= user.persisted.epoch
    ),
    "the epoch is on disk before anything is delivered in it": _epoch_on_disk,
    "it reads what it lacks, and nothing else": lambda user: (
        user.listener.missing == user.reader.reading
    ),
}

SITE: Final[Rules] = {
    "its roles have heard each other": lambda site: not site.local,
    "no epoch was announced that has not begun": lambda site: site.announced <= site.reign.epoch,
}


def check_site(site: GrsbSite) -> None:
    """Raise InvariantBroken unless every role is consistent, by itself and with the others."""
    parts: list[tuple[object, Rules]] = [(site, SITE)]
    cr, da, recorder, user = site.retransmitter, site.acknowledger, site.recorder, site.user
    if cr is not None:
        parts += [(cr, RETRANSMITTER), (site.candidate, CANDIDATE)]
        parts += [(cr, REIGNING)] if cr.reigning else []
    if site.council is not None:
        parts.append((site.council, COUNCIL))
    if da is not None:
        parts += [(da, ACKNOWLEDGER), (da, ACKNOWLEDGING)][: 1 + (da.epoch >= 0)]
    if recorder is not None:
        parts += [(recorder, RECORDER), (recorder.listener, LISTENER), (recorder.listener, SAFE)]
    if user is not None:
        parts += [(user, SUBMITTER), (user, USER), (user.listener, LISTENER)]
        if site.config.delivery != FAST:
            parts.append((user.listener, SAFE))
    for part, rules in parts:
        check_rules(site.me, part, rules)
