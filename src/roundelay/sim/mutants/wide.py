"""Mutants of the hierarchy: methods of its parts, as in `grsb.py`."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from roundelay.core.families import WIDE
from roundelay.core.grsb.user import User
from roundelay.core.wide.global_level import GlobalRetransmitter
from roundelay.core.wide.network_level import LocalUser
from roundelay.core.wide.pdu import Up
from roundelay.core.wide.subnet import Flood
from roundelay.core.wide.uplink import Uplink
from roundelay.sim.mutants.mutant import Mutant, Patch

_release = Uplink._release
_on_up = GlobalRetransmitter.on_up


def _all_but_one(self: GlobalRetransmitter) -> int:
    return sorted(branch.safe for branch in self.branches.values())[1]


def _release_unasked(self: Uplink, now: int) -> None:
    _release(self, now)
    self.reader.stop()


def _on_up_again(self: GlobalRetransmitter, up: Up, source: int, now: int) -> None:
    counters = self.sequencer.counters
    known = counters.get(up.origin)
    if known is not None and (known.inc, known.sseq) == (up.inc, up.sseq + 1):
        counters.by_sender[up.origin] = structs.replace(known, sseq=up.sseq)
    _on_up(self, up, source, now)


def _advance_in_any_order(self: Flood, now: int) -> None:
    for at in list(self.held):
        message = self.held.pop(at)
        self.next = max(self.next, message.end)
        self.take(message, now)


WIDE_MUTANTS: Final = (
    Mutant(
        name="leaves-out-a-network",
        rule="HG-3: the GPR waits for all networks but one",
        wrong="what the last network lacks is nowhere any more",
        expects=("I2",),
        protocol=WIDE,
        patches=(Patch(GlobalRetransmitter, "everywhere", property(_all_but_one)),),
        seeds=(4, 12),
    ),
    Mutant(
        name="never-asks-the-gpr",
        rule="HG-4: what an LCR missed it misses",
        wrong="a network that was cut off never comes back",
        expects=("I7",),
        protocol=WIDE,
        patches=(Patch(Uplink, "_release", _release_unasked),),
        seeds=(5, 12),
    ),
    Mutant(
        name="forgets-origins",
        rule="HG-1: the GCR gives a submission that is repeated a place again",
        wrong="a message has two positions",
        expects=("I4",),
        protocol=WIDE,
        patches=(Patch(GlobalRetransmitter, "on_up", _on_up_again),),
        seeds=(0, 6),
    ),
    Mutant(
        name="delivers-as-it-comes",
        rule="HG-11: a node behind a broadcaster takes messages as they come",
        wrong="what comes late is never delivered",
        expects=("I2",),
        protocol=WIDE,
        patches=(Patch(Flood, "_advance", _advance_in_any_order),),
        seeds=(1, 12),
    ),
    Mutant(
        name="takes-back",
        rule="HG-7: a network that begins anew makes its users forget, as a flat group would",
        wrong="positions of a network are those of the whole: users are given them twice",
        expects=("I1",),
        protocol=WIDE,
        patches=(Patch(LocalUser, "begins", User.begins),),
        seeds=(265, 270),
    ),
)
