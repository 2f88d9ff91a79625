"""The network of the explorer: the set of everything ever sent.

Each PDU in it may be delivered at any later time, any number of times, or never.  That covers
loss, duplicates, every reordering and every late replay without a step for any of them; and
having a PDU more in the network never takes a possibility away.

A set is one integer, a bit per (source, destination, PDU).

PDUs that are left out
----------------------
Under the explorer's rules (any timer may fire at any time, a failed attempt is never repeated,
the network forgets nothing) some PDUs bring about nothing that others do not.  They are real, and
engines send them; the explorer does not deliver them.

- RETX_REQ, RETX_ACK, RETX_MSG, RETX_BULK: the ACK or B that is sent again is itself still in the
  network, and delivering that does the same.  Likewise `top` of a CONFIRM only makes a site ask for
  more, so confirmations that differ in it count as one.
- ABORT: makes a slave back off, as its own timer does.  A site that is in an unauthorized list
  whose originator has given up may do anything that it may do after backing off, and more: the
  only difference, a VOTE2 `no` to that originator, falls on deaf ears.
- VOTE2 `no`: makes the originator fail, as its own timer does; `pending` resets a counter.
- VOTE1 `no`: makes the originator back off, as its own timer does while it has but its own vote
  (votes come when we let them), and tells it a version that the INVITE of that version, received
  before the timer, tells as well.
- TL_HINT, and PDUs of a newer list to a site outside of it: they tell a version and make a site of
  an older list originate.  The INVITE of that version, which went to everybody, does so too: join,
  time out, originate.  The vote sent on the way comes too late, for that list is formed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from roundelay.core.engine import EVERYONE, Pdu
from roundelay.core.token.pdu import (
    YES,
    Abort,
    Ack,
    B,
    Confirm,
    RetxAck,
    RetxBulk,
    RetxMsg,
    RetxReq,
    TlHint,
    Version,
    Vote1,
    Vote2,
)

NO_TOP: Final = -1


class Item(NamedTuple):
    """One PDU in the network."""

    source: int
    destination: int  # or EVERYONE
    pdu: Pdu


def left_out(pdu: Pdu) -> bool:
    """Whether `pdu` brings about nothing new; the reasons are above."""
    if isinstance(pdu, Vote1):
        return not pdu.yes
    if isinstance(pdu, Vote2):
        return pdu.status != YES
    return isinstance(pdu, RetxReq | RetxAck | RetxMsg | RetxBulk | Abort | TlHint)


def canonical(pdu: Pdu) -> Pdu:
    """`pdu` without what makes no difference."""
    return Confirm(pdu.tl, pdu.ts, pdu.by, NO_TOP) if isinstance(pdu, Confirm) else pdu


class Pool:
    """Numbers the PDUs that were sent in any state; `plain` leaves none out."""

    def __init__(self, group: tuple[int, ...], plain: bool = False) -> None:
        self.group = group
        self.plain = plain
        self.items: list[Item] = []
        self.addressed = dict.fromkeys(group, 0)  # set of what may be delivered to each site
        self.messages: dict[tuple[Version, int, int], int] = {}  # (tl, s, n) → bit of that B
        self._numbers: dict[Item, int] = {}
        self._stamps: dict[tuple[Version, int], int] = {}  # (tl, ts) → set of ACKs

    def bit(self, source: int, destination: int, pdu: Pdu) -> int:
        """The set of this one PDU, or the empty set if it is left out."""
        if not self.plain:
            if left_out(pdu):
                return 0
            pdu = canonical(pdu)
        item = Item(source, destination, pdu)
        number = self._numbers.get(item)
        if number is None:
            number = self._numbers[item] = len(self.items)
            self._add(item, 1 << number)
        return 1 << number

    def _add(self, item: Item, bit: int) -> None:
        self.items.append(item)
        for site in self.group:
            if site != item.source and item.destination in (site, EVERYONE):
                self.addressed[site] |= bit
        pdu = item.pdu
        if isinstance(pdu, B):
            self.messages[pdu.tl, pdu.s, pdu.n] = bit
        elif isinstance(pdu, Ack):
            stamp = (pdu.tl, pdu.ts)
            self._stamps[stamp] = self._stamps.get(stamp, 0) | bit

    def item(self, bit: int) -> Item:
        return self.items[bit.bit_length() - 1]

    def stamped_twice(self, sent: int) -> str:
        """Two ACKs in `sent` with the same (tl, ts), in words, or '' (CM-T3)."""
        for stamps in self._stamps.values():
            both = stamps & sent
            if both & (both - 1):
                one, other = (self.item(bit).pdu for bit in bits(both)[:2])
                return f"CM-T3: {describe(one)} and {describe(other)}"
        return ""


def bits(mask: int) -> list[int]:
    """The one-element sets in `mask`.

    >>> bits(0b1101)
    [1, 4, 8]
    """
    found = []
    while mask:
        low = mask & -mask
        found.append(low)
        mask ^= low
    return found


def describe(pdu: Pdu) -> str:
    """`pdu` in a trace.

    >>> describe(Confirm((1, 2), 0, 1, 4))
    'CONFIRM(tl=1.2 ts=0 by=1 top=4)'
    """
    parts = []
    for name in pdu.__struct_fields__:
        value = getattr(pdu, name)
        if isinstance(value, tuple) and len(value) == 2 and name in _VERSIONS:
            value = f"{value[0]}.{value[1]}"
        elif isinstance(value, Pdu):
            value = describe(value)
        elif name == "bundle":
            value = value.data.decode()
        elif name == "entries":
            value = [_entry(entry.ack, entry.bundle.data) for entry in value]
        parts.append(f"{name}={value}")
    return f"{type(pdu).__name__.upper()}({' '.join(parts)})"


_VERSIONS: Final = frozenset(("tl", "v", "old", "max_joined"))


def _entry(ack: Ack, data: bytes) -> str:
    return f"{ack.ts}:{data.decode() or 'NULL'}"
