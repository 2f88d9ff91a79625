"""The bytes of a class: a table of its fields in the order of the bytes, which is also the order of
its attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from roundelay.core.bundle import Bundle
from roundelay.core.errors import MalformedPdu
from roundelay.wire.fields import TRAILING, Fixed, Numbers, Part, Row, Scalar
from roundelay.wire.payload import MARKED, Payload


class Body:
    """The bytes of one class: its attributes, in their order."""

    __slots__ = ("_numbers", "_parts", "cls", "least")

    def __init__(self, cls: type[Any], *table: Scalar | Part) -> None:
        self.cls = cls
        parts: list[Part] = []
        run: list[Scalar] = []
        for field in (*table, None):
            if isinstance(field, Scalar):
                run.append(field)
                continue
            if run:
                parts.append(Fixed(tuple(run)))
                run = []
            if field is not None:
                parts.append(field)
        self._parts = tuple(parts)
        self._numbers = all(isinstance(part, Fixed | Numbers) for part in parts[:-1])
        self.least = sum(part.least for part in parts)
        names = tuple(name for part in parts for name in part.names)
        if names != cls.__struct_fields__:
            raise TypeError(f"the table of {cls.__name__} has {names}, not its attributes")

    def write(self, owner: Any, out: list[bytes]) -> None:
        for part in self._parts:
            part.write(owner, out)

    def read(self, data: bytes, pos: int, end: int) -> tuple[Any, int]:
        values: list[Any] = []
        for part in self._parts:
            pos = part.read(data, pos, end, values)
        return self.cls(*values), pos

    def read_pieces(self, pieces: Sequence[bytes | memoryview], pos: int) -> Any:
        """What `read` finds in the join of `pieces`, of which the last ends the body.

        None unless the body is numbers and then a bundle, which has no marks and whose messages
        begin in the first piece: nothing of what is found refers to `pieces`.
        """
        last = self._parts[-1]
        if not isinstance(last, Payload) or not self._numbers:
            return None
        first = pieces[0]
        held = len(first)
        end = sum(map(len, pieces))
        values: list[Any] = []
        for part in self._parts[:-1]:
            pos = part.read(first, pos, held, values)  # type: ignore[arg-type]
        if pos + 7 > held or first[pos + 2] & MARKED:
            return None
        if pos + 7 + first[pos + 2] * (first[pos] << 8 | first[pos + 1]) > held:
            return None
        sizes, start, after = last.shape(first, pos, held, end)
        if after != end:
            raise MalformedPdu(TRAILING, f"{end - after} of them")
        data = b"".join([memoryview(first)[start:], *pieces[1:]])
        return self.cls(*values, Bundle(sizes, data))

    def rows(self) -> Iterator[Row]:
        for part in self._parts:
            yield from part.rows()
