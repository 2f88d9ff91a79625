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
from roundelay.sim.mutants.mutant import Mutant, Patch

_pages = Counters.pages
_broadcast = Retransmitter._broadcast
_take = Candidate._take
_apply = GrsbStable.apply
_handle = User._handle
_release = User._release


def _enter(self: Listener, epoch: int) -> None:
    self.epoch = epoch


def _empty_pages(self: Counters, safe: int, top: int, time: int) -> list[State]:
    return _pages(Counters(), safe, top, time)


def _secure_everything(self: Acknowledger) -> None:
    self.safe = self.expected


def _broadcast_and_confirm(self: Retransmitter, message: Message) -> None:
    self._confirm(message)
    _broadcast(self, message)


def _take_marks(self: Candidate, site: int, state: State, da: int, now: int) -> None:
    _take(self, site, structs.replace(state, safe=state.top), da, now)


def _release_heard(self: User, now: int) -> None:
    for message in self.listener.ready(fast=True):
        self._handle(message, COMMITTED)
    _release(self, now)


def _apply_but_promises(self: GrsbStable, record: Any) -> None:
    if not isinstance(record, Promised | Accepted):
        _apply(self, record)


def _resume_behind(self: Units, position: int) -> int:
    return position


def _handle_everything(self: User, message: Message, stage: str) -> None:
    wanted, self.wanted = self.wanted, type(self.wanted)()
    _handle(self, message, stage)
    self.wanted = wanted


def _always_line_a(self: Ways, site: int, tries: int = 0) -> int:
    return LINE_A


GRSB_MUTANTS: Final = (
    Mutant(
        name="keeps-what-it-heard",
        rule="GR-27: what was heard in an old epoch counts in the new one",
        wrong="it may have vanished with its retransmitter, and its position be given away again",
        expects=("I1",),
        protocol=GRSB,
        patches=(Patch(Listener, "enter", _enter),),
        seeds=(58, 70),
    ),
    Mutant(
        name="forgets-the-senders",
        rule="GR-27: the table of senders does not travel with the state",
        wrong="the new retransmitter waits for numbers that its users have long used",
        expects=("I7",),
        protocol=GRSB,
        patches=(Patch(Counters, "pages", _empty_pages),),
        seeds=(0, 10),
    ),
    Mutant(
        name="overwrites-unrecorded",
        rule="GR-11: the acknowledger overwrites what the recorders may not have",
        wrong="what a recorder missed is nowhere any more",
        expects=("I2",),
        protocol=GRSB,
        patches=(Patch(Acknowledger, "_secure", _secure_everything),),
        seeds=(19, 30),
    ),
    Mutant(
        name="confirms-what-is-broadcast",
        rule="GR-5: a submitter is answered at the broadcast, not at the acknowledgement",
        wrong="the message may vanish with the retransmitter",
        expects=("I5",),
        protocol=GRSB,
        patches=(Patch(Retransmitter, "_broadcast", _broadcast_and_confirm),),
        seeds=(11, 20),
    ),
    Mutant(
        name="fetches-nothing",
        rule="GR-27: a new retransmitter takes the marks of the last reign and not its messages",
        wrong="what the recorders lacked nobody can repeat",
        expects=("I2",),
        protocol=GRSB,
        patches=(Patch(Candidate, "_take", _take_marks),),
        seeds=(8, 20),
    ),
    Mutant(
        name="delivers-what-it-heard",
        rule="GR-15: what was only heard is released",
        wrong="it may vanish with the retransmitter, and is taken back then",
        expects=("I1",),
        protocol=GRSB,
        patches=(Patch(User, "_release", _release_heard),),
        seeds=(10, 20),
    ),
    Mutant(
        name="forgets-promises",
        rule="GR-27: a council member that restarts does not know what it promised",
        wrong="it has to ask all others before it may vote again, and they may be in the same case",
        expects=("I7",),
        protocol=GRSB,
        patches=(Patch(GrsbStable, "apply", _apply_but_promises),),
        seeds=(8, 20),
    ),
    Mutant(
        name="loses-open-units",
        rule="GR-19: a user that restarts does not go back to where its open units began",
        wrong="a unit is never delivered whole",
        expects=("I2",),
        protocol=GRSB,
        patches=(Patch(Units, "resume", _resume_behind),),
        seeds=(4, 20),
    ),
    Mutant(
        name="delivers-the-unwanted",
        rule="GR-16: whatever was asked for, all that comes by is delivered",
        wrong="a user is given what it does not want",
        expects=("I8",),
        protocol=GRSB,
        patches=(Patch(User, "_handle", _handle_everything),),
        seeds=(1, 10),
    ),
    Mutant(
        name="needs-line-a",
        rule="GR-24: what is for one site alone goes over line A, whatever is heard there",
        wrong="one line alone does not do",
        expects=("I7",),
        protocol=GRSB,
        patches=(Patch(Ways, "to", _always_line_a),),
        seeds=(33, 40),
    ),
)
