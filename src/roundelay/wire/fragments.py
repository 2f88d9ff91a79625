"""Datagrams cut into pieces that the network takes, and put together again.

A PDU larger than a datagram is fragmented by us, never by IP: each fragment is a datagram::

    off  size  field
      0     1  0x11: a fragment (0x10 is an engine PDU, 1 to 3 are packets of AutoRM)
      1     4  ident: names the message among those of its sender
      5     2  index of the fragment, from 0
      7     2  count of fragments, 2 or more
      9     …  bytes: as many in every fragment, the last may have fewer

A fragment has no checksum of its own; the whole has one at its end.  A lost fragment loses its
message: protocols repair that like any loss, and what they send again has a new ident.

`FragmentReassembly` holds what has come of each message until the rest comes, and trusts nobody:
what it holds is counted with the cost of holding it, and bounded by message, by peer and in all.
When a bound is reached the oldest goes, so that messages which lost a fragment never keep new
ones out.  Whatever is refused or given up is counted by reason in `drops`.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from msgspec import Struct, field

from roundelay.core.engine import SECOND
from roundelay.core.errors import InvariantBroken, PayloadTooLarge
from roundelay.core.limits import whole

FRAGMENT: Final = 0x11
HEAD: Final = struct.Struct(">BIHH")
HEAD_SIZE: Final = HEAD.size
COUNT_MAX: Final = (1 << 16) - 1
IDENTS: Final = 1 << 32

MIB: Final = 1 << 20
DONE_KEPT: Final = 64
"""Messages of a peer that are remembered as done: a late duplicate must not begin them anew."""

COPIED_MAX: Final = 4096
"""Bytes of a fragment up to which a copy costs less than a view."""

PIECE_COST: Final = 128
MESSAGE_COST: Final = 1024
PEER_COST: Final = 8192
"""What holding a piece, a message, a peer costs beyond its bytes, about: small ones count too."""

# Reasons a fragment is refused, or a message given up, for.
MALFORMED: Final = "fragment: malformed"
TOO_LARGE: Final = "fragment: message too large"
CONTRADICTION: Final = "fragment: contradicts earlier ones"
NESTED: Final = "fragment: inside a fragment"
DUPLICATE: Final = "fragment: duplicate"
LATE: Final = "fragment: message not completed in time"
CROWDED: Final = "fragment: message given up for lack of room"


def split(datagram: bytes, mtu: int, ident: int) -> list[bytes]:
    """`datagram` as datagrams of at most `mtu` bytes; as it is, if it fits.

    >>> [len(piece) for piece in split(bytes(2500), 1200, ident=7)]
    [1200, 1200, 127]
    """
    return [b"".join(parts) for parts in split_parts([datagram], mtu, ident)]


def split_parts(parts: Iterable[bytes], mtu: int, ident: int) -> list[list[bytes | memoryview]]:
    """What `split` makes of the join of `parts`, each datagram in parts again: nothing is copied.

    >>> [list(map(bytes, it[1:])) for it in split_parts([b"0123456789", b"abcdefg"], 16, ident=7)]
    [[b'0123456'], [b'789', b'abcd'], [b'efg']]
    """
    views = [memoryview(part) for part in parts if part]
    size = sum(map(len, views))
    if size <= mtu:
        return [list(views)]
    whole("mtu", mtu, HEAD.size + 1)
    room = mtu - HEAD.size
    count = -(-size // room)
    if count > COUNT_MAX:
        raise PayloadTooLarge(
            f"{size} bytes are more than {COUNT_MAX} fragments of mtu = {mtu}: send less at once"
        )
    ident %= IDENTS
    datagrams: list[list[bytes | memoryview]] = []
    at, views = 0, views[::-1]
    for index in range(count):
        datagram: list[bytes | memoryview] = [HEAD.pack(FRAGMENT, ident, index, count)]
        rest = room
        while rest and views:
            taken = views[-1][at : at + rest]
            datagram.append(taken)
            rest -= len(taken)
            at += len(taken)
            if at == len(views[-1]):
                views.pop()
                at = 0
        datagrams.append(datagram)
    return datagrams


class _Partial(Struct):
    """What has come of one message."""

    count: int
    room: int = 0  # bytes of every fragment but the last; 0: not known yet
    last: int = 0  # bytes of the last one; 0: not known yet
    pieces: dict[int, bytes | memoryview] = {}
    cost: int = MESSAGE_COST

    def fits(self, index: int, size: int) -> bool:
        """Whether a fragment of `size` bytes can belong to the same message as the others."""
        if index == self.count - 1:
            return not self.room or size <= self.room
        return size == self.room if self.room else size >= self.last


class _Peer(Struct):
    """One source of fragments."""

    partials: OrderedDict[int, _Partial] = field(default_factory=OrderedDict)
    """By ident, oldest first."""
    done: deque[int] = field(default_factory=lambda: deque(maxlen=DONE_KEPT))
    cost: int = 0


@dataclass(eq=False, kw_only=True)
class FragmentReassembly:
    """Puts fragments together again.

    >>> pieces = split(b"\\x10" + bytes(2000), 1200, ident=7)
    >>> reassembly = FragmentReassembly()
    >>> reassembly.collect("peer", pieces[1], now=0)
    >>> [len(piece) for piece in reassembly.collect("peer", pieces[0], now=1)]
    [1191, 810]
    """

    message_max: int = MIB
    peer_max: int = 16 * MIB
    total_max: int = 64 * MIB
    patience_ns: int = 5 * SECOND

    def __post_init__(self) -> None:
        whole("message_max", self.message_max, 1)
        # A message has to fit, whatever it costs: in one piece more than it may have ...
        fixed = 2 * self.message_max + PEER_COST + MESSAGE_COST
        whole("peer_max", self.peer_max, fixed + 2 * PIECE_COST)
        whole("total_max", self.total_max, self.peer_max + PEER_COST + MESSAGE_COST + PIECE_COST)
        whole("patience_ns", self.patience_ns, 1)
        # ... and in as many pieces as leave room for it.
        self._count_max = (self.peer_max - fixed) // PIECE_COST
        # The peer heard longest ago first.
        self._peers: OrderedDict[Hashable, _Peer] = OrderedDict()
        # (source, ident) → when to give it up, oldest first.
        self._order: OrderedDict[tuple[Hashable, int], int] = OrderedDict()
        self._due = 0  # nothing is to be given up before that
        self.cost = 0
        """Bytes held, with what holding them costs."""
        self.drops: dict[str, int] = {}

    def collect(
        self, source: Hashable, data: bytes | memoryview, now: int
    ) -> list[bytes | memoryview] | None:
        """A fragment has come: the datagram, in pieces, if it was the last one missing.

        `data` is kept until then, as a view if it is large.
        """
        if self._order and now >= self._due:
            self.expire(now)
        size = len(data) - HEAD_SIZE
        if size <= 0:
            return self._drop(MALFORMED)
        kind, ident, index, count = HEAD.unpack_from(data)
        if kind != FRAGMENT or count < 2 or index >= count:
            return self._drop(MALFORMED)
        # A large one is copied once, into the whole.
        large = size > COPIED_MAX
        piece = memoryview(data)[HEAD_SIZE:] if large else bytes(data[HEAD_SIZE:])
        is_last = index == count - 1
        held = cost = size + PIECE_COST
        peer = self._peers.get(source)
        partial = None
        if peer is not None:
            partial = peer.partials.get(ident)
            # Nearly all are of a message that has begun, and neither the first nor the last of it.
            if (
                partial is not None
                and size == partial.room
                and count == partial.count
                and not is_last
                and index not in partial.pieces
                and len(partial.pieces) < count - 1
                and peer.cost + held <= self.peer_max
                and self.cost + held <= self.total_max
            ):
                self._peers.move_to_end(source)
                partial.pieces[index] = piece
                partial.cost += held
                peer.cost += held
                self.cost += held
                return None
        # All but the last fragment are of one size, so one of them tells how much there will be;
        # the last tells that there is at least a byte in each before it.
        least = size + count - 1 if is_last else size * (count - 1) + 1
        if least > self.message_max or count > self._count_max:
            return self._drop(TOO_LARGE)
        if peer is None:
            cost += PEER_COST + MESSAGE_COST
        else:
            self._peers.move_to_end(source)
            if partial is None:
                if ident in peer.done:
                    return self._drop(DUPLICATE)
                cost += MESSAGE_COST
            elif partial.count != count or not partial.fits(index, size):
                return self._drop(CONTRADICTION)
            elif index in partial.pieces:
                same = partial.pieces[index] == piece
                return self._drop(DUPLICATE if same else CONTRADICTION)
            if peer.cost + cost > self.peer_max:
                self._make_room_at(source, peer, ident, cost)
        if self.cost + cost > self.total_max:
            self._make_room(source, cost)
        if peer is None:
            peer = self._peers[source] = _Peer()
            peer.cost = self._pay(PEER_COST)
        if partial is None:
            partial = peer.partials[ident] = _Partial(count)
            self._order[(source, ident)] = now + self.patience_ns
            peer.cost += self._pay(MESSAGE_COST)
        partial.pieces[index] = piece
        partial.cost += held
        peer.cost += held
        self.cost += held
        if is_last:
            partial.last = size
        else:
            partial.room = size
        if len(partial.pieces) < count:
            return None
        self._forget(source, peer, ident)
        peer.done.append(ident)
        pieces = [partial.pieces[at] for at in range(count)]
        if sum(map(len, pieces)) > self.message_max:
            return self._drop(TOO_LARGE)
        if pieces[0][0] == FRAGMENT:
            return self._drop(NESTED)
        return pieces

    def expire(self, now: int) -> None:
        """Give up what has waited too long; `collect` does so, too."""
        while self._order:
            (source, ident), due = next(iter(self._order.items()))
            self._due = due
            if due > now:
                return
            self._drop(LATE)
            self._forget(source, self._peers[source], ident)

    def _make_room_at(self, source: Hashable, peer: _Peer, ident: int, cost: int) -> None:
        """Give up the oldest messages of this peer, but not the one that goes on now.

        There is one to give up as long as the bound is exceeded: no message alone exceeds it.
        """
        while peer.cost + cost > self.peer_max:
            self._drop(CROWDED)
            oldest = next(held for held in peer.partials if held != ident)
            self._forget(source, peer, oldest)

    def _make_room(self, source: Hashable, cost: int) -> None:
        """Forget the peers heard longest ago, with all they sent."""
        while self.cost + cost > self.total_max:
            victim, gone = next(iter(self._peers.items()))
            if victim == source:
                raise InvariantBroken("one peer alone has more fragments than all may have")
            for held in list(gone.partials):
                self._drop(CROWDED)
                self._forget(victim, gone, held)
            del self._peers[victim]
            self._pay(-PEER_COST)

    def _pay(self, cost: int) -> int:
        self.cost += cost
        return cost

    def _forget(self, source: Hashable, peer: _Peer, ident: int) -> None:
        partial = peer.partials.pop(ident)
        del self._order[(source, ident)]
        peer.cost += self._pay(-partial.cost)

    def _drop(self, reason: str) -> list[bytes | memoryview] | None:
        """Count it; nothing comes of it."""
        self.drops[reason] = self.drops.get(reason, 0) + 1
        return None
