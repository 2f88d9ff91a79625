"""Fields whose size varies: each has a head of fixed size, which says how much follows, and a tail.

The head is read and written together with the fields before it (`wire.compiler`); what stands here
are the tails.  Reading trusts nothing: a count is compared with the bytes that are left before
anything of that size is made, and a value that `read` would refuse is refused by `write`, too, so
that no site can send what another cannot accept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from roundelay.core.errors import MalformedPdu
from roundelay.core.fields import (
    S63,
    U8,
    U16,
    CounterVector,
    Kind,
    MemberIds,
    NumberVector,
    Octets,
    RangeVector,
    RankSet,
)

# Reasons a body is refused for.
SHORT_BODY: Final = "short body"
TRAILING: Final = "trailing bytes"
BAD_VALUE: Final = "bad value"
BAD_VERSION: Final = "bad list version"
BAD_MEMBERS: Final = "bad member set"
BAD_BUNDLE: Final = "bad bundle"
TOO_MANY: Final = "too many items"

NO_ID: Final = U16
"""On the wire, the id of nobody."""

RANKS_MAX: Final = 128
"""Members of a cluster."""

Read = Callable[[bytes, int, int, int], tuple[Any, int]]
"""(data, where the tail begins, end of the body, count) → (value, where the tail ends)"""
Write = Callable[[Any], bytes | list[bytes]]
Pairs = tuple[Any, ...]
"""Of numbers."""

NUMBERS: Final = tuple(struct.Struct(f">{count}I") for count in range(U8 + 1))
COUNTER: Final = struct.Struct(">HI")
RANGE: Final = struct.Struct(">qq")


class PartCodec(NamedTuple):
    """How fields of a kind are read and written."""

    head: str
    """The code of the head for `struct`."""
    count: Callable[[Any], int]
    read: Read
    write: Write


def part_of(kind: Kind, name: str) -> PartCodec:
    """The part for a field of that kind and name."""
    if isinstance(kind, NumberVector):
        return _numbers(name)
    if isinstance(kind, CounterVector):
        return _counters(name)
    if isinstance(kind, RangeVector):
        return _ranges(name)
    if isinstance(kind, MemberIds):
        return _members(kind.fewest)
    if isinstance(kind, RankSet):
        return _ranks(name)
    if isinstance(kind, Octets):
        return _octets(kind.most)
    raise TypeError(f"{name}: {type(kind).__name__} has no bytes")


def check_count(items: Any, name: str) -> None:
    if len(items) > U8:
        raise MalformedPdu(TOO_MANY, f"{len(items)} {name}, at most {U8}")


def _numbers(name: str) -> PartCodec:
    def read(data: bytes, pos: int, end: int, count: int) -> tuple[tuple[int, ...], int]:
        after = pos + 4 * count
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{count} {name}")
        return NUMBERS[count].unpack_from(data, pos), after

    def write(numbers: tuple[int, ...]) -> bytes:
        check_count(numbers, name)
        return NUMBERS[len(numbers)].pack(*numbers)

    return PartCodec("B", len, read, write)


def _counters(name: str) -> PartCodec:
    def check(pairs: Pairs) -> None:
        sources = {source for source, _ in pairs}
        if NO_ID in sources or len(sources) < len(pairs) or len(pairs) > U8:
            raise MalformedPdu(BAD_VALUE, f"{name}: {len(sources)} different sources")

    return _pairs(name, COUNTER, check)


def _ranges(name: str) -> PartCodec:
    def check(ranges: Pairs) -> None:
        check_count(ranges, name)
        for lo, hi in ranges:
            if not 0 <= lo < hi <= S63:
                raise MalformedPdu(BAD_VALUE, f"{name}: from {lo} up to {hi}")

    return _pairs(name, RANGE, check)


def _pairs(name: str, layout: struct.Struct, check: Callable[[Pairs], None]) -> PartCodec:
    def read(data: bytes, pos: int, end: int, count: int) -> tuple[Pairs, int]:
        after = pos + layout.size * count
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{count} {name}")
        pairs = tuple(layout.iter_unpack(data[pos:after]))
        check(pairs)
        return pairs, after

    def write(pairs: Pairs) -> bytes:
        check(pairs)
        return b"".join([layout.pack(*pair) for pair in pairs])

    return PartCodec("B", len, read, write)


def _read_ids(data: bytes, pos: int, end: int, count: int) -> tuple[tuple[int, ...], int]:
    after = pos + 2 * count
    if after > end:
        raise MalformedPdu(SHORT_BODY, f"{count} members")
    return struct.unpack_from(f">{count}H", data, pos), after


def _members(fewest: int) -> PartCodec:
    def check(ids: tuple[int, ...]) -> None:
        if len(ids) < fewest or NO_ID in ids or len(set(ids)) < len(ids):
            raise MalformedPdu(BAD_MEMBERS, f"{len(ids)} ids, {len(set(ids))} of them different")

    def read(data: bytes, pos: int, end: int, count: int) -> tuple[tuple[int, ...], int]:
        ids, after = _read_ids(data, pos, end, count)
        check(ids)
        return ids, after

    def write(ids: tuple[int, ...]) -> bytes:
        check(ids)
        return struct.pack(f">{len(ids)}H", *ids)

    return PartCodec("H", len, read, write)


def _ranks(name: str) -> PartCodec:
    """A set as an integer with a bit per rank; on the wire the ranks, ascending."""

    def read(data: bytes, pos: int, end: int, count: int) -> tuple[int, int]:
        ranks, after = _read_ids(data, pos, end, count)
        mask, last = 0, -1
        for rank in ranks:
            if not last < rank < RANKS_MAX:
                raise MalformedPdu(BAD_MEMBERS, f"rank {rank} after {last}")
            mask |= 1 << rank
            last = rank
        return mask, after

    def write(mask: int) -> bytes:
        if not 0 <= mask < 1 << RANKS_MAX:
            raise MalformedPdu(BAD_MEMBERS, f"{name} = {mask}")
        ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
        return struct.pack(f">{len(ranks)}H", *ranks)

    return PartCodec("H", int.bit_count, read, write)


def _octets(most: int) -> PartCodec:
    def check(count: int) -> None:
        if count > most:
            raise MalformedPdu(TOO_MANY, f"{count} bytes, at most {most}")

    def read(data: bytes, pos: int, end: int, count: int) -> tuple[bytes, int]:
        check(count)
        after = pos + count
        if after > end:
            raise MalformedPdu(SHORT_BODY, f"{count} bytes")
        return data[pos:after], after

    def write(octets: bytes) -> bytes:
        check(len(octets))
        return octets

    return PartCodec("I", len, read, write)
