"""Conference and kind of the messages in a bundle, as bytes.

::

    u16 runs · of each: u32 conference, u32 kind, u16 messages

They follow a bundle whose messages do not all have conference 0 and kind 0 (`wire.payload`).
Each table has exactly one form: neighbours differ, and the messages add up.
"""

from __future__ import annotations

import struct
from typing import Final

from roundelay.core.bundle import Mark
from roundelay.core.errors import MalformedPdu

COUNT: Final = struct.Struct(">H")
MARK: Final = struct.Struct(">IIH")
NUMBER_MAX: Final = (1 << 32) - 1
BAD_MARKS: Final = "bad marks"


def write_marks(marks: tuple[Mark, ...]) -> bytes:
    try:
        return COUNT.pack(len(marks)) + b"".join([MARK.pack(*mark) for mark in marks])
    except struct.error as error:
        raise MalformedPdu(BAD_MARKS, str(error)) from None


def read_marks(data: bytes, pos: int, end: int, messages: int) -> tuple[tuple[Mark, ...], int]:
    """The marks at `pos` for that many messages, and where they end."""
    start = pos + COUNT.size
    if start > end:
        raise MalformedPdu(BAD_MARKS, "cut off")
    (count,) = COUNT.unpack_from(data, pos)
    after = start + MARK.size * count
    if after > end:
        raise MalformedPdu(BAD_MARKS, f"{count} runs")
    marks: tuple[Mark, ...] = tuple(MARK.iter_unpack(data[start:after]))
    total, before = 0, None
    for conference, kind, size in marks:
        if not size or before == (conference, kind):
            raise MalformedPdu(BAD_MARKS, "not in the one form")
        before = (conference, kind)
        total += size
    if total != messages or not count or marks == ((0, 0, total),):
        raise MalformedPdu(BAD_MARKS, f"for {total} messages of {messages}")
    return marks, after
