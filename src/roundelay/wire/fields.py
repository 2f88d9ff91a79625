"""Kinds of fields, of which `body` makes bodies.

Neighbouring fields of fixed size are packed by one `struct.Struct` (`Fixed`); everything else is a
part of its own.  All integers are big-endian.

Reading trusts nothing: a count is compared with the bytes that are left before anything of that
size is made, and a value that `read` would refuse is refused by `write`, too, so that no site can
send what another cannot accept.  Both raise MalformedPdu and nothing else.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from roundelay.core.errors import MalformedPdu
from roundelay.core.token.pdu import NO_LIST

if TYPE_CHECKING:
    from roundelay.wire.body import Body

# Reasons a body is refused for.
SHORT_BODY: Final = "short body"
TRAILING: Final = "trailing bytes"
BAD_VALUE: Final = "bad value"
BAD_VERSION: Final = "bad list version"
BAD_MEMBERS: Final = "bad member set"
BAD_BUNDLE: Final = "bad bundle"
TOO_MANY: Final = "too many items"

U8: Final = (1 << 8) - 1
U16: Final = (1 << 16) - 1
U32: Final = (1 << 32) - 1
S63: Final = (1 << 63) - 1

NO_ID: Final = U16
"""On the wire, the id of nobody."""

RANKS_MAX: Final = 128
"""Members of a cluster."""


class Row(Struct, frozen=True):
    """One line of a body's table in the documentation."""

    name: str
    wire: str
    meaning: str


class Part(ABC):
    """A stretch of a body that holds the attributes `names` and has at least `least` bytes."""

    __slots__ = ("least", "names")

    def __init__(self, names: tuple[str, ...], least: int) -> None:
        self.names = names
        self.least = least

    @abstractmethod
    def write(self, owner: Any, out: list[bytes]) -> None:
        """Append the bytes of the attributes of `owner` to `out`."""

    @abstractmethod
    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        """Append the attributes found at `pos` to `values`; return where they end."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """What the documentation says of it."""


# ------------------------------------------------------------------------ fields of fixed size


class Scalar(Struct, frozen=True):
    """A field of fixed size: one number, or two for a list version."""

    name: str
    code: str
    wire: str
    meaning: str
    least: int = 0
    most: int = 0
    """Allowed values, where these are fewer than the bytes can say; most = 0: all of them."""
    pack: Callable[[Any], tuple[int, ...]] | None = None
    unpack: Callable[..., Any] | None = None
    """From attribute to numbers and back, where they differ."""


def _pack_version(version: tuple[int, int]) -> tuple[int, ...]:
    number, site = version
    if number == U32 or site == U16:
        raise MalformedPdu(BAD_VERSION, f"{version} is kept for sites without a list")
    return version


def _unpack_version(number: int, site: int) -> tuple[int, int]:
    if number == U32 or site == U16:
        raise MalformedPdu(BAD_VERSION, f"({number}, {site})")
    return (number, site)


def _pack_version_or_none(version: tuple[int, int]) -> tuple[int, ...]:
    return (U32, U16) if version == NO_LIST else _pack_version(version)


def _unpack_version_or_none(number: int, site: int) -> tuple[int, int]:
    return NO_LIST if number == U32 and site == U16 else _unpack_version(number, site)


def version(name: str, meaning: str = "list version: number, site") -> Scalar:
    """A token list's version."""
    return Scalar(name, "IH", "u32, u16", meaning, pack=_pack_version, unpack=_unpack_version)


def version_or_none(name: str, meaning: str) -> Scalar:
    """A token list's version, or NO_LIST as all ones."""
    return Scalar(
        name,
        "IH",
        "u32, u16",
        f"{meaning}; all ones: none",
        pack=_pack_version_or_none,
        unpack=_unpack_version_or_none,
    )


def _unpack_history(one: int, parent: int, base: int) -> tuple[int, int, int]:
    if one < 0 or parent < 0 or base < -1:
        raise MalformedPdu(BAD_VALUE, f"history {one}, {parent}, {base}")
    return (one, parent, base)


