"""A bundle: several application messages carried by one PDU as one byte string.

While a source waits for its acknowledgement, new messages gather and the next PDU carries them
all, so the cost per message falls with load while the protocol keeps its one outstanding PDU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct


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
        sizes = tuple(size for part in parts for size in part.sizes)
        return cls(sizes, b"".join([part.data for part in parts]))

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for size in self.sizes:
            yield self.data[start : start + size]
            start += size


MESSAGES_MAX: Final = 65535
"""Messages in one bundle: their number has two bytes on the wire."""

NOTHING = Bundle((), b"")
