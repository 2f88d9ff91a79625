"""What the members of a group say to each other about its roster, in its own order."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from roundelay.core.errors import MalformedPdu
from roundelay.wire.control import (
    EPOCH_MAX,
    MEMBERS_MAX,
    POSITION_MAX,
    are_names,
    is_history,
    is_roster,
)

MARK: Final = b"\0roundelay\0"
"""How what the nodes themselves say in a group begins."""


class Change(Struct, frozen=True, array_like=True, tag="change"):
    """The next roster: the last message of an epoch."""

    epoch: int
    roster: tuple[str, ...]
    lives: tuple[bytes, ...]
    resilience: int
    base: int
    """Where the data goes on, for groups beside a ring; else the position of CHANGE itself."""
    tails: tuple[str, ...] = ()
    """Whose tails count, for clusters: all who were in the epoch and go on (`ending`)."""
    history: str = ""
    """Of what follows, where nobody is left who knows how far the epoch got: `ID@PARENT:BASE`."""


UNKNOWN = -1


class Hold(Struct, frozen=True, array_like=True, tag="hold"):
    """Stop sending data: the roster is about to change.  `living`: who is waited for."""

    epoch: int
    living: tuple[str, ...] = ()


class Drained(Struct, frozen=True, array_like=True, tag="drained"):
    """Everything this member had to do in the epoch is done; it has delivered up to `position`.

    In turn 1 it means that everybody has what this member sent.  When all have said so, everybody
    has everything, and turn 2 means that it is delivered.  Members of a cluster say their tails in
    place of turn 2, unless they have none.  `position` is UNKNOWN if it was not in the epoch with
    what it knows now; `recorded` is how far its journal goes in this history.
    """

    name: str
    position: int
    turn: int
    recorded: int = 0


class TailPiece(Struct, frozen=True, array_like=True, tag="tail"):
    """A piece of a member's tail: number `place` of `count`."""

    name: str
    epoch: int
    place: int
    count: int
    data: bytes


RosterMessage = Change | Hold | Drained | TailPiece
encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RosterMessage).decode


def decode(data: bytes, speaker: str) -> RosterMessage:
    """What member `speaker` said; MalformedPdu if no correct one does."""
    try:
        word: RosterMessage = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedPdu("word of the ring", str(error)) from None
    if isinstance(word, Change):
        sound = (
            is_roster(word.roster, word.lives)
            and 0 <= word.resilience < MEMBERS_MAX
            and UNKNOWN <= word.base <= POSITION_MAX
            and are_names(word.tails)
            and is_history(word.history)
        )
    elif isinstance(word, Hold):
        sound = are_names(word.living)
    elif isinstance(word, Drained):
        within = UNKNOWN <= word.position <= POSITION_MAX and 0 <= word.recorded <= POSITION_MAX
        sound = word.name == speaker and 1 <= word.turn <= 2 and within
    else:
        sound = word.name == speaker
    if not sound or (not isinstance(word, Drained) and not 0 <= word.epoch <= EPOCH_MAX):
        raise MalformedPdu("word of the ring", "a field that no member has")
    return word