def history(name: str, meaning: str) -> Scalar:
    """A history of the group: its id, the one it goes on from, and at which position."""
    return Scalar(
        name, "qqq", "u64, u64, u64", f"{meaning}: id, id of the one before, position; 0: none",
        pack=lambda past: past, unpack=_unpack_history,
    )  # fmt: skip


def ident(name: str, meaning: str) -> Scalar:
    """A member's id."""
    return Scalar(name, "H", "u16", meaning, most=U16 - 1)


def ident_or_none(name: str, meaning: str) -> Scalar:
    """A member's id, or −1 as all ones."""
    return Scalar(
        name,
        "H",
        "u16",
        f"{meaning}; all ones: nobody",
        pack=lambda site: (NO_ID if site == -1 else site,),
        unpack=lambda site: -1 if site == NO_ID else site,
    )


def number(name: str, meaning: str) -> Scalar:
    """A message number."""
    return Scalar(name, "I", "u32", meaning)


def stamp(name: str, meaning: str) -> Scalar:
    """A timestamp or position; below 2⁶³, so that every table of signed numbers can hold it."""
    return Scalar(name, "q", "u64", meaning, most=S63)


def stamp_or_none(name: str, meaning: str) -> Scalar:
    """A timestamp, or −1 as all ones: the one before the first."""
    return Scalar(name, "q", "u64", f"{meaning}; all ones: none yet", least=-1, most=S63)


def choice(name: str, least: int, most: int, meaning: str) -> Scalar:
    """One byte with few allowed values."""
    return Scalar(name, "B", "u8", meaning, least=least, most=most)


def boolean(name: str, meaning: str) -> Scalar:
    return Scalar(
        name, "B", "u8", meaning, most=1, pack=lambda value: (1 if value else 0,), unpack=bool
    )


class Fixed(Part):
    """Neighbouring scalars, packed at once."""

    __slots__ = ("_converts", "_get", "_limits", "_scalars", "_single", "_struct")

    def __init__(self, scalars: tuple[Scalar, ...]) -> None:
        self._struct = struct.Struct(">" + "".join(scalar.code for scalar in scalars))
        super().__init__(tuple(scalar.name for scalar in scalars), self._struct.size)
        self._scalars = scalars
        self._get: Callable[[Any], Any] = attrgetter(*self.names)
        self._single = len(scalars) == 1  # then attrgetter yields the value, not a tuple
        self._limits: list[tuple[int, int, int]] = []  # index among the numbers, least, most
        # (index of the attribute, index among the numbers, how many, to numbers, from numbers)
        converts = []
        at = 0
        for index, scalar in enumerate(scalars):
            width = len(scalar.code)
            if scalar.most:
                self._limits.append((at, scalar.least, scalar.most))
            if scalar.pack and scalar.unpack:
                converts.append((index, at, width, scalar.pack, scalar.unpack))
            at += width
        self._converts = converts[::-1]  # from the end, so that indices before stay valid

    def write(self, owner: Any, out: list[bytes]) -> None:
        got = self._get(owner)
        flat = [got] if self._single else list(got)
        for index, _, _, pack, _ in self._converts:
            flat[index : index + 1] = pack(flat[index])
        for at, least, most in self._limits:
            if not least <= flat[at] <= most:
                raise self._refusal(at, flat)
        try:
            out.append(self._struct.pack(*flat))
        except struct.error as error:
            raise MalformedPdu(BAD_VALUE, str(error)) from None

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        after = pos + self.least
        if after > end:
            raise MalformedPdu(SHORT_BODY)
        flat = list(self._struct.unpack_from(data, pos))
        for at, least, most in self._limits:
            if not least <= flat[at] <= most:
                raise self._refusal(at, flat)
        for _, at, width, _, unpack in self._converts:
            flat[at : at + width] = (unpack(*flat[at : at + width]),)
        values += flat
        return after

    def _refusal(self, at: int, flat: list[int]) -> MalformedPdu:
        names = [scalar.name for scalar in self._scalars for _ in scalar.code]
        return MalformedPdu(BAD_VALUE, f"{names[at]} = {flat[at]}")

    def rows(self) -> Iterator[Row]:
        for scalar in self._scalars:
            yield Row(scalar.name, scalar.wire, scalar.meaning)


# ------------------------------------------------------------------------ fields of other sizes


