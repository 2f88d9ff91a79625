"""Whose receipt is due: what an engine says of submissions, told to those who sent the messages.

The engine numbers the messages that are submitted to it and says of which ones it speaks.  Going by
that, and not by counting, no notice can be taken for one of another submission, whatever has been
submitted before the notice is handled.  A submission is over with its last message: the parts of a
unit get their places one by one, and nothing of it is delivered before the last.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from roundelay.node.outbox import Outbox, Underway

RECORDED: Final = "recorded"
"""Behind the marks of an item whose receipt waits for a recorder."""


class Receipts:
    """What one engine has been given, until its place is known for good."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.followed: deque[tuple[int, Underway]] = deque()
        """With the number behind the last message of each, which rises."""

    def follow(self, first: int, one: Underway) -> None:
        """The messages of `one` have been submitted; `first` is the number of the first."""
        self.followed.append((first + len(one.bundle.sizes), one))

    def stable(self, hi: int, gseq: int, count: int) -> None:
        """GR-5: `count` messages, those before number `hi`, have their places from `gseq` on."""
        followed = self.followed
        if followed and followed[0][0] == hi:
            one = followed.popleft()[1]
            # Counted back from the end of a unit, whose parts need not stand side by side.
            one.number = gseq + count - len(one.bundle)

    def refused(self, hi: int, reason: str) -> None:
        """The messages before number `hi` have no place and will have none."""
        followed = self.followed
        if followed and followed[0][0] == hi:
            one = followed.popleft()[1]
            if one in self.outbox.underway:
                self.outbox.refuse(one, reason)

    def settle(self, recorded: int) -> None:
        """Receipts for what is stable, and below `recorded` where that was wished."""
        wall = time.time_ns()
        for one in [one for one in self.outbox.underway if one.number >= 0]:
            waits = one.to is not None and one.to[-1] == RECORDED
            if not waits or one.number + len(one.bundle) <= recorded:
                self.outbox.settle_one(one, one.number, wall)
