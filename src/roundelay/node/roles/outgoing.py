"""What applications send to a group whose roles stand in a file, until its place is known for good.

The engine numbers the messages that are submitted to it and says of which ones it speaks.  Going by
that, and not by counting, no notice can be taken for one of another submission, whatever has been
submitted before the notice is handled.  A submission is over with its last message: the parts of a
unit get their places one by one, and nothing of it is delivered before the last.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError, PayloadTooLarge, UsageError
from roundelay.core.grsb.config import GrsbConfig
from roundelay.node.driver.outbox import Outbox, QueuedBundle, Underway
from roundelay.node.node_api import NO_TAG, Subscriber


class Marks(NamedTuple):
    """What the messages of a submission share; they stand where other services have destinations
    (`QueuedBundle.to`), so that bundles are made of messages that share them."""

    conference: int
    kind: int
    unit: int = 0
    """The number of the unit that they are, if they are one."""
    recorded: bool = False
    """Their receipt waits for a recorder."""


class QueuedUnit(QueuedBundle):
    """The parts of a unit: they leave together, and with nothing else."""

    def take(self, room: int, places: int, alone: bool) -> Bundle | None:
        self.start = len(self.bundle.sizes)
        return self.bundle


class MarkedOutbox(Outbox):
    """A submission has one conference and kind."""

    units = 0
    """Units so far."""

    def put_marked(
        self,
        application: Subscriber,
        bundle: Bundle,
        tag: int,
        due: int,
        recorded: bool,
        unit: bool,
    ) -> None:
        """`recorded`: the receipt waits for a recorder.  `unit`: the messages, which have one mark,
        are to take effect together."""
        self.put(application, bundle, tag, None, due)
        self.items.pop()
        parts = list(bundle.by_mark())
        for number, (conference, kind, part) in enumerate(parts, 1):
            self.units += unit
            marks = Marks(conference, kind, self.units if unit else 0, recorded)
            queued = QueuedUnit if unit else QueuedBundle
            mine = tag if number == len(parts) else NO_TAG
            self.items.append(queued(part, application, mine, marks, due))


def check_unit(bundle: Bundle, config: GrsbConfig, group: str) -> None:
    """Raise what keeps the messages of `bundle` from being one unit of that group."""
    if len(bundle.runs()) > 1:
        raise UsageError("a unit is of one conference and kind: send several")
    if len(bundle) > config.own_limit:
        raise ConfigError("parts", len(bundle), f"at most {config.own_limit} in one unit")
    if len(bundle.data) > config.unit_bytes:
        raise PayloadTooLarge(
            f"a unit of {len(bundle.data)} bytes: {group} takes up to "
            f"{config.unit_bytes}; send several, or give its file a larger unit_bytes"
        )


def as_one(bundle: Bundle) -> Bundle:
    """All of a unit as one message: so a trace has it, where it has its one position."""
    return Bundle((len(bundle.data),), bundle.data)


class Receipts:
    """What one engine has been given, until its place is known for good."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.followed: deque[tuple[int, Underway]] = deque()
        """With the number behind the last message of each, which rises."""

    def follow(self, first: int, underway: Underway) -> None:
        """The messages of `one` have been submitted; `first` is the number of the first."""
        self.followed.append((first + len(underway.bundle.sizes), underway))

    def stable(self, hi: int, gseq: int, count: int) -> None:
        """GR-5: `count` messages, those before number `hi`, have their places from `gseq` on."""
        followed = self.followed
        if followed and followed[0][0] == hi:
            underway = followed.popleft()[1]
            # Counted back from the end of a unit, whose parts need not stand side by side.
            underway.number = gseq + count - len(underway.bundle)

    def refused(self, hi: int, reason: str) -> None:
        """The messages before number `hi` have no place and will have none."""
        followed = self.followed
        if followed and followed[0][0] == hi:
            underway = followed.popleft()[1]
            if underway in self.outbox.underway:
                self.outbox.refuse(underway, reason)

    def settle(self, recorded: int) -> None:
        """Receipts for what is stable, and below `recorded` where that was wished."""
        wall = time.time_ns()
        for underway in [underway for underway in self.outbox.underway if underway.number >= 0]:
            marks = underway.to
            waits = isinstance(marks, Marks) and marks.recorded
            if not waits or underway.number + len(underway.bundle) <= recorded:
                self.outbox.settle(underway.number, wall, bundle=underway)
