"""How the members of a group beside a ring end an epoch together (TR-16).

After HOLD each member stops its engine and says in the ring's order what it holds: its
tail.  CHANGE names those whose tails count; all of them are in the order before it.  So everybody
who gets to CHANGE hands over the same rest, whoever fails meanwhile; who has said no tail is not
in the next roster.  A tail has what those lack whom HOLD names as living; so nobody else's counts
beside it.  A tail can be larger than a message, so it travels in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.cluster.flush import Tail, tail_refusal
from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import MalformedPdu
from roundelay.core.families import TOTAL
from roundelay.node.membership.histories import new_history
from roundelay.node.membership.roster_messages import UNKNOWN, Drained, RosterMessage, TailPiece
from roundelay.node.membership.state import GroupState
from roundelay.wire import codec

DRAIN_NS: Final = SECOND
"""How long those who are to stop finish what is under way."""
ANSWER_NS: Final = 3 * SECOND
"""Who lives and says nothing for this long is left out."""
RETURN_NS: Final = 10 * SECOND
"""How long those who have forgotten where they were wait for a member that may know."""
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


def pieces(name: str, epoch: int, tail: Tail) -> list[TailPiece]:
    """What `name` says of its tail at the end of epoch `epoch`."""
    pdus = tuple(codec.encode(pdu, sender=pdu.src, group_id=0) for pdu in tail.pdus)
    data = _encode(_Packed(tail.epoch, tail.treq, pdus))
    cuts = range(0, len(data), PIECE_BYTES)
    parts = [data[at : at + PIECE_BYTES] for at in cuts]
    return [TailPiece(name, epoch, place, len(parts), part) for place, part in enumerate(parts)]


class Tails(Struct):
    """What the members of one epoch have said of their tails, as far as the order has it."""

    roster: tuple[str, ...]
    by_name: dict[str, Tail] = {}
    _parts: dict[str, list[bytes]] = {}

    def hear(self, piece: TailPiece, cluster: Any) -> str:
        """The next piece of a tail; why it cannot be right, or "".  `cluster`: our engine."""
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
            pdus: Any = tuple(codec.decode(pdu).pdu for pdu in packed.pdus)
        except (msgspec.MsgspecError, MalformedPdu):
            return "tail that cannot be read"
        tail = Tail(packed.epoch, packed.treq, pdus)
        if cluster is not None and (reason := tail_refusal(cluster, tail)):
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


class EndOfEpoch(Struct, frozen=True):
    """Everybody who lives has answered, and it is for us to propose the end."""

    base: int
    tails: tuple[str, ...]
    history: str


class EpochEnding:
    """How one epoch ends, from HOLD on, as this member sees it."""

    def __init__(self, state: GroupState, say: Callable[[RosterMessage], None]) -> None:
        self.state = state
        self.say = say
        """Broadcast in the ring's order."""
        self.held_at = 0
        """When HOLD was heard; 0: the epoch goes on."""
        self.living: tuple[str, ...] = ()
        """Who is waited for before the epoch ends."""
        self.drained: dict[str, Drained] = {}
        self.tails = Tails(state.roster)
        self._drained_turn = 0  # the turn of our last DRAINED
        self._propose_due = 0  # when the end may be proposed, once more

    def hold(self, living: tuple[str, ...], now: int) -> None:
        """Nothing new is sent in this epoch."""
        self.held_at = now
        self.living = living or self.state.roster
        if self.state.data is not None:
            self.state.data.held = True

    def answered(self) -> set[str]:
        """Who has said all it had to say in this epoch."""
        drained = {name for name, word in self.drained.items() if word.turn >= 2}
        return drained | self.tails.by_name.keys()

    def advance(self, now: int, unwanted: Set[str]) -> EndOfEpoch | None:
        """Before a change: finish what is under way, as long as everybody lives, and say when it
        is, or what is left.  Return the end if it is for us to propose it: we are the first of
        those who have said so.  `unwanted`: those who are to be left out of the next roster.
        """
        state, me = self.state, self.state.node.name
        if not self.held_at or state.ring is None:
            return None
        data, cluster = state.data, state.cluster
        there = state.able()
        waited = [name for name in there if name in self.living]
        unexpected = me not in self.living and bool(waited)
        waited = waited or there  # if those who were to answer are gone, the others do
        since = now - self.held_at
        if cluster is not None:
            late = since > DRAIN_NS or len(waited) < len(state.roster) or cluster.stopped
        else:
            late = since > 3 * DRAIN_NS
        idle = data is None or not (state.outbox.underway or data.engine.busy())
        turns = [self.drained[name].turn if name in self.drained else 0 for name in waited]
        answered = self.answered()
        turn = 2 if late or answered or min(turns, default=1) >= 1 else 1
        says_tail = cluster is not None and turn == 2
        if unexpected and says_tail:
            pass  # the others do not say what we lack: they end the epoch, and admit us again
        elif self._drained_turn < turn and (idle or late or says_tail):
            self._drained_turn = turn
            if says_tail:
                for piece in pieces(me, state.epoch, cluster.tail(self._hearers())):
                    self.say(piece)
            else:
                position = max(data.position, 0) if data is not None else UNKNOWN
                recorded = state.node.recorders.floor(state.name, state.history_id)
                self.say(Drained(me, position, turn, recorded))
        overdue = since > ANSWER_NS and me in answered
        proposal = None
        if (answered.issuperset(waited) or overdue) and state.works() and self._propose_due <= now:
            proposal = self._propose(answered, unwanted, now)
        state.wake_at(now + 20 * MS)
        return proposal

    def _hearers(self) -> list[int]:
        """Those with whom we may hand over the rest: our tail has what they lack.

        Who was thought dead answers HOLD only if those who were not are gone; nobody knows then
        who else does, so its tail is for all.
        """
        roster = self.state.roster
        names = self.living if self.state.node.name in self.living else roster
        return [roster.index(name) for name in names if name in roster]

    def _counting(self) -> tuple[str, ...]:
        """Whose tails count: each of them says what the others lack (see `_hearers`)."""
        expected = [name for name in self.tails.by_name if name in self.living]
        others = [name for name in self.tails.by_name if name not in self.living]
        present = any(map(self.state.present, expected))
        return tuple(expected if present else others or expected)

    def _propose(self, answered: set[str], unwanted: Set[str], now: int) -> EndOfEpoch | None:
        """Everybody who lives has answered: where the epoch ends, if it is for us to say so."""
        state = self.state
        tails = self._counting()
        able = (
            name for name in state.roster if name in (tails or answered) and state.present(name)
        )
        if next(able, "") != state.node.name:
            return None
        base = max((word.position for word in self.drained.values()), default=UNKNOWN)
        if tails and state.cluster is not None:
            base = state.base + state.cluster.position_after(self.tails.of(tails))
        history = ""
        ordered = not state.is_token and state.spec.family.order == TOTAL
        if base == UNKNOWN and len(state.roster) >= state.needed and ordered:
            if set(state.roster) - answered - unwanted and now - self.held_at < RETURN_NS:
                return None  # one that is not back yet may remember the epoch, or have recorded it
            # Who delivered something in this epoch has forgotten it: its places are not used again.
            # What is in a journal is the past: the next epoch begins behind it.
            recorded = (word.recorded for word in self.drained.values())
            base = max([state.base, *recorded])
            history = new_history(state.history_id, base)
        self._propose_due = now + SECOND  # not again at once
        return EndOfEpoch(max(base, state.base), tails, history)
