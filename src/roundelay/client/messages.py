"""Messages as an application has them: what they carry, and how durable they are to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.core.limits import whole
from roundelay.node.switchboard import Batch
from roundelay.wire.frontend_replay import RECORDERS_MAX, check_mark

COMMITTED: Final = "committed"
RECORDED: Final = "recorded"


def synced(durability: str | None, recorders: int | None, otherwise: int) -> int:
    """How many recorders have to sync a message; 0: none."""
    if durability is None and recorders is None:
        return otherwise
    whole("recorders", 1 if recorders is None else recorders, 1, RECORDERS_MAX)
    if durability == COMMITTED or (durability is None and not otherwise):
        if durability is None:
            raise ConfigError("recorders", recorders, 'only with durability="recorded"')
        return 0
    if durability not in (None, RECORDED):
        raise ConfigError("durability", durability, f"{COMMITTED} or {RECORDED}")
    return otherwise or 1 if recorders is None else recorders


def marked(bundle: Bundle, conference: int, kind: int) -> Bundle:
    """`bundle` as one of a conference and kind."""
    if not (conference or kind):
        return bundle
    check_mark(conference, kind)
    return bundle.marked(conference, kind)


class Message(Struct, frozen=True, gc=False):
    """One message of a group."""

    seq: int | None
    """Its position in the group's order; None where the service has no total order."""
    sender: str
    """Name of the node that sent it."""
    data: bytes
    time: int
    """When it was delivered here (ns since 1970); of a replay, at the recorder."""
    conference: int = 0
    kind: int = 0
    """What its sender gave it (`broadcast`)."""


def messages_of(batch: Batch) -> Iterator[Message]:
    """The messages of a batch, one by one."""
    seq: int | None = batch.seq if batch.seq >= 0 else None
    sender, when = batch.sender, batch.time
    for conference, kind, part in batch.bundle.by_mark():
        for data in part:
            yield Message(seq, sender, data, when, conference, kind)
            if seq is not None:
                seq += 1
