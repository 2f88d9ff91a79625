"""A distributed database without locks (§6.3 of the paper, PROTOCOLS §6.10).

An update says which version of its key it was made for.  Every replica applies the updates in the
one order that all of them see: the first for a version wins everywhere, the others are rejected
everywhere.
"""

from __future__ import annotations

import struct
from typing import Final, Self

from msgspec import Struct

from roundelay.core.errors import MalformedPdu

HEAD: Final = struct.Struct(">HQ")  # length of the key, version


class Update(Struct, frozen=True):
    """`value` for `key`, if its version is still `base`."""

    key: bytes
    base: int
    value: bytes

    def to_bytes(self) -> bytes:
        """
        >>> Update.from_bytes(Update(b"stock", 3, b"17").to_bytes())
        Update(key=b'stock', base=3, value=b'17')
        """
        return HEAD.pack(len(self.key), self.base) + self.key + self.value

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        if len(data) < HEAD.size:
            raise MalformedPdu("update", "short")
        size, base = HEAD.unpack_from(data)
        if len(data) < HEAD.size + size:
            raise MalformedPdu("update", "short")
        at = HEAD.size + size
        return cls(data[HEAD.size : at], base, data[at:])


class Replica:
    """One copy of the database."""

    __slots__ = ("accepted", "rejected", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, tuple[int, bytes]] = {}  # key → version, value
        self.accepted = 0
        self.rejected = 0

    def version(self, key: bytes) -> int:
        return self.values.get(key, (0, b""))[0]

    def apply(self, update: Update) -> bool:
        """The next update of the order; whether it is accepted."""
        if update.base != self.version(update.key):
            self.rejected += 1
            return False
        self.accepted += 1
        self.values[update.key] = (update.base + 1, update.value)
        return True
