"""One log, not two: does what a site has committed agree with what the new list is built on?

Disks may be replaced by old copies of themselves.  If that leaves a majority none of which knows
what was committed since, it commits other messages at the same positions, and nothing it knows
could tell it.  But when somebody comes who has the first history, the two can be seen to differ,
and must: a site that recovers shows marks of what it has committed, near its end and further back;
the new token site compares them with its own log.  (Where it no longer keeps those entries it
cannot tell.)  A stamp is given once in a list, so a mark is the stamp and the list it was given in,
with a checksum of the message, should two lists have the same version.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from roundelay.core.token.pdu import DATA, Entry, Mark

MARKS: Final = 24
"""At distances of 1, 2, 4, … stamps from the end."""


def marks(log: dict[int, Entry], upto: int) -> tuple[Mark, ...]:
    """Marks of the entries below `upto`, the latest first."""
    found = []
    for step in range(MARKS):
        entry = log.get(upto - (1 << step))
        if entry is None:
            break
        found.append(mark(entry))
    return tuple(found)


def mark(entry: Entry) -> Mark:
    return Mark(entry.ack, crc32(entry.bundle.data) if entry.ack.kind == DATA else 0)


def parted(
    log: dict[int, Entry], shown: tuple[Mark, ...], committed: int
) -> tuple[int, int] | None:
    """The stamps between which `shown` and `log` part ways; None if they agree, as far as known.

    Up to the first they are the same, at the second they are not.
    """
    same, other = 0, -1
    for one in shown:
        entry = log.get(one.ack.ts)
        if entry is None or one.ack.ts >= committed:
            continue  # what is not committed here may yet be given up
        if mark(entry) == one:
            same = one.ack.ts + 1
            break
        other = one.ack.ts
    return None if other < 0 else (same, other)
