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
from roundelay.core.token import pdu as p
from roundelay.sim.explore.pdus import Numbered, describe

NO_TOP: Final = -1


class Item(NamedTuple):
    """One PDU in the network."""

    source: int
    destination: int  # or EVERYONE
    pdu: Pdu


def left_out(pdu: Pdu) -> bool:
    """Return whether `pdu` brings about nothing new; the reasons are above."""
    if isinstance(pdu, p.Vote1):
        return not pdu.yes
    if isinstance(pdu, p.Vote2):
        return pdu.status != p.YES
    return isinstance(pdu, p.RetxReq | p.RetxAck | p.RetxMsg | p.RetxBulk | p.Abort | p.TlHint)


def canonical(pdu: Pdu) -> Pdu:
    """Return `pdu` without what makes no difference."""
    return p.Confirm(pdu.tl, pdu.ts, pdu.by, NO_TOP) if isinstance(pdu, p.Confirm) else pdu


class Pool:
    """Numbers the PDUs that were sent in any state."""

    def __init__(self, group: tuple[int, ...]) -> None:
        self.group = group
        self.items: Numbered[Item] = Numbered()
        self.addressed = dict.fromkeys(group, 0)  # set of what may be delivered to each site
        self.messages: dict[tuple[p.Version, int, int], int] = {}  # (tl, s, n) → bit of that B
        self._stamps: dict[tuple[p.Version, int], int] = {}  # (tl, ts) → set of ACKs

    def bit(self, source: int, destination: int, pdu: Pdu) -> int:
        """Return the set of this PDU alone, or the empty set if it is left out."""
        kept = self.kept(pdu)
        if kept is None:
            return 0
        known = len(self.items)
        number = self.items.number(Item(source, destination, kept))
        if number == known:
            self._add(self.items[number], 1 << number)
        return 1 << number

    def kept(self, pdu: Pdu) -> Pdu | None:
        """Return what of `pdu` makes a difference."""
        return None if left_out(pdu) else canonical(pdu)

    def _add(self, item: Item, bit: int) -> None:
        for site in self.group:
            if site != item.source and item.destination in (site, EVERYONE):
                self.addressed[site] |= bit
        pdu = item.pdu
        if isinstance(pdu, p.B):
            self.messages[pdu.tl, pdu.s, pdu.n] = bit
        elif isinstance(pdu, p.Ack):
            stamp = (pdu.tl, pdu.ts)
            self._stamps[stamp] = self._stamps.get(stamp, 0) | bit

    def item(self, bit: int) -> Item:
        return self.items[bit.bit_length() - 1]

    def stamped_twice(self, sent: int) -> str:
        """Return in words two ACKs in `sent` with the same (tl, ts), or '' (CM-T3)."""
        for stamps in self._stamps.values():
            both = stamps & sent
            if both & (both - 1):
                first, second = (describe(self.item(bit).pdu) for bit in bits(both)[:2])
                return f"CM-T3: {first} and {second}"
        return ""


class WholePool(Pool):
    """Leaves no PDU out, and nothing of any."""

    def kept(self, pdu: Pdu) -> Pdu:
        return pdu


def bits(mask: int) -> list[int]:
    """Return the one-element sets in `mask`.

    >>> bits(0b1101)
    [1, 4, 8]
    """
    singles = []
    while mask:
        low = mask & -mask
        singles.append(low)
        mask ^= low
    return singles
