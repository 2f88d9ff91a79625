"""One channel over UDP, for TO in channel mode (channel model 1C, PROTOCOLS §0.2).

Plain multicast does not show everybody one order, since switches reorder between senders.  So
members send to a hub, the first of the roster, which numbers everything and sends it to all of
them.  Both ways lose and reorder, and for TO every loss means that all members go back to the
failure point together: at 10 % loss and delays of up to 10 ms that happened so often that nobody
but the hub got anything through.  So what the network did is put right here first, for as long as a
reset would take:

- To the hub.  A sender numbers its sequenced PDUs, 1, 2, … in each epoch of the engine.  The hub
  passes them on in that order and each once.  The sender offers one again until the channel has
  returned it to it; the hub answers what it has passed on already with its copy.
- From the hub.  A receiver takes the channel's numbers in turn.  What is early waits, and what is
  missing is asked for (RETX with numbers of the channel); the hub keeps the last ones.  After
  `GIVE_UP_NS` it is lost, which the engine notices.

Resets are sent again by the engine itself, so they have no number on their way to the hub.

Deviation from PROTOCOLS §0.2, where the hub numbers whatever arrives and receivers drop what is not
newer than the last they saw: so a PDU that the network doubles had two places in the channel
(`test_a_pdu_that_reaches_the_hub_twice_is_in_the_channel_once`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from msgspec import Struct

from roundelay.core.cluster.pdu import Dt, Retx
from roundelay.core.engine import MS, NEVER, Pdu
from roundelay.wire.envelope import CHECKSUM

CHAN_SEQ_AT: Final = 12
OFFER: Final = 1 << 31
"""Set in the `chan_seq` of a PDU on its way to the hub; the rest is its sender's number."""
UNSTAMPED: Final = OFFER
"""`chan_seq` of a PDU on its way to the hub that its sender has not numbered."""
ASIDE: Final = (1 << 32) - 1
"""`chan_seq` of a PDU for one member, which does not go through the hub."""
NUMBERS: Final = OFFER - 1
"""Numbers are 1 … NUMBERS, and then 1 again."""

OFFER_NS: Final = 10 * MS
"""Offer a PDU again that has not come back; twice as long each time, up to eight times."""
ASK_NS: Final = 3 * MS
"""What is missing may only be late: ask after that."""
ASK_AGAIN_NS: Final = 10 * MS
GIVE_UP_NS: Final = 120 * MS
"""A number that has been missing for so long is lost; a reset takes about as long."""

OFFERS_MAX: Final = 1024
"""Own PDUs that have not come back.  Beyond that the hub waits in vain, and the engine resets."""
HELD_MAX: Final = 256
"""Early PDUs: of a sender at the hub, of the channel at a receiver."""
KEPT_MAX: Final = 2048
KEPT_BYTES: Final = 8 << 20
"""What the hub keeps for those who ask."""
GAPS_MAX: Final = 16
ASKED_MAX: Final = 64
"""Gaps that are asked for at a time, and numbers that one question is answered with."""


class Arrival(NamedTuple):
    """A PDU as it came, for the engine."""

    pdu: Pdu
    sender: int
    chan_seq: int
    life: int
    data: bytes = b""
    """All of it, where the hub is to pass it on."""


def for_hub(chan_seq: int) -> bool:
    """Whether a PDU with this number is on its way to the hub."""
    return chan_seq & OFFER != 0 and chan_seq != ASIDE


def ahead(number: int, base: int) -> int:
    """How far `number` is ahead of `base`; below zero if it is behind it.

    >>> ahead(7, 5), ahead(4, 5), ahead(1, NUMBERS), ahead(NUMBERS, 2)
    (2, -1, 1, -2)
    """
    distance = (number - base) % NUMBERS
    return distance if distance <= NUMBERS // 2 else distance - NUMBERS


def following(number: int) -> int:
    return number % NUMBERS + 1


class Leg(Struct):
    """The way of one sender to the hub, in one epoch."""

    epoch: int
    next: int = 1
    held: dict[int, Arrival] = {}


