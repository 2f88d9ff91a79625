"""How the members of a group beside a ring end an epoch together (TR-16).

After HOLD each member stops its engine and says in the ring's order what it holds: its
tail.  CHANGE names those whose tails count; all of them are in the order before it.  So everybody
who gets to CHANGE hands over the same rest, whoever fails meanwhile; who has said no tail is not
in the next roster.  A tail has what those lack whom HOLD names as living; so nobody else's counts
beside it.  A tail can be larger than a message, so it travels in pieces.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.cluster.exchange import Exchange
from roundelay.core.cluster.flush import Tail, tail_refusal, taken
from roundelay.core.errors import MalformedPdu
from roundelay.node.words import Piece
from roundelay.wire import codec

PIECE_BYTES: Final = 48_000
PIECES_MAX: Final = 2048
"""Of one tail: more than any window holds."""


class _Packed(Struct, frozen=True, array_like=True):
    """A tail as bytes; PDUs as they are on the wire."""

    epoch: int
    treq: tuple[int, ...]
    pdus: tuple[bytes, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


def pieces(name: str, epoch: int, tail: Tail) -> list[Piece]:
    """What `name` says of its tail at the end of epoch `epoch`."""
    pdus = tuple(codec.encode(pdu, sender=pdu.src, group_id=0) for pdu in tail.pdus)
    data = _encode(_Packed(tail.epoch, tail.treq, pdus))
    cuts = range(0, len(data), PIECE_BYTES)
    parts = [data[at : at + PIECE_BYTES] for at in cuts]
    return [Piece(name, epoch, place, len(parts), part) for place, part in enumerate(parts)]


class Tails:
    """What the members of one epoch have said of their tails, as far as the order has it."""

    def __init__(self, roster: tuple[str, ...]) -> None:
        self.roster = roster
        self.by_name: dict[str, Tail] = {}
        self.without: set[str] = set()
        """Those who have no engine in this epoch, and so nothing to say."""
        self._parts: dict[str, list[bytes]] = {}

    @property
    def answered(self) -> set[str]:
        return self.by_name.keys() | self.without

    def hear(self, piece: Piece, engine: Any) -> str:
        """The next piece of a tail; why it cannot be right, or ""."""
        name = piece.name
        if name not in self.roster or name in self.by_name:
            return "tail of nobody who may have one"
        parts = self._parts.setdefault(name, [])
        if not 0 <= piece.place < piece.count <= PIECES_MAX or piece.place != len(parts):
            return "piece of a tail out of place"
        parts.append(piece.data)
        if len(parts) < piece.count:
            return ""
        data = b"".join(self._parts.pop(name))
        try:
            packed = _decode(data)
            pdus: Any = tuple(codec.decode(one).pdu for one in packed.pdus)
        except (msgspec.MsgspecError, MalformedPdu):
            return "tail that cannot be read"
        tail = Tail(packed.epoch, packed.treq, pdus)
        if isinstance(engine, Exchange):
            reason = tail_refusal(engine, tail)
            if reason:
                return reason
        self.by_name[name] = tail
        return ""

    def of(self, names: tuple[str, ...]) -> dict[int, Tail]:
        """The tails of `names`, by member."""
        return {
            place: self.by_name[name]
            for place, name in enumerate(self.roster)
            if name in names and name in self.by_name
        }


def doubtful(engine: Exchange, tails: dict[int, Tail]) -> int:
    """How many of a member's own bundles under way others were given, though its tail is missing.

    They are the first ones; what comes after them was given to nobody.
    """
    count = 0
    for pdu in engine.waiting():
        if pdu.src == engine.index:
            dst = engine.destinations(pdu) & ~(1 << engine.index)
            if not taken(dst, pdu.src, pdu.seq, tails, engine.ranks):
                break
            count += 1
    return count
