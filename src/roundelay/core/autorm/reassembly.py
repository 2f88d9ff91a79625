"""Receiving: packets become messages again, each once and in order (AR-13 to AR-15).

What has been delivered of a sender is remembered by one number, the last sequence, and that is
remembered longer than the sender itself: a node that was asleep may come back from the dead and
repeat a message whose acknowledgement it never saw.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from roundelay.core.autorm import packets as p
from roundelay.core.autorm.config import FRAGMENT_LEAST, GROUP, AutoRmConfig
from roundelay.core.engine import NEVER
from roundelay.core.errors import InvariantBroken

OWED_MAX: Final = 4096
"""Acknowledgements waiting to be sent."""

SCOPES_MAX: Final = 1024
"""Groups remembered per sender, where each has its own order."""

# Why a packet is refused.
TOO_LARGE: Final = "message too large"
CONTRADICTION: Final = "packets of one message contradict each other"
NO_ROOM: Final = "no room for incomplete messages"


@dataclass(slots=True, eq=False)
class Gaps:
    """The numbers below `highest` that are missing, as half-open ranges.

    >>> gaps = Gaps()
    >>> for number in (2, 9, 4, 8):
    ...     gaps.arrived(number)
    >>> gaps.highest, gaps.missing(9), gaps.missing(3)
    (9, (0, 1, 3, 5, 6, 7), (0, 1, 3))
    """

    highest: int = -1
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def arrived(self, number: int) -> None:
        """`number` is here for the first time."""
        highest = self.highest
        starts, ends = self.starts, self.ends
        if number > highest:
            if number > highest + 1:
                starts.append(highest + 1)
                ends.append(number)
            self.highest = number
            return
        i = bisect_right(starts, number) - 1
        start, end = starts[i], ends[i]
        if start == number:
            if end == number + 1:
                del starts[i], ends[i]
            else:
                starts[i] = number + 1
        else:
            ends[i] = number
            if number + 1 < end:
                starts.insert(i + 1, number + 1)
                ends.insert(i + 1, end)

    def missing(self, most: int) -> tuple[int, ...]:
        """The first `most` of the missing numbers."""
        return tuple(islice(chain.from_iterable(map(range, self.starts, self.ends)), most))


@dataclass(slots=True, eq=False)
class MessageReassembly:
    """A message that is not complete yet."""

    seq: int
    count: int
    group: str
    parts: dict[int, bytes] = field(default_factory=dict)
    gaps: Gaps = field(default_factory=Gaps)
    size: int = 0
    cost: int = 0  # what it counts against the bounds
    touched: int = 0


@dataclass(slots=True, eq=False)
class OwedAck:
    """An acknowledgement that will be sent at `due`, saying what is true by then."""

    due: int
    scope: str
    count: int
    unwanted: bool  # for a group not joined here: nothing is missing


@dataclass(slots=True, eq=False)
class Inbound:
    """All that a node is receiving."""

    config: AutoRmConfig
    per_group: bool = field(init=False)
    packets_max: int = field(init=False)
    list_max: int = field(init=False)
    done: dict[bytes, dict[str, int]] = field(default_factory=dict)
    """The last sequence delivered, by sender and scope."""
    assembling: dict[tuple[bytes, str], MessageReassembly] = field(default_factory=dict)
    per_peer: dict[bytes, int] = field(default_factory=dict)  # cost of what is being assembled
    total: int = 0
    owed: dict[tuple[bytes, int], OwedAck] = field(default_factory=dict)
    ack_due: int = NEVER

    def __post_init__(self) -> None:
        config = self.config
        self.per_group = config.serial_scope == GROUP
        self.packets_max = config.max_message // FRAGMENT_LEAST + 1
        self.list_max = min(p.MISSING_MAX, (config.mtu - p.IP_UDP_HEAD - p.ACK_HEAD) // p.ACK_ENTRY)

    def scope(self, group: str) -> str:
        """What has one order: everything of a sender, or each group (AR-7)."""
        return group if self.per_group else ""

    # -- packets ---------------------------------------------------------------------------

    def accept(self, packet: p.Data, now: int) -> bytes | str | None:
        """AR-14: the message that `packet` completes, or why it is refused, or None."""
        source, seq = packet.source, packet.seq
        scope = packet.group if self.per_group else ""
        done = self.done.get(source)
        last = None if done is None else done.get(scope)
        if last is not None and not p.later(seq, last):
            return None
        key = (source, scope)
        message = self.assembling.get(key)
        if message is not None and message.seq != seq:
            if p.later(message.seq, seq):
                return None  # late: its sender has given it up
            self.discard(key)
            message = None
        if packet.count == 1:
            if message is not None:
                return CONTRADICTION
            if len(packet.payload) > self.config.max_message:
                return TOO_LARGE
            self._deliver(source, scope, seq)
            return packet.payload
        if message is None:
            if packet.count > self.packets_max:
                return TOO_LARGE
            message = MessageReassembly(seq, packet.count, packet.group)
        elif message.count != packet.count or message.group != packet.group:
            return CONTRADICTION
        number = packet.number
        if number in message.parts:
            message.touched = now
            return None
        refusal = self._take(key, message, packet)
        if refusal:
            return refusal
        message.touched = now
        if len(message.parts) < message.count:
            return None
        parts = message.parts
        self.discard(key)
        self._deliver(source, scope, seq)
        return b"".join([parts[k] for k in range(packet.count)])

    def _take(self, key: tuple[bytes, str], message: MessageReassembly, packet: p.Data) -> str:
        """Keep a part of a message, within the bounds; an empty part is not free."""
        config = self.config
        size = len(packet.payload)
        if message.size + size > config.max_message:
            return TOO_LARGE
        cost = size if size > FRAGMENT_LEAST else FRAGMENT_LEAST
        mine = self.per_peer.get(packet.source, 0) + cost
        if mine > config.reassembly_peer or self.total + cost > config.reassembly_total:
            return NO_ROOM
        self.per_peer[packet.source] = mine
        self.total += cost
        self.assembling[key] = message
        message.size += size
        message.cost += cost
        message.parts[packet.number] = packet.payload
        message.gaps.arrived(packet.number)
        return ""

    def _deliver(self, source: bytes, scope: str, seq: int) -> None:
        """AR-14: nothing up to `seq` is delivered from now on."""
        done = self.done.pop(source, None)  # put at the end: the last to be forgotten
        if done is None:
            done = {}
            if len(self.done) >= self.config.sources_max:
                del self.done[next(iter(self.done))]
        self.done[source] = done
        done.pop(scope, None)
        if len(done) >= SCOPES_MAX:
            del done[next(iter(done))]
        done[scope] = seq

    def discard(self, key: tuple[bytes, str]) -> None:
        """Forget an incomplete message."""
        message = self.assembling.pop(key)
        self.total -= message.cost
        cost = self.per_peer[key[0]] - message.cost
        if cost:
            self.per_peer[key[0]] = cost
        else:
            del self.per_peer[key[0]]

    def leave(self, group: str) -> None:
        """Nothing more of `group` is wanted here."""
        for key in [key for key, message in self.assembling.items() if message.group == group]:
            self.discard(key)

    # -- acknowledgements ------------------------------------------------------------------

    def owe(self, packet: p.Data, due: int, unwanted: bool) -> bool:
        """AR-15: answer `packet` at `due`; False if there are too many to answer already."""
        key = (packet.source, packet.seq)
        owed = self.owed.get(key)
        if owed is None:
            if len(self.owed) >= OWED_MAX:
                return False
            self.owed[key] = OwedAck(due, self.scope(packet.group), packet.count, unwanted)
        else:
            owed.unwanted = unwanted
            due = owed.due
        if due < self.ack_due:
            self.ack_due = due
        return True

    def answers(self, me: bytes, now: int) -> list[p.Acknowledgement]:
        """AR-15: the acknowledgements that are due."""
        ready: list[p.Acknowledgement] = []
        rest = NEVER
        for (source, seq), owed in list(self.owed.items()):
            if owed.due > now:
                rest = min(rest, owed.due)
                continue
            del self.owed[source, seq]
            answer = self._answer(me, source, seq, owed)
            if answer is not None:
                ready.append(answer)
        self.ack_due = rest
        return ready

    def _answer(
        self, me: bytes, source: bytes, seq: int, owed: OwedAck
    ) -> p.Acknowledgement | None:
        """What is here of a message; None if nothing is, and its sender has to find out."""
        message = self.assembling.get((source, owed.scope))
        if not owed.unwanted and message is not None and message.seq == seq:
            highest = message.gaps.highest
            missing = message.gaps.missing(self.list_max + 1)
            if len(missing) > self.list_max:  # cut: the rest will be asked for later
                missing = missing[: self.list_max]
                highest = missing[-1]
            return p.Acknowledgement(me, source, seq, highest, missing)
        last = self.done.get(source, {}).get(owed.scope)
        if owed.unwanted or (last is not None and not p.later(seq, last)):
            return p.Acknowledgement(me, source, seq, owed.count - 1, ())
        return None

    def check_invariants(self) -> None:
        """What is incomplete is counted, within its bounds, and not delivered yet."""
        costs: dict[bytes, int] = {}
        for (source, scope), message in self.assembling.items():
            costs[source] = costs.get(source, 0) + message.cost
            missing = sum(message.gaps.ends) - sum(message.gaps.starts)
            if not 0 < len(message.parts) == message.gaps.highest + 1 - missing < message.count:
                raise InvariantBroken(f"{len(message.parts)} of {message.count} parts are here")
            last = self.done.get(source, {}).get(scope)
            if last is not None and not p.later(message.seq, last):
                raise InvariantBroken(f"message {message.seq} is incomplete, {last} delivered")
        config = self.config
        if costs != self.per_peer or self.total != sum(costs.values()):
            raise InvariantBroken(f"{self.total} bytes are incomplete, of {costs} by sender")
        if self.total > config.reassembly_total or max(costs.values(), default=0) > (
            config.reassembly_peer
        ):
            raise InvariantBroken(f"{self.total} bytes are incomplete, which is too much")
        if any(owed.due < self.ack_due for owed in self.owed.values()):
            raise InvariantBroken(f"an acknowledgement is due before {self.ack_due}")
