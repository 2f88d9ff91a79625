"""Mutants of the hierarchy: methods of its parts, as in `grsb.py`."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from roundelay.core.families import WIDE
from roundelay.core.grsb.user import User
from roundelay.core.wide.global_level import GlobalRetransmitter
from roundelay.core.wide.network_level import LocalUser
from roundelay.core.wide.pdu import Up
from roundelay.core.wide.subnet import Flood
from roundelay.core.wide.uplink import Uplink
from roundelay.sim.mutants.mutant import MutantTable

broken: Final = MutantTable(protocol=WIDE)


@broken(GlobalRetransmitter, "everywhere", "I2", seeds=(4, 12))
def leaves_out_a_network(self: GlobalRetransmitter) -> int:
    """HG-3: the GPR waits for all networks but one; what the last network lacks is nowhere any
    more."""
    return sorted(branch.safe for branch in self.branches.values())[1]


@broken(Uplink, "_release", "I7", seeds=(5, 12))
def never_asks_the_gpr(shipped: Any, self: Uplink, now: int) -> None:
    """HG-4: what an LCR missed it misses; a network that was cut off never comes back."""
    shipped(self, now)
    self.reader.stop()


@broken(GlobalRetransmitter, "on_up", "I4", seeds=(0, 6))
def forgets_origins(shipped: Any, self: GlobalRetransmitter, up: Up, source: int, now: int) -> None:
    """HG-1: the GCR gives a submission that is repeated a place again; a message has two
    positions."""
    counters = self.sequencer.counters
    known = counters.get(up.origin)
    if (known.inc, known.sseq) == (up.inc, up.sseq + 1):
        counters.by_sender[up.origin] = structs.replace(known, sseq=up.sseq)
    shipped(self, up, source, now)


@broken(Flood, "_advance", "I2", seeds=(1, 12))
def delivers_as_it_comes(self: Flood, now: int) -> None:
    """HG-11: a node behind a broadcaster takes messages as they come; what comes late is never
    delivered."""
    for at in list(self.held):
        message = self.held.pop(at)
        self.next = max(self.next, message.end)
        self.take(message, now)


@broken(LocalUser, "begins", "I1", seeds=(265, 270))
def takes_back(self: LocalUser, start: int) -> None:
    """HG-7: a network that begins anew makes its users forget, as a flat group would; positions of
    a network are those of the whole: users are given them twice."""
    User.begins(self, start)
