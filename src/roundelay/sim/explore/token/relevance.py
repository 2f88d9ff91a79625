"""Which PDUs can still matter, and to whom: reduction 4 of `reductions.py`.

The network of the explorer forgets nothing, so there has to be somebody who says when a PDU has had
its day.  It has when neither its destination nor, where it takes part, its source can ever again
be in the state that the PDU is meant for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from roundelay.core.engine import Pdu
from roundelay.core.errors import InvariantBroken
from roundelay.core.token import pdu as p
from roundelay.core.token.phases import NORMAL, O1, O2, S1, S2
from roundelay.sim.explore.token.network import Item
from roundelay.sim.explore.token.site_states import Profile

# Versions up to which a site refuses to join, whatever happens to it: those it has joined, since
# it never forgets them.  After the loss of a disk it does, and some mutants forget more easily.
JOINED: Final = "joined"
LISTED: Final = "listed"
NEVER_SURE: Final = "never sure"


def refuses(at: Profile, version: p.Version, memory: str) -> bool:
    """Return whether a site like `at` will never join `version` again."""
    if memory == JOINED:
        return version <= at.max_joined
    return memory == LISTED and version <= at.tl


def can_use(at: Profile, pdu: Pdu, memory: str = JOINED) -> bool:
    """Return whether a site like `at` can do anything with `pdu`, now or after steps of its own."""
    if isinstance(pdu, p.Ack | p.B | p.Confirm):
        return (at.phase == NORMAL and at.tl == pdu.tl) or at.attempt == pdu.tl
    if isinstance(pdu, p.Invite):
        return not refuses(at, pdu.v, memory)
    if isinstance(pdu, p.Vote1):
        return at.phase == O1 and at.attempt == pdu.v
    if isinstance(pdu, p.NewTl):
        return (at.phase == S1 and at.attempt == pdu.v) or (
            memory != JOINED and not refuses(at, pdu.v, memory)
        )
    if isinstance(pdu, p.Vote2):
        return at.phase == O2 and at.attempt == pdu.v
    if isinstance(pdu, p.NewToken | p.RecoverReq):
        return at.attempt == pdu.v or (at.phase == NORMAL and at.tl == pdu.v)
    if isinstance(pdu, p.RecoverData):
        return at.phase in (S2, O2) and at.attempt == pdu.v and at.tl != pdu.v
    raise InvariantBroken(f"the explorer does not know {type(pdu).__name__}")


def stands_by(at: Profile, pdu: Pdu, last: bool) -> bool:
    """Return whether it matters that somebody gets `pdu`, once a site like `at` has sent it.

    An answer to RECOVER_REQ needs somebody who waits for it.  A list that its originator has given
    up cannot be formed; to join it all the same makes a difference only to later attempts.
    """
    if isinstance(pdu, p.RecoverReq):
        return at.phase in (S2, O2) and at.attempt == pdu.v
    if isinstance(pdu, p.Invite):
        return not last or (at.phase == O1 and at.attempt == pdu.v)
    return True


@dataclass(slots=True, eq=False)
class Masks:
    """The set of those of `items` with a property, brought up to date as PDUs are met."""

    items: list[Item]
    has_property: Callable[[Pdu], bool]
    mask: int = 0
    tested: int = 0  # of the items

    def get(self) -> int:
        items = self.items
        if self.tested < len(items):
            for number in range(self.tested, len(items)):
                if self.has_property(items[number].pdu):
                    self.mask |= 1 << number
            self.tested = len(items)
        return self.mask