class Flags(Part):
    """Several truths in one byte, bit 0 first."""

    __slots__ = ("_meaning",)

    def __init__(self, *names: str, meaning: str) -> None:
        super().__init__(names, 1)
        self._meaning = meaning

    def write(self, owner: Any, out: list[bytes]) -> None:
        bits = [bool(getattr(owner, name)) << bit for bit, name in enumerate(self.names)]
        out.append(bytes((sum(bits),)))

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        if pos >= end:
            raise MalformedPdu(SHORT_BODY)
        bits = data[pos]
        if bits >> len(self.names):
            raise MalformedPdu(BAD_VALUE, f"flags {bits:#04x}")
        values += [bool(bits >> bit & 1) for bit in range(len(self.names))]
        return pos + 1

    def rows(self) -> Iterator[Row]:
        yield Row(", ".join(self.names), "u8", self._meaning)


class Members(Part):
    """A set of member ids whose order counts: u16 count, u16 ids, all different."""

    __slots__ = ("_fewest", "_meaning")

    def __init__(self, name: str, meaning: str, fewest: int = 0) -> None:
        super().__init__((name,), 2 + 2 * fewest)
        self._fewest = fewest
        self._meaning = meaning

    def write(self, owner: Any, out: list[bytes]) -> None:
        ids: tuple[int, ...] = getattr(owner, self.names[0])
        self._check(ids)
        try:
            out.append(struct.pack(f">H{len(ids)}H", len(ids), *ids))
        except struct.error as error:
            raise MalformedPdu(BAD_MEMBERS, str(error)) from None

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        start = pos + 2
        if start > end:
            raise MalformedPdu(SHORT_BODY)
        count = int.from_bytes(data[pos:start], "big")
        after = start + 2 * count
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{count} members")
        ids = struct.unpack_from(f">{count}H", data, start)
        self._check(ids)
        values.append(ids)
        return after

    def _check(self, ids: tuple[int, ...]) -> None:
        if len(ids) < self._fewest or NO_ID in ids or len(set(ids)) < len(ids):
            raise MalformedPdu(BAD_MEMBERS, f"{len(ids)} ids, {len(set(ids))} of them different")

    def rows(self) -> Iterator[Row]:
        yield Row(self.names[0], "u16 count, u16 each", self._meaning)


class Mask(Part):
    """A set of members as an integer with a bit per rank: u16 count, u16 ranks, ascending."""

    __slots__ = ("_meaning",)

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__((name,), 2)
        self._meaning = meaning

    def write(self, owner: Any, out: list[bytes]) -> None:
        mask: int = getattr(owner, self.names[0])
        if not 0 <= mask < 1 << RANKS_MAX:
            raise MalformedPdu(BAD_MEMBERS, f"{self.names[0]} = {mask}")
        ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
        out.append(struct.pack(f">H{len(ranks)}H", len(ranks), *ranks))

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        start = pos + 2
        if start > end:
            raise MalformedPdu(SHORT_BODY)
        count = int.from_bytes(data[pos:start], "big")
        after = start + 2 * count
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{count} members")
        mask, last = 0, -1
        for rank in struct.unpack_from(f">{count}H", data, start):
            if not last < rank < RANKS_MAX:
                raise MalformedPdu(BAD_MEMBERS, f"rank {rank} after {last}")
            mask |= 1 << rank
            last = rank
        values.append(mask)
        return after

    def rows(self) -> Iterator[Row]:
        yield Row(self.names[0], "u16 count, u16 each", self._meaning)


class Nested(Part):
    """An attribute that is an object with a body of its own."""

    __slots__ = ("_body",)

    def __init__(self, name: str, body: Body) -> None:
        super().__init__((name,), body.least)
        self._body = body

    def write(self, owner: Any, out: list[bytes]) -> None:
        self._body.write(getattr(owner, self.names[0]), out)

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        item, after = self._body.read(data, pos, end)
        values.append(item)
        return after

    def rows(self) -> Iterator[Row]:
        for row in self._body.rows():
            yield Row(f"{self.names[0]}.{row.name}", row.wire, row.meaning)


