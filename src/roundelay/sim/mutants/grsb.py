"""Mutants of GRSB.

A site makes its roles itself, so what is broken is a method of a role (`Patch`).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from roundelay.core.engine import COMMITTED
from roundelay.core.families import GRSB
from roundelay.core.grsb.acknowledger import Acknowledger
from roundelay.core.grsb.base import Counters
from roundelay.core.grsb.listener import Listener
from roundelay.core.grsb.pdu import LINE_A, Message, State
from roundelay.core.grsb.retransmitter import Retransmitter
from roundelay.core.grsb.stable import Accepted, GrsbStable, Promised
from roundelay.core.grsb.takeover import Candidate
from roundelay.core.grsb.units import Units
from roundelay.core.grsb.user import User
from roundelay.core.grsb.ways import Ways
from roundelay.sim.mutants.mutant import MutantTable

broken: Final = MutantTable(protocol=GRSB)


@broken(Listener, "enter", "I1", seeds=(58, 70))
def keeps_what_it_heard(self: Listener, epoch: int) -> None:
    """GR-27: what was heard in an old epoch counts in the new one; it may have vanished with its
    retransmitter, and its position be given away again."""
    self.epoch = epoch


@broken(Counters, "pages", "I7", seeds=(0, 10))
def forgets_the_senders(shipped: Any, self: Counters, *given: int) -> Any:
    """GR-27: the table of senders does not travel with the state; the new retransmitter waits for
    numbers that its users have long used."""
    return shipped(Counters((), self.time), *given)


@broken(Acknowledger, "_secure", "I2", seeds=(19, 30))
def overwrites_unrecorded(self: Acknowledger) -> None:
    """GR-11: the acknowledger overwrites what the recorders may not have; what a recorder missed is
    nowhere any more."""
    self.safe = self.expected


@broken(Retransmitter, "_broadcast", "I5", seeds=(11, 20))
def confirms_what_is_broadcast(shipped: Any, self: Retransmitter, message: Message) -> None:
    """GR-5: a submitter is answered at the broadcast, not at the acknowledgement; the message may
    vanish with the retransmitter."""
    self._confirm(message)
    shipped(self, message)


@broken(Candidate, "_take", "I2", seeds=(8, 20))
def fetches_nothing(shipped: Any, self: Candidate, site: int, state: State, *rest: int) -> None:
    """GR-27: a new retransmitter takes the marks of the last reign and not its messages; what the
    recorders lacked nobody can repeat."""
    shipped(self, site, structs.replace(state, safe=state.top), *rest)


@broken(User, "_release", "I1", seeds=(10, 20))
def delivers_what_it_heard(shipped: Any, self: User, now: int) -> None:
    """GR-15: what was only heard is released; it may vanish with the retransmitter, and is taken
    back then."""
    for message in self.listener.ready(fast=True):
        self._handle(message, COMMITTED)
    shipped(self, now)


@broken(GrsbStable, "apply", "I7", seeds=(8, 20))
def forgets_promises(shipped: Any, self: GrsbStable, record: Any) -> None:
    """GR-27: a council member that restarts does not know what it promised; it has to ask all
    others before it may vote again, and they may be in the same case."""
    if not isinstance(record, Promised | Accepted):
        shipped(self, record)


@broken(Units, "resume", "I2", seeds=(4, 20))
def loses_open_units(self: Units, position: int) -> int:
    """GR-19: a user that restarts does not go back to where its open units began; a unit is never
    delivered whole."""
    return position


@broken(User, "_handle", "I8", seeds=(1, 10))
def delivers_the_unwanted(shipped: Any, self: User, message: Message, stage: str) -> None:
    """GR-16: whatever was asked for, all that comes by is delivered; a user is given what it does
    not want."""
    selection, self.selection = self.selection, type(self.selection)()
    shipped(self, message, stage)
    self.selection = selection


@broken(Ways, "to", "I7", seeds=(33, 40))
def needs_line_a(self: Ways, site: int, tries: int = 0) -> int:
    """GR-24: what is for one site alone goes over line A, whatever is heard there; one line alone
    does not do."""
    return LINE_A
