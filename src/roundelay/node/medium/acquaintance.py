"""Without multicast: whom a node sends everything to.

Seeds are named by whoever starts the node.  Of all other addresses a node only hears, from nodes
that say where they are and whom they know.  Anybody could be named there, so an address gets
nothing but a short knock until it has returned what the knock said; a knock is answered with a
packet of its size, and asked for so many times at most.  Who has not been heard for a while gets
nothing more, unless it is a seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from roundelay.core.engine import MS, SECOND
from roundelay.node.medium.media import Address, FanoutMedium
from roundelay.wire.control import KNOCK_BYTES, Knock

CANDIDATES_MAX: Final = 256
KNOCKS: Final = 12
"""Then nobody is there; whoever names the address again begins again."""
KNOCK_NS: Final = 250 * MS
FORGET_NS: Final = 60 * SECOND
"""A peer that has not been heard for so long is gone."""


class NamedAddress(Struct):
    """An address that somebody named."""

    token: bytes
    knocks: int = 0
    due: int = 0


class Acquaintances:
    """Which addresses a fan-out medium may send to."""

    def __init__(self, medium: FanoutMedium, knock: Callable[[Address, Knock], None]) -> None:
        self.medium = medium
        self.candidates: dict[Address, NamedAddress] = {}
        self.heard: dict[Address, int] = {}
        """When each peer was last heard."""
        self._knock = knock

    def named(self, address: Address, now: int) -> None:
        """Somebody says that a node is at `address`."""
        medium = self.medium
        if address in (medium.address, medium.advertised) or address in medium.peers:
            return
        if address not in self.candidates:
            if len(self.candidates) >= CANDIDATES_MAX:
                medium.count("too many addresses to ask")
                return
            self.candidates[address] = NamedAddress(os.urandom(KNOCK_BYTES))
            self._ask(address, now)

    def spoke(self, address: Address, now: int) -> None:
        """The node at `address` said who it is."""
        if address in self.medium.peers:
            self.heard[address] = now
        self.named(address, now)

    def answered(self, token: bytes, now: int) -> bool:
        """A knock was returned; whether that makes a peer of somebody."""
        for address, candidate in self.candidates.items():
            if candidate.token == token:
                del self.candidates[address]
                self.heard[address] = now
                self.medium.meet(address)
                return True
        return False

    def on_tick(self, now: int) -> None:
        for address, candidate in list(self.candidates.items()):
            if candidate.due > now:
                continue
            if candidate.knocks >= KNOCKS:
                del self.candidates[address]
            else:
                self._ask(address, now)
        for peer in list(self.medium.peers):
            if now - self.heard.setdefault(peer, now) > FORGET_NS:
                self.medium.part(peer)
        self.heard = {peer: self.heard[peer] for peer in self.medium.peers if peer in self.heard}

    def _ask(self, address: Address, now: int) -> None:
        candidate = self.candidates[address]
        candidate.knocks += 1
        candidate.due = now + KNOCK_NS
        self._knock(address, Knock(candidate.token))
