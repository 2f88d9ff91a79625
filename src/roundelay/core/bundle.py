"""A bundle: several application messages carried by one PDU as one byte string.

While a source waits for its acknowledgement, new messages gather and the next PDU carries them
all, so the cost per message falls with load while the protocol keeps its one outstanding PDU.
There is no object per message until somebody asks for the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from struct import Struct as Layout
from typing import Final

from msgspec import Struct


class _Codes(dict[int, str]):
    """`struct`'s codes for byte strings, by length."""

    def __missing__(self, size: int) -> str:
        return f"{size}s"


_code = _Codes((size, f"{size}s") for size in range(2048)).__getitem__


class Bundle(Struct, frozen=True, gc=False):
    """Messages laid end to end in `data`; `sizes` is the table of their lengths.

    >>> list(Bundle.of(b"one", b"three"))
    [b'one', b'three']
    """

    sizes: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, *messages: bytes) -> Bundle:
        return cls(tuple(map(len, messages)), b"".join(messages))

    @classmethod
    def merged(cls, bundles: Iterable[Bundle]) -> Bundle:
        """One bundle with the messages of all of them, in order."""
        parts = list(bundles)
        if len(parts) == 1:
            return parts[0]
        sizes = tuple(chain.from_iterable([part.sizes for part in parts]))
        return cls(sizes, b"".join([part.data for part in parts]))

    @property
    def uniform(self) -> int:
        """The one size that all messages have; 0 if they differ, are empty, or there are none."""
        sizes = self.sizes
        count = len(sizes)
        if count:
            size = sizes[0]
            # The product tells most cases apart without a look at every size.
            if size * count == len(self.data) and sizes.count(size) == count:
                return size
        return 0

    def messages(self) -> tuple[bytes, ...]:
        """All messages; `struct` cuts several times faster than slices do."""
        sizes, data = self.sizes, self.data
        count = len(sizes)
        if count == 1:
            return (data,)
        size = self.uniform
        codes = _code(size) * count if size else "".join(map(_code, sizes))
        return Layout(codes).unpack(data)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.messages())


MESSAGES_MAX: Final = 65535
"""Messages in one bundle: their number has two bytes on the wire."""

NOTHING = Bundle((), b"")
