"""Fingerprints: 64 bits that stand for a message, so that nobody has to keep the message.

A trace holds no application data and a checker holds no messages; both know a message by the
first eight bytes of its BLAKE2b hash, read as a signed number because that is what Parquet, Spark
and `array("q")` store.  The messages of a simulated run are all different, so equal fingerprints
mean the same message; among a hundred million of them the chance that any two collide is below
one in a thousand.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from roundelay.core.bundle import Bundle

CACHE_SIZE: Final = 1024
"""Bundles remembered: every site delivers the same one, most of them soon after one another."""


def fingerprint(message: bytes) -> int:
    """The 64 bits that stand for `message`.

    >>> fingerprint(b"abc") == fingerprint(b"abc") != fingerprint(b"abd")
    True
    """
    return int.from_bytes(blake2b(message, digest_size=8).digest(), "big", signed=True)


def combined(fingerprints: tuple[int, ...]) -> int:
    """The 64 bits that stand for a whole bundle, made from those of its messages."""
    if len(fingerprints) == 1:
        return fingerprints[0]
    return fingerprint(b"".join([part.to_bytes(8, "big", signed=True) for part in fingerprints]))


class Fingerprints:
    """Fingerprints of the messages of a bundle, with a memory for the latest bundles.

    Sites of a simulation mostly deliver one and the same object, so that is looked for first; the
    second memory is keyed by content and serves bundles that went through a codec.
    """

    __slots__ = ("_by_content", "_by_id")

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Bundle, tuple[int, ...]]] = {}
        self._by_content: dict[Bundle, tuple[int, ...]] = {}

    def __call__(self, bundle: Bundle) -> tuple[int, ...]:
        same = self._by_id.get(id(bundle))
        if same is not None and same[0] is bundle:
            return same[1]
        fingerprints = self._by_content.get(bundle)
        if fingerprints is None:
            fingerprints = tuple([fingerprint(message) for message in bundle])
            if len(self._by_content) >= CACHE_SIZE:
                # Sites are rarely further apart than this: start over, cheaply.
                self._by_content.clear()
            self._by_content[bundle] = fingerprints
        if len(self._by_id) >= CACHE_SIZE:
            self._by_id.clear()
        self._by_id[id(bundle)] = (bundle, fingerprints)  # held, so the id stays its own
        return fingerprints