class Vector(Part):
    """A vector: u8 count, then so many bodies."""

    __slots__ = ("_body", "_meaning")

    def __init__(self, name: str, body: Body, meaning: str) -> None:
        super().__init__((name,), 1)
        self._body = body
        self._meaning = meaning

    def write(self, owner: Any, out: list[bytes]) -> None:
        items: tuple[Any, ...] = getattr(owner, self.names[0])
        if len(items) > U8:
            raise MalformedPdu(TOO_MANY, f"{len(items)} {self.names[0]}, at most {U8}")
        out.append(bytes((len(items),)))
        for item in items:
            self._body.write(item, out)

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        if pos >= end:
            raise MalformedPdu(SHORT_BODY)
        count = data[pos]
        pos += 1
        if count * self._body.least > end - pos:
            raise MalformedPdu(SHORT_BODY, f"{count} {self.names[0]}")
        items = []
        for _ in range(count):
            item, pos = self._body.read(data, pos, end)
            items.append(item)
        values.append(tuple(items))
        return pos

    def rows(self) -> Iterator[Row]:
        name = self.names[0]
        yield Row(name, "u8 count", f"{self._meaning}, each:")
        for row in self._body.rows():
            yield Row(f"{name}[].{row.name}", row.wire, row.meaning)


class Numbers(Part):
    """A vector of numbers: u8 count, then u32 each."""

    __slots__ = ("_meaning",)

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__((name,), 1)
        self._meaning = meaning

    def write(self, owner: Any, out: list[bytes]) -> None:
        numbers: tuple[int, ...] = getattr(owner, self.names[0])
        if len(numbers) > U8:
            raise MalformedPdu(TOO_MANY, f"{len(numbers)} {self.names[0]}, at most {U8}")
        try:
            out.append(struct.pack(f">B{len(numbers)}I", len(numbers), *numbers))
        except struct.error as error:
            raise MalformedPdu(BAD_VALUE, str(error)) from None

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        if pos >= end:
            raise MalformedPdu(SHORT_BODY)
        count = data[pos]
        after = pos + 1 + 4 * count
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{count} {self.names[0]}")
        values.append(struct.unpack_from(f">{count}I", data, pos + 1))
        return after

    def rows(self) -> Iterator[Row]:
        yield Row(self.names[0], "u8 count, u32 each", self._meaning)


class Pairs(Part):
    """A vector of pairs: u8 count, then the two values of each, as `item` packs them."""

    __slots__ = ("_item", "_meaning", "_wire")

    def __init__(self, name: str, item: str, wire: str, meaning: str) -> None:
        super().__init__((name,), 1)
        self._item = struct.Struct(f">{item}")
        self._wire = wire
        self._meaning = meaning

    def write(self, owner: Any, out: list[bytes]) -> None:
        pairs: tuple[tuple[int, int], ...] = getattr(owner, self.names[0])
        if len(pairs) > U8:
            raise MalformedPdu(TOO_MANY, f"{len(pairs)} {self.names[0]}, at most {U8}")
        self.check(pairs)
        pack = self._item.pack
        try:
            out.append(bytes((len(pairs),)) + b"".join([pack(*pair) for pair in pairs]))
        except struct.error as error:
            raise MalformedPdu(BAD_VALUE, str(error)) from None

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        if pos >= end:
            raise MalformedPdu(SHORT_BODY)
        after = pos + 1 + self._item.size * data[pos]
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{data[pos]} {self.names[0]}")
        pairs = tuple(self._item.iter_unpack(data[pos + 1 : after]))
        self.check(pairs)
        values.append(pairs)
        return after

    @abstractmethod
    def check(self, pairs: tuple[Any, ...]) -> None:
        """Raise MalformedPdu for pairs that no correct peer sends."""

    def rows(self) -> Iterator[Row]:
        yield Row(self.names[0], self._wire, self._meaning)


class Counters(Pairs):
    """A vector of (source, next number)."""

    __slots__ = ()

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(name, "HI", "u8 count, (u16, u32) each", meaning)

    def check(self, pairs: tuple[Any, ...]) -> None:
        sources = {source for source, _ in pairs}
        if NO_ID in sources or len(sources) < len(pairs):
            raise MalformedPdu(BAD_VALUE, f"{self.names[0]}: {len(sources)} different sources")
