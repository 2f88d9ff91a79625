"""What the fields of a PDU are: the names in which a PDU describes itself.

A PDU's class says of each field what kind it is and what it means, and nothing else in the tree
repeats that::

    class Confirm(Pdu, frozen=True, gc=False):
        tl: Version
        ts: Annotated[StampOrNone, "the acknowledgement that brought the token"]
        by: Annotated[Site, "the site that accepted it"]

The order of the fields is the order of their bytes.  `wire.compiler` makes a reader and a writer of
such a class, and docs/wire.md is printed from it.  Three kinds need no name: a `Bundle`, a `bool`
(a byte that is 0 or 1), and another class that describes itself, alone or as `tuple[Entry, ...]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from msgspec import Struct

from roundelay.core.bundle import Bundle

U8: Final = (1 << 8) - 1
U16: Final = (1 << 16) - 1
U32: Final = (1 << 32) - 1
S63: Final = (1 << 63) - 1


class Kind(Struct, frozen=True):
    """How a field is written."""


class Integer(Kind, frozen=True):
    """A number of that many bits, `least` to `most`; −1, where that is allowed, is all ones."""

    bits: int
    least: int
    most: int


class Truth(Kind, frozen=True):
    """A byte that is 0 or 1."""


class Flag(Kind, frozen=True):
    """A truth in one bit: neighbouring flags share a byte, the first one has bit 0."""


class ListVersion(Kind, frozen=True):
    """A token list's version: 32 bits, then 16, neither all ones unless both are: no list."""

    or_none: bool = False


class HistoryRecord(Kind, frozen=True):
    """Two ids of histories and a position, 64 bits each."""


class MemberIds(Kind, frozen=True):
    """Member ids whose order counts, all different."""

    fewest: int = 0


class RankSet(Kind, frozen=True):
    """A set of ranks as an integer with one bit each."""


class NumberVector(Kind, frozen=True):
    """At most 255 numbers of 32 bits."""


class CounterVector(Kind, frozen=True):
    """At most 255 pairs of a source, none of them twice, and a number."""


class RangeVector(Kind, frozen=True):
    """At most 255 half-open ranges of positions, none of them empty."""


class Octets(Kind, frozen=True):
    """A byte string."""

    most: int


class Bundled(Kind, frozen=True):
    """A bundle."""


class Nested(Kind, frozen=True):
    """An object whose class describes itself."""

    cls: type[Any]


class Vector(Kind, frozen=True):
    """At most 255 such objects."""

    cls: type[Any]


def choice(least: int, most: int) -> Integer:
    """One byte with few allowed values."""
    return Integer(8, least, most)


Site = Annotated[int, Integer(16, 0, U16 - 1)]
"""A member's id, or a network's."""
SiteOrNone = Annotated[int, Integer(16, -1, U16 - 1)]
"""A member's id, or −1."""
Number = Annotated[int, Integer(32, 0, U32)]
"""A message number, or another number of 32 bits."""
Stamp = Annotated[int, Integer(64, 0, S63)]
"""A timestamp or position; below 2⁶³, so that every table of signed numbers can hold it."""
StampOrNone = Annotated[int, Integer(64, -1, S63)]
"""A timestamp, or −1: the one before the first."""
Octet = Annotated[int, Integer(8, 0, U8)]
"""A number of one byte."""
Members = Annotated[tuple[int, ...], MemberIds()]
Ranks = Annotated[int, RankSet()]
Numbers = Annotated[tuple[int, ...], NumberVector()]
Counters = Annotated[tuple[tuple[int, int], ...], CounterVector()]
"""(source, number) each."""
Ranges = Annotated[tuple[tuple[int, int], ...], RangeVector()]
"""(first, one past the last) each."""


class Field(Struct, frozen=True):
    """What a class says of one of its fields."""

    name: str
    kind: Kind
    meaning: str


def fields_of(cls: type[Any]) -> Iterator[Field]:
    """The fields of a class that describes itself, in the order of their bytes."""
    hints = get_type_hints(cls, include_extras=True)
    for name in cls.__struct_fields__:
        hint = hints[name]
        base, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        kinds = [note for note in notes if isinstance(note, Kind)]
        kind = kinds[-1] if kinds else _kind_of(base)
        if kind is None:
            raise TypeError(f"{cls.__name__}.{name} does not say what kind of field it is")
        yield Field(name, kind, next((note for note in notes if isinstance(note, str)), ""))


def _kind_of(base: Any) -> Kind | None:
    """The kind of a field that names none."""
    if base is bool:
        return Truth()
    if base is Bundle:
        return Bundled()
    if get_origin(base) is tuple:
        item = get_args(base)[0]
        return Vector(item) if hasattr(item, "__struct_fields__") else None
    return Nested(base) if hasattr(base, "__struct_fields__") else None
