"""What the members of a group say to each other about its roster, in its own order."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Change(Struct, frozen=True, array_like=True, tag="change"):
    """The next roster: the last message of an epoch."""

    epoch: int
    roster: tuple[str, ...]
    lives: tuple[bytes, ...]
    resilience: int
    base: int
    """Where the data goes on, for groups beside a ring; else the position of CHANGE itself."""


class Hold(Struct, frozen=True, array_like=True, tag="hold"):
    """Stop sending data: the roster is about to change."""

    epoch: int


class Drained(Struct, frozen=True, array_like=True, tag="drained"):
    """Everything this member had to do in the epoch is done; it has delivered up to `position`.

    In turn 1 it means that everybody has what this member sent.  When all have said so, everybody
    has everything, and turn 2 means that it is delivered.
    """

    name: str
    position: int
    turn: int


Word = Change | Hold | Drained
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Word).decode
