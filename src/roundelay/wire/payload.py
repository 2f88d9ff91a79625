"""A bundle of messages as bytes: the part that carries nearly all of the traffic.

::

    u16 count · u8 width of a size · the sizes · u32 length · the messages, end to end

Messages of one size need no table (width 0); sizes have 2 bytes unless one of them needs 4.
Bit 7 of the width says that the messages do not all have conference 0 and kind 0; then their marks
follow the messages: u16 runs, and of each u32 conference, u32 kind, u16 messages.  Neighbours
differ, and the messages add up.

Each bundle has exactly one form, so that what is decoded is encoded to the same bytes.

Count, width and the four bytes after them are the head, which `wire.compiler` reads and writes with
the fields before it.  Of a bundle without a table those four bytes are the length; otherwise they
are the beginning of the table.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from roundelay.core.bundle import MANY, Bundle, Mark, equal_sizes
from roundelay.core.errors import MalformedPdu
from roundelay.core.fields import U16
from roundelay.wire.parts import BAD_BUNDLE, SHORT_BODY

HEAD: Final = "HBI"
WORD: Final = 4
"""Bytes of the length, or of the beginning of the table."""
MARKED: Final = 128
"""Bit of a bundle's width: conferences and kinds follow its messages."""
BAD_MARKS: Final = "bad marks"

_COUNT: Final = struct.Struct(">H")
_MARK: Final = struct.Struct(">IIH")

Rest = Sequence[bytes | memoryview]
Form = tuple[int, int, int, bytes, bytes]
"""(count, width, word, rest of the table, marks)"""


class Scattered(Exception):
    """Of a PDU in pieces, more than the messages of a bundle lies outside of the first piece."""


@lru_cache(maxsize=64)
def _table(count: int, width: int) -> struct.Struct:
    """`count` sizes of `width` bytes and the length of what follows."""
    return struct.Struct(f">{count}{'H' if width == 2 else 'I'}I")


def write_bundle(bundle: Bundle) -> Form:
    """What is written of a bundle besides its messages; MalformedPdu if nobody could read it."""
    sizes, data = bundle.sizes, bundle.data
    count, length = len(sizes), len(data)
    if count > U16:
        raise MalformedPdu(BAD_BUNDLE, f"{count} messages")
    marks = _write_marks(bundle.marks) if bundle.marks else b""
    marked = MARKED if marks else 0
    if bundle.uniform:
        return count, marked, length, b"", marks
    if sum(sizes) != length:
        raise MalformedPdu(BAD_BUNDLE, f"{count} messages, {length} bytes")
    width = 2 if length <= U16 or max(sizes) <= U16 else 4
    try:
        table = _table(count, width).pack(*sizes, length)
    except struct.error as error:
        raise MalformedPdu(BAD_BUNDLE, str(error)) from None
    return count, width | marked, int.from_bytes(table[:WORD], "big"), table[WORD:], marks


def read_bundle(
    data: bytes, pos: int, end: int, count: int, width: int, word: int, rest: Rest | None = None
) -> tuple[Bundle, int]:
    """The bundle whose head ends at `pos`, and where it ends.

    With `rest`, `data` is the first piece of a PDU, and `rest` are the others; nothing of what is
    returned refers to them.
    """
    if width:
        sizes, pos, after = _sizes(data, pos - WORD, end, count, width)
    else:
        after = pos + word
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{word} bytes")
        sizes = _equal(count, word)
    if rest is not None:
        if width & MARKED or after != end:
            raise Scattered
        return Bundle(sizes, b"".join([memoryview(data)[pos:], *rest])), after
    messages = data[pos:after]
    if width & MARKED:
        marks, after = _read_marks(data, after, end, count)
        return Bundle(sizes, messages, marks), after
    return Bundle(sizes, messages), after


def _equal(count: int, length: int) -> tuple[int, ...]:
    """The sizes of messages that all have one."""
    if not count or not length or length % count:
        raise MalformedPdu(BAD_BUNDLE, f"{count} messages of one size in {length} bytes")
    # At least a byte each: a count alone cannot make a large table of sizes.
    size = length // count
    return equal_sizes(size, count) if count >= MANY else (size,) * count


def _sizes(
    data: bytes, table: int, end: int, count: int, width: int
) -> tuple[tuple[int, ...], int, int]:
    """The sizes of the messages, and where these begin and end."""
    width &= ~MARKED
    if width not in (0, 2, 4):
        raise MalformedPdu(BAD_BUNDLE, f"sizes of {width} bytes")
    start = table + width * count + WORD
    if start > end:
        raise MalformedPdu(SHORT_BODY, f"{count} messages")
    numbers = _table(count if width else 0, width).unpack_from(data, table)
    sizes, length = numbers[:-1], numbers[-1]
    # Python's sums do not wrap, so sizes that only add up modulo 2³² are refused here.
    if width and sum(sizes) != length:
        raise MalformedPdu(BAD_BUNDLE, f"sizes add up to {sum(sizes)}, not {length}")
    if width == 4 and max(sizes, default=0) <= U16:
        raise MalformedPdu(BAD_BUNDLE, "4 bytes for small sizes")
    after = start + length
    if after > end:
        raise MalformedPdu(SHORT_BODY, f"{length} bytes")
    if not width:
        return _equal(count, length), start, after
    if length and sizes.count(sizes[0]) == count:
        raise MalformedPdu(BAD_BUNDLE, "a table of equal sizes")
    return sizes, start, after


def _write_marks(marks: tuple[Mark, ...]) -> bytes:
    try:
        return _COUNT.pack(len(marks)) + b"".join([_MARK.pack(*mark) for mark in marks])
    except struct.error as error:
        raise MalformedPdu(BAD_MARKS, str(error)) from None


def _read_marks(data: bytes, pos: int, end: int, messages: int) -> tuple[tuple[Mark, ...], int]:
    """The marks at `pos` for that many messages, and where they end."""
    start = pos + _COUNT.size
    if start > end:
        raise MalformedPdu(BAD_MARKS, "cut off")
    (count,) = _COUNT.unpack_from(data, pos)
    after = start + _MARK.size * count
    if after > end:
        raise MalformedPdu(BAD_MARKS, f"{count} runs")
    marks: tuple[Mark, ...] = tuple(_MARK.iter_unpack(data[start:after]))
    total, before = 0, None
    for conference, kind, size in marks:
        if not size or before == (conference, kind):
            raise MalformedPdu(BAD_MARKS, "not in the one form")
        before = (conference, kind)
        total += size
    if total != messages or not count or marks == ((0, 0, total),):
        raise MalformedPdu(BAD_MARKS, f"for {total} messages of {messages}")
    return marks, after
