"""What UDP lacks for some protocols (channel models MC and 1C, PROTOCOLS §0.2).

- DG: nothing is promised, nothing is needed.
- MC: PDUs of one sender arrive in sending order.  `MCAdaptor` drops what comes late or twice, so
  that reordering and duplication become loss.  A retransmission has a fresh `chan_seq`.
- 1C: PDUs of all senders are seen in one order by everybody (`node.medium.one_channel`).
"""

from __future__ import annotations

from typing import Final

CHAN_SEQS: Final = 1 << 32


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