class OneChannel:
    """One member's end of the channel; `hub` is the member that numbers it."""

    def __init__(self, me: int, hub: int) -> None:
        self.me = me
        self.hub = hub
        self.here = me == hub
        # as a sender
        self._epoch = -1
        self._number = 0
        self._offers: dict[int, tuple[bytes, int, int]] = {}  # own seq: bytes, when again, wait
        # as a receiver
        self._next = 0  # none before the first
        self._early: dict[int, Arrival] = {}
        self._ask_at = NEVER
        self._give_up_at = NEVER
        # as the hub
        self._stamped = 0
        self._legs: dict[int, Leg] = {}
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self._passed_on: dict[tuple[int, int, int], int] = {}  # sender, epoch, its number: ours

    # -- sending ---------------------------------------------------------------------------

    def number(self, pdu: Pdu) -> int:
        """`chan_seq` of a PDU of ours for everybody."""
        if not isinstance(pdu, Dt):
            return UNSTAMPED
        if pdu.epoch != self._epoch:
            self._epoch, self._number = pdu.epoch, 0
            self._offers.clear()
        self._number = following(self._number)
        return OFFER | self._number

    def offered(self, pdu: Pdu, data: bytes, now: int) -> None:
        """`data`, a PDU of ours, is on its way to the hub."""
        if isinstance(pdu, Dt) and len(self._offers) < OFFERS_MAX:
            self._offers[pdu.seq] = (data, now + OFFER_NS, OFFER_NS)

    def _came_back(self, pdu: Pdu) -> None:
        """The hub keeps our order: what is before it has come back, or never will."""
        if isinstance(pdu, Dt) and pdu.epoch == self._epoch:
            for seq in [seq for seq in self._offers if seq <= pdu.seq]:
                del self._offers[seq]

    # -- the hub ---------------------------------------------------------------------------

    def accept(self, arrival: Arrival) -> tuple[list[Arrival], bytes | None]:
        """What is to be passed on now that this has come, and what its sender has missed."""
        pdu, number = arrival.pdu, arrival.chan_seq & ~OFFER
        if not isinstance(pdu, Dt):
            return ([arrival] if not number else []), None
        leg = self._legs.get(arrival.sender)
        if leg is None or pdu.epoch > leg.epoch:
            leg = self._legs[arrival.sender] = Leg(pdu.epoch)
        if not number or pdu.epoch < leg.epoch:
            return [], None
        distance = ahead(number, leg.next)
        if distance < 0:
            ours = self._passed_on.get((arrival.sender, pdu.epoch, number), 0)
            return [], self._kept.get(ours)
        if distance < HELD_MAX:
            leg.held[number] = arrival
        ready = []
        while leg.next in leg.held:
            ready.append(leg.held.pop(leg.next))
            leg.next = following(leg.next)
        return ready, None

    def stamp(self, arrival: Arrival) -> Arrival:
        """The PDU with the next number of the channel."""
        data = arrival.data
        number = self._stamped = following(self._stamped)
        body = data[:CHAN_SEQ_AT] + number.to_bytes(4, "big") + data[CHAN_SEQ_AT + 4 : -4]
        stamped = body + CHECKSUM.pack(crc32(body))
        self._keep(number, stamped)
        if isinstance(arrival.pdu, Dt):
            leg = (arrival.sender, arrival.pdu.epoch, arrival.chan_seq & ~OFFER)
            self._passed_on[leg] = number
            if len(self._passed_on) > KEPT_MAX:
                del self._passed_on[next(iter(self._passed_on))]
        return arrival._replace(chan_seq=number, data=stamped)

    def _keep(self, number: int, stamped: bytes) -> None:
        kept = self._kept
        kept[number] = stamped
        self._kept_bytes += len(stamped)
        while len(kept) > KEPT_MAX or (self._kept_bytes > KEPT_BYTES and len(kept) > 1):
            self._kept_bytes -= len(kept.pop(next(iter(kept))))

    def answer(self, asked: Retx) -> Iterator[bytes]:
        """What we still have of what somebody lacks."""
        number = asked.lo
        for _ in range(min(ahead(asked.hi, asked.lo) + 1, ASKED_MAX)):
            stamped = self._kept.get(number)
            if stamped is not None:
                yield stamped
            number = following(number)

    # -- receiving -------------------------------------------------------------------------

    def take(self, arrival: Arrival, now: int) -> list[Arrival] | None:
        """What comes next in the order of the channel, with `arrival`; None if that is old."""
        number = arrival.chan_seq
        if number == ASIDE:
            return [arrival]
        if not 0 < number <= NUMBERS:
            return None
        if not self._next:  # who comes late begins where the channel is
            self._next = 1 if number <= HELD_MAX else number
        distance = ahead(number, self._next)
        if distance < 0 or number in self._early:
            return None
        if distance and len(self._early) >= HELD_MAX:
            return None
        self._early[number] = arrival
        if distance == 0:
            return self._in_turn(now)
        if self._ask_at >= NEVER:
            self._ask_at, self._give_up_at = now + ASK_NS, now + GIVE_UP_NS
        return []

    def _in_turn(self, now: int) -> list[Arrival]:
        ready = []
        while self._next in self._early:
            arrival = self._early.pop(self._next)
            self._next = following(self._next)
            if arrival.sender == self.me:
                self._came_back(arrival.pdu)
            ready.append(arrival)
        if not self._early:
            self._ask_at = self._give_up_at = NEVER
        else:  # another gap, which has its own time
            self._ask_at, self._give_up_at = now + ASK_NS, now + GIVE_UP_NS
        return ready

    def _missing(self) -> list[tuple[int, int]]:
        """The gaps in front of what is early."""
        gaps, lo = [], self._next
        for number in sorted(self._early, key=lambda number: ahead(number, self._next)):
            if number != lo:
                gaps.append((lo, number - 1 or NUMBERS))
                if len(gaps) == GAPS_MAX:
                    break
            lo = following(number)
        return gaps

    # -- time ------------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        due = min((due for _, due, _ in self._offers.values()), default=NEVER)
        return min(due, self._ask_at, self._give_up_at)

    def mend(self, now: int) -> tuple[list[bytes], list[tuple[int, int]], list[Arrival]]:
        """What is due: bytes for the hub, numbers to ask it for, and PDUs for the engine."""
        offers = []
        for seq, (data, due, wait) in self._offers.items():
            if due <= now:
                wait = min(2 * wait, 8 * OFFER_NS)
                self._offers[seq] = (data, now + wait, wait)
                offers.append(data)
        arrivals, asked = [], []
        if self._give_up_at <= now:
            self._next = min(self._early, key=lambda number: ahead(number, self._next))
            arrivals = self._in_turn(now)
        if self._ask_at <= now:
            self._ask_at = now + ASK_AGAIN_NS
            asked = self._missing()
        return offers, asked, arrivals
