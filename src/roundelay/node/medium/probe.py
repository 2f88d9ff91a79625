"""Which medium works here: tried at the start, and said with the reason.

Multicast is tried first, on the interface that was asked for or else on each in turn: a probe is
sent to the group and must come back.  Where it does not, the seeds serve for unicast fan-out.
Without seeds there is nothing left to try, and the error says what to give.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.node.medium.interfaces import LOOPBACK, Interface, find, preferred
from roundelay.node.medium.media import (
    Address,
    FanoutMedium,
    Medium,
    MulticastMedium,
    check_multicast,
)
from roundelay.node.medium.switch_medium import SwitchMedium
from roundelay.wire.control import encode

MULTICAST: Final = ("239.255.66.77", 6677)
PROBES: Final = 3
PROBE_WAIT_S: Final = 0.15
FANOUT_MTU: Final = 1200
"""Datagrams between networks that nobody knows; a tunnel takes its share of 1,500."""


class Choice(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    multicast: Address = MULTICAST
    interface: str = ""
    seeds: tuple[Address, ...] = ()
    advertise: Address | None = None
    listen: Address | None = None
    """Fan-out: own address; the port may be 0."""
    via: Address | None = None
    """A switch to cross."""
    mtu: int = 0
    ttl: int = 1
    name: str = ""


async def choose(choice: Choice) -> tuple[Medium, str]:
    """A medium that works, and why it is this one."""
    if choice.via is not None:
        return SwitchMedium(choice.via, choice.name), "a switch was asked for"
    if choice.seeds or choice.listen is not None or choice.advertise is not None:
        what = "seeds were" if choice.seeds else "an own address, but no seed, was"
        return _fanout(choice), f"{what} given"
    check_multicast(choice.multicast)
    candidates = [find(choice.interface)] if choice.interface else preferred()
    tried = []
    for interface in candidates:
        try:
            medium = MulticastMedium(choice.multicast, interface, choice.ttl)
        except ConfigError as error:
            tried.append(f"{interface.name}: {error.allowed}")
            continue
        if await _hears_itself(medium):
            medium.ignore_own()
            if choice.mtu:
                medium.mtu = choice.mtu
            why = "multicast works on " + interface.name
            if interface.loopback and not choice.interface:
                why += ", which stays on this machine; nothing else does"
            return medium, why
        tried.append(f"{interface.name}: no multicast came back")
        medium.close()
    allowed = (
        f"one where multicast works ({'; '.join(tried) or 'none has an address'}): try another "
        "interface, or unicast fan-out with seeds = HOST:PORT of other nodes"
    )
    raise ConfigError("interface", choice.interface or "any", allowed)


def _fanout(choice: Choice) -> FanoutMedium:
    own = choice.listen
    if own is None:
        others = [*choice.seeds, *([choice.advertise] if choice.advertise else [])]
        interface = find(choice.interface) if choice.interface else _towards(others)
        own = (interface.address, choice.advertise[1] if choice.advertise else 0)
    local = own[0].startswith("127.")
    mtu = choice.mtu or (find(LOOPBACK).datagram if local else FANOUT_MTU)
    return FanoutMedium(own, choice.seeds, mtu, choice.advertise)


def _towards(seeds: Sequence[Address]) -> Interface:
    """The interface that leads to the first seed."""
    for interface in preferred():
        if interface.loopback == seeds[0][0].startswith("127."):
            return interface
    return find(LOOPBACK)


async def _hears_itself(medium: MulticastMedium) -> bool:
    """Whether a datagram to the group comes back to us."""
    packet = encode(os.urandom(16))
    heard = asyncio.Event()
    own, medium.address = medium.address, ("", 0)  # let our own datagrams through
    medium.start(lambda data, source: heard.set() if data == packet else None, lambda: None)
    try:
        for _ in range(PROBES):
            medium.send(packet)
            try:
                await asyncio.wait_for(heard.wait(), PROBE_WAIT_S)
            except TimeoutError:
                continue
            return True
        return False
    finally:
        medium.address = own
        medium.stop()
