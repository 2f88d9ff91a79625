"""Start, middle and end (GR-19): several messages that take effect together, or not at all.

Whether a unit is complete, and when it is forgotten, is decided by the messages of the order alone
and never by a clock: so everybody who hears the same messages surfaces the same units at the same
positions.  A sender has one open unit per conference; a new start voids an open one, and so does
whatever shows that the sender has started again: its first message since, or the abort record that
the retransmitter puts before it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.grsb.pdu import ABORT, END, SINGLE, START, Message

OPEN_MAX: Final = 64
"""Units that one sender may have open; one more voids its oldest."""


class OpenUnit(Struct):
    """A unit that began at position `at`."""

    at: int
    inc: int
    gid: int
    parts: list[Bundle]
    size: int


class Units:
    """Puts units together; `limit` bytes of one unit are kept, a larger one never surfaces."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open: dict[tuple[int, int], OpenUnit] = {}  # by sender and conference
        self.oversized = 0

    def take(self, message: Message) -> Bundle | None:
        """GR-19: what takes effect with `message`: itself, the unit it ends, or nothing yet."""
        sender, mtype = message.sender, message.mtype
        key = (sender, message.conference)
        if self.open:
            self._void(sender, message.inc)
        if mtype == SINGLE:
            return message.bundle
        if mtype == ABORT:
            return None
        if mtype == START:
            self.open.pop(key, None)
            bundle = message.bundle
            self.open[key] = OpenUnit(
                message.gseq, message.inc, message.gid, [bundle], len(bundle.data)
            )
            mine = [other for other in self.open if other[0] == sender]
            if len(mine) > OPEN_MAX:
                del self.open[mine[0]]
            return None
        unit = self.open.get(key)
        if unit is None or (message.gid and unit.gid and unit.gid != message.gid):
            return None  # a journal does not keep the number: 0 stands for any
        unit.size += len(message.bundle.data)
        if unit.size > self.limit:
            del self.open[key]
            self.oversized += 1
            return None
        unit.parts.append(message.bundle)
        if mtype != END:
            return None
        del self.open[key]
        return Bundle.merged(unit.parts)

    def _void(self, sender: int, inc: int) -> None:
        """Units of earlier starts of `sender` will never be completed."""
        for key in [key for key in self.open if key[0] == sender and self.open[key].inc != inc]:
            del self.open[key]

    def resume(self, position: int) -> int:
        """From where messages are needed again to rebuild what is open."""
        return min((unit.at for unit in self.open.values()), default=position)
