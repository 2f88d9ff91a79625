"""Messages as an application has them: what they carry, and how durable they are to be."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.core.limits import whole
from roundelay.node.frontend.packets import check_mark
from roundelay.node.node_api import (
    END,
    MEMBERS,
    MIDDLE,
    RECORDERS_MAX,
    START,
    UNIT,
    WHOLE,
    Batch,
)

COMMITTED: Final = "committed"
RECORDED: Final = "recorded"
SYNCED: Final = "synced"


def synced(durability: str | None, recorders: int | None, otherwise: int) -> int:
    """How many recorders have to sync a message; 0: none; MEMBERS: L + 1 members instead."""
    if durability is None and recorders is None:
        return otherwise
    if durability == SYNCED:
        return MEMBERS
    whole("recorders", 1 if recorders is None else recorders, 1, RECORDERS_MAX)
    if durability == COMMITTED or (durability is None and not otherwise):
        if durability is None:
            raise ConfigError("recorders", recorders, 'only with durability="recorded"')
        return 0
    if durability not in (None, RECORDED):
        raise ConfigError("durability", durability, f"{COMMITTED}, {SYNCED} or {RECORDED}")
    return otherwise or 1 if recorders is None else recorders


def bundle_of(messages: Any, field: str = "data", conference: int = 0, kind: int = 0) -> Bundle:
    """`messages` as one bundle, of that conference and kind; ConfigError says what is wrong.

    >>> bundle_of(["text"])
    Traceback (most recent call last):
    ...
    roundelay.core.errors.ConfigError: data = 'text' is not allowed: bytes; encode text first
    """
    if isinstance(messages, str | bytes | bytearray | memoryview):
        raise ConfigError(field, repr(messages)[:40], "a list of messages, each of them bytes")
    try:
        bundle = Bundle(tuple(map(len, messages)), b"".join(messages))
    except TypeError:
        kinds = bytes | bytearray | memoryview
        wrong = next((message for message in messages if not isinstance(message, kinds)), messages)
        raise ConfigError(field, repr(wrong)[:40], "bytes; encode text first") from None
    if sum(bundle.sizes) != len(bundle.data):
        raise ConfigError(field, "an array of larger items", "bytes, as of its tobytes()")
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
    unit: str = WHOLE
    """`start`, `middle` or `end` of a unit (`broadcast_unit`); `whole`: it is no part of one."""


class Receipt(Struct, frozen=True, gc=False):
    """A broadcast whose fate is known: it has its place in the order for good."""

    group: str
    """Its full name."""
    seq: int | None
    """Position of its (last) message; None where the service has no total order."""
    time: int
    """When that was known to the node (ns since 1970)."""
    history: str = ""
    """The history of the group that `seq` belongs to; `Position(history, seq)` is the place."""
    given_up: tuple[str, ...] = ()
    """Service fifo: members that were lost, or left the group, before they had it.  Everybody else
    whom the sender knew has it."""
    resilience: int | None = None
    """L when it was committed: so many members may fail at once without its being lost; None where
    the service has no L."""


def places_in_unit(count: int) -> list[str]:
    """What the `count` parts of a unit are called.

    >>> places_in_unit(3)
    ['start', 'middle', 'end']
    """
    return [START, *[MIDDLE] * (count - 2), END]


def messages_of(batch: Batch) -> list[Message]:
    """The messages of a batch."""
    bundle, sender, when = batch.bundle, batch.sender, batch.time
    seq = None if batch.seq < 0 else batch.seq
    if batch.unit != WHOLE:
        conference, kind, parts = bundle.runs()[0]
        places = places_in_unit(parts) if batch.unit == UNIT else [batch.unit] * parts
        return [
            Message(seq, sender, data, when, conference, kind, place)
            for data, place in zip(bundle, places, strict=True)
        ]
    seqs: Iterator[int | None] = repeat(None) if seq is None else count(seq)
    if bundle.marks:
        return [
            Message(next(seqs), sender, data, when, conference, kind)
            for conference, kind, part in bundle.by_mark()
            for data in part
        ]
    if len(bundle.sizes) == 1:  # the fast ways
        return [Message(seq, sender, bundle.data, when)]
    return list(map(Message, seqs, repeat(sender), bundle.messages(), repeat(when)))
