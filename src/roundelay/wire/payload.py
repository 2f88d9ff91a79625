"""A bundle of messages as bytes: the part that carries nearly all of the traffic."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from roundelay.core.bundle import MANY, Bundle, equal_sizes
from roundelay.core.errors import MalformedPdu
from roundelay.wire.fields import BAD_BUNDLE, SHORT_BODY, U16, Part, Row
from roundelay.wire.marks import read_marks, write_marks

_UNIFORM: Final = struct.Struct(">HBI")
MARKED: Final = 128
"""Bit of a bundle's width: conferences and kinds follow its messages."""


@lru_cache(maxsize=64)
def _table(count: int, width: int) -> struct.Struct:
    """`count` sizes of `width` bytes and the length of what follows."""
    return struct.Struct(f">{count}{'H' if width == 2 else 'I'}I")


class Payload(Part):
    """A bundle: u16 count, u8 width of a size, the sizes, then the messages with u32 length.

    Messages of one size need no table (width 0); sizes have 2 bytes unless one of them needs 4.
    Bit 7 of the width says that conferences and kinds follow (`wire.marks`).
    Each bundle has exactly one form, so that what is decoded is encoded to the same bytes.
    """

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__((name,), 7)

    def write(self, owner: Any, out: list[bytes]) -> None:
        bundle: Bundle = getattr(owner, self.names[0])
        sizes, data = bundle.sizes, bundle.data
        count, length = len(sizes), len(data)
        if count > U16:
            raise MalformedPdu(BAD_BUNDLE, f"{count} messages")
        marked = MARKED if bundle.marks else 0
        if bundle.uniform:
            out.append(_UNIFORM.pack(count, marked, length))
            out.append(data)
            if marked:
                out.append(write_marks(bundle.marks))
            return
        if sum(sizes) != length:
            raise MalformedPdu(BAD_BUNDLE, f"{count} messages, {length} bytes")
        width = 2 if length <= U16 or max(sizes) <= U16 else 4
        out.append(bytes((count >> 8, count & 0xFF, width | marked)))
        try:
            out.append(_table(count, width).pack(*sizes, length))
        except struct.error as error:
            raise MalformedPdu(BAD_BUNDLE, str(error)) from None
        out.append(data)
        if marked:
            out.append(write_marks(bundle.marks))

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        sizes, start, after = self.shape(data, pos, end, end)
        messages = data[start:after]
        if data[pos + 2] & MARKED:
            marks, after = read_marks(data, after, end, len(sizes))
            values.append(Bundle(sizes, messages, marks))
        else:
            values.append(Bundle(sizes, messages))
        return after

    def shape(
        self, data: bytes | memoryview, pos: int, held: int, end: int
    ) -> tuple[tuple[int, ...], int, int]:
        """The sizes of the messages, and where these begin and end.

        `data` has the first `held` bytes of a body that ends at `end`; those before the messages
        must be among them.
        """
        table = pos + 3
        if table + 4 > held:
            raise MalformedPdu(SHORT_BODY)
        count, width = data[pos] << 8 | data[pos + 1], data[pos + 2] & ~MARKED
        if width not in (0, 2, 4):
            raise MalformedPdu(BAD_BUNDLE, f"sizes of {width} bytes")
        start = table + width * count + 4
        if start > held:
            raise MalformedPdu(SHORT_BODY, f"{count} messages")
        if width:
            found = _table(count, width).unpack_from(data, table)
            sizes, length = found[:-1], found[-1]
            # Python's sums do not wrap, so sizes that only add up modulo 2³² are refused here.
            if sum(sizes) != length:
                raise MalformedPdu(BAD_BUNDLE, f"sizes add up to {sum(sizes)}, not {length}")
            if width == 4 and max(sizes, default=0) <= U16:
                raise MalformedPdu(BAD_BUNDLE, "4 bytes for small sizes")
        else:
            length = int.from_bytes(data[table:start], "big")
        after = start + length
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{length} bytes")
        if width:
            if length and sizes.count(sizes[0]) == count:
                raise MalformedPdu(BAD_BUNDLE, "a table of equal sizes")
        elif count and length and not length % count:
            # At least a byte each: a count alone cannot make a large table of sizes.
            size = length // count
            sizes = equal_sizes(size, count) if count >= MANY else (size,) * count
        else:
            raise MalformedPdu(BAD_BUNDLE, f"{count} messages of one size in {length} bytes")
        return sizes, start, int(after)

    def rows(self) -> Iterator[Row]:
        name = self.names[0]
        yield Row(f"{name}: messages", "u16 count", "application messages")
        meaning = "bytes of a size: 0 (all messages have one size), 2, 4; + 128: marks follow"
        yield Row(f"{name}: width", "u8", meaning)
        yield Row(f"{name}: sizes", "that many bytes each", "length of each message, in order")
        yield Row(f"{name}: data", "u32 length, bytes", "the messages end to end")
        each = "u16 runs; u32, u32, u16 each"
        yield Row(f"{name}: marks", each, "with marks: conference, kind, how many messages")
