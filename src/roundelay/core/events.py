"""What happened in a run: raw rows, and those who look on.

A raw row is one tuple per event, made in the hot path of a driver and therefore as plain as can
be::

    (time_ns, site, event, ref, peer, obj)

=========  =================================  ==================  ==========================
event      ref                                peer                obj
=========  =================================  ==================  ==========================
SUBMIT     index of the bundle's first        NOBODY              the Bundle; Addressed if it
           message among the site's own                           is not for everyone
SEND       unique id of the transmission      destination or      the Pdu
                                              EVERYONE
RECEIVE    id of the SEND                     its sender          None
LOSE       id of the SEND whose copy did not  its sender          why: "loss", "partition",
           reach `site`                                           "burst", "targeted",
                                                                  "down", "corrupt", …
DELIVER    position (`Delivery.seq`)          source              the Delivery
NOTICE     NO_REF                             NOBODY              the Notice
CRASH      NO_REF                             NOBODY              what survives: MEMORY, DISK
                                                                  or NOTHING_LEFT
RESTART    NO_REF                             NOBODY              what it restarts with (same)
PAUSE      NO_REF                             NOBODY              None
RESUME     NO_REF                             NOBODY              None
FAULT      NO_REF                             NOBODY              kind of fault injected;
                                                                  site NOBODY if global
ROLE       NO_REF                             NOBODY              TOKEN, PASSING or IDLE
MARK       NO_REF                             NOBODY              a phase: HEAL, END, STOP, …
=========  =================================  ==================  ==========================

The codes live in `core` because both those who write rows (simulator, node) and those who read
them (trace) need them, and neither of these may know the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery, Notice

Row = tuple[int, int, int, int, int, object]
"""(time_ns, site, event, ref, peer, obj): see the table above."""

NO_REF: Final = -1
NOBODY: Final = -1
"""No site: of a global fault or mark, and as peer where there is none."""

# The codes: indices into EVENT_NAMES.
SUBMIT, SEND, RECEIVE, LOSE, DELIVER, NOTICE, CRASH = range(7)
RESTART, PAUSE, RESUME, FAULT, ROLE, MARK = range(7, 13)

EVENT_NAMES: Final = (
    *("SUBMIT", "SEND", "RECEIVE", "LOSE", "DELIVER", "NOTICE", "CRASH"),
    *("RESTART", "PAUSE", "RESUME", "FAULT", "ROLE", "MARK"),
)
"""Names of the codes, as they stand in trace files."""

# What survives a crash (CRASH, RESTART).
MEMORY: Final = "memory"  # everything: the site was merely away
DISK: Final = "disk"  # what the engine persisted
NOTHING_LEFT: Final = "nothing"  # a new machine under an old number

# Roles (ROLE).
TOKEN: Final = "token"  # holds the token
PASSING: Final = "passing"  # has named its successor, acceptance unseen
IDLE: Final = "idle"

# Phases (MARK).
HEAL: Final = "heal"  # no more faults from here on: the liveness phase
END: Final = "end"  # the run has settled: whatever should have been delivered has been
STOP: Final = "stop"  # the run was cut short: only safety can be judged


class Addressed(Struct, frozen=True, gc=False):
    """A bundle that was submitted to the sites `to` only (SPO); ascending."""

    bundle: Bundle
    to: tuple[int, ...]


class RowSink(Protocol):
    """Where a driver puts its raw rows.

    `rows` is one list for the whole run (so its `append` may be kept in a local name); the driver
    calls `flush` whenever some thousands have gathered, which empties it in place.
    """

    rows: list[Row]

    def flush(self) -> None: ...


class Observer(Protocol):
    """One who looks on and sees what an application could see: nothing of an engine's inside.

    Times never fall.  Deliveries and notices that an engine hands over in one batch carry one
    time; their order within the batch means nothing.
    """

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        """`site` submitted `bundle`; its first message is number `index` among the site's own."""

    def delivered(self, time: int, site: int, delivery: Delivery) -> None: ...

    def noticed(self, time: int, site: int, notice: Notice) -> None: ...

    def crashed(self, time: int, site: int, keeps: str) -> None: ...

    def restarted(self, time: int, site: int, keeps: str) -> None: ...

    def sampled(
        self, time: int, site: int, usage: Mapping[str, int], caps: Mapping[str, int]
    ) -> None:
        """How full the buffers of `site` are, and how full they may be, by name."""

    def healed(self, time: int) -> None:
        """From now on no fault is injected."""

    def finished(self, time: int, up: set[int], settled: bool = True) -> object:
        """The run is over; `up` are the sites that run and can talk to each other."""
