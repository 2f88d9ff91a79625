"""What UDP lacks for some protocols (channel models MC and 1C, PROTOCOLS §0.2).

- DG: nothing is promised, nothing is needed.
- MC: PDUs of one sender arrive in sending order.  `MCAdaptor` drops what comes late or twice, so
  that reordering and duplication become loss.  A retransmission has a fresh `chan_seq`.
- 1C: PDUs of all senders are seen in one order by everybody.  Plain multicast does not give that,
  since switches reorder between senders; so members send to a hub, which numbers everything and
  multicasts it (`OneChannelHub`); receivers drop what is not newer than the last they saw.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from roundelay.wire.codec import CHECKSUM

CHAN_SEQS: Final = 1 << 32
CHAN_SEQ_AT: Final = 12
UNSTAMPED: Final = 0
"""`chan_seq` of a PDU on its way to the hub."""
ASIDE: Final = CHAN_SEQS - 1
"""`chan_seq` of a PDU for one member, which does not go through the hub."""


def newer(chan_seq: int, last: int) -> bool:
    """Whether `chan_seq` comes after `last`; numbers wrap.

    >>> newer(5, 4), newer(4, 4), newer(2, CHAN_SEQS - 2)
    (True, False, True)
    """
    return 0 < (chan_seq - last) % CHAN_SEQS < CHAN_SEQS // 2


class MCAdaptor:
    """Sending order per sender, for the members of one roster."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def admit(self, sender: int, chan_seq: int) -> bool:
        last = self._last.get(sender)
        if last is not None and not newer(chan_seq, last):
            return False
        self._last[sender] = chan_seq
        return True


class OneChannelHub:
    """One order for everything; `hub` is the member that numbers it."""

    def __init__(self, me: int, hub: int) -> None:
        self.hub = hub
        self.here = me == hub
        self._stamped = 0
        self._last = -1

    def stamp(self, data: bytes) -> bytes:
        """The hub: `data` with the next number of the channel."""
        self._stamped = self._stamped % (ASIDE - 1) + 1
        body = data[:CHAN_SEQ_AT] + self._stamped.to_bytes(4, "big") + data[CHAN_SEQ_AT + 4 : -4]
        return body + CHECKSUM.pack(crc32(body))

    def admit(self, chan_seq: int) -> bool:
        """Whether a PDU with this number is next for us; what is older is lost."""
        if chan_seq == ASIDE:
            return True
        if self._last >= 0 and not newer(chan_seq, self._last):
            return False
        self._last = chan_seq
        return True
