"""The kinds of trouble that both commands make; each plan says what its own do."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

KILL: Final = "kill"
WIPE: Final = "wipe"
PAUSE: Final = "pause"
PARTITION: Final = "partition"
ONE_WAY: Final = "one-way"
SPLIT: Final = "split"
FLAP: Final = "flap"
CLOG: Final = "clog"
TWIN: Final = "twin"
CLOCK: Final = "clock"
SOME: Final = "some"
LATE_LINK: Final = "late-link"

MACHINE: Final = "machine"
NODE: Final = "node"
APPLICATION: Final = "application"


class Trouble(Struct, frozen=True):
    """Something that is done to the group."""

    kind: str
    who: tuple[str, ...]
    """Whom it strikes; of a partition, one side."""
    lasts_s: float
    scope: str = MACHINE
    """Of a kill or a pause, where the member goes through a daemon."""
    value: float = 0.0
    """Of a clock: seconds to add."""
