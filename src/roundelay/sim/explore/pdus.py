"""PDUs of an explored group: numbered, and in words."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

from roundelay.core.engine import Pdu

Value = TypeVar("Value", bound=Hashable)

VERSION_FIELDS: Final = frozenset(("tl", "v", "old", "max_joined"))
"""Fields of the token protocol's PDUs that hold the version of a list."""


class Numbered(list[Value], Generic[Value]):
    """Values, of which equal ones stand once.

    >>> names = Numbered()
    >>> names.number("a"), names.number("b"), names.number("a"), names
    (0, 1, 0, ['a', 'b'])
    """

    def __init__(self, values: Iterable[Value] = ()) -> None:
        super().__init__(values)
        self._numbers = {value: number for number, value in enumerate(self)}

    def number(self, value: Value) -> int:
        """Return the place of `value`, at the end if it is new."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self)
            self.append(value)
        return number


def describe(pdu: Pdu) -> str:
    """Return `pdu` as a trace shows it.

    >>> from roundelay.core.token.pdu import Confirm
    >>> describe(Confirm((1, 2), 0, 1, 4))
    'CONFIRM(tl=1.2 ts=0 by=1 top=4)'
    """
    parts = []
    for name in pdu.__struct_fields__:
        value = getattr(pdu, name)
        if isinstance(value, tuple) and len(value) == 2 and name in VERSION_FIELDS:
            value = f"{value[0]}.{value[1]}"
        elif isinstance(value, Pdu):
            value = describe(value)
        elif name == "bundle":
            value = value.data.decode()
        elif name == "entries":
            value = [f"{entry.ack.ts}:{entry.bundle.data.decode() or 'NULL'}" for entry in value]
        parts.append(f"{name}={value}")
    return f"{type(pdu).__name__.upper()}({' '.join(parts)})"
