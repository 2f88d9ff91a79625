"""What is plugged into a world from outside, besides the rows and observers of `core.events`.

The simulator knows these by their shape alone, so it can be used without a codec and with engines
that exist only in a test.
"""

from __future__ import annotations

from random import Random
from typing import Any, Protocol

from roundelay.core.engine import Engine


class StableState(Protocol):
    """What survives a crash: the fold of all persisted records."""

    def apply(self, record: Any, /) -> None: ...


class EngineFactory(Protocol):
    """Makes the engine of a site; `now` is the site's own clock.

    `stable` is what a crash left on disk, or None at the first start and after the loss of the
    disk; `boot` says how a site without one begins (`rejoin` after the loss of the disk).
    """

    def __call__(self, site: int, stable: Any, boot: str, now: int, rng: Random, /) -> Engine: ...


class Codec(Protocol):
    """PDUs to bytes and back; `decode` raises MalformedPdu."""

    def encode(self, pdu: Any, sender: int, /) -> bytes: ...

    def decode(self, data: bytes, /) -> Any: ...
