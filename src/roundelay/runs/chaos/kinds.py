"""The kinds of trouble that both commands make; each plan adds its own.

=============  ===================================================================================
`kill`         SIGKILL, and a restart with the disk
`wipe`         SIGKILL, the disk is gone, and a restart
`pause`        SIGSTOP, and SIGCONT
`partition`    two sides do not hear each other
`one-way`      a site does not hear another, which hears it
`split`        two sites do not hear each other; everybody else hears both
`flap`         a partition that comes and goes
`clog`         what one site sends to the others waits, and then comes at once
`twin`         a second process of a site's name is started: it must fail, and do no harm
`clock`        the wall clock of a site is set an hour back, or a day ahead
`some`         SIGKILL of all sites; a majority returns, the rest later
`late-link`    SIGKILL, a restart with the disk, and the link comes up some seconds later
=============  ===================================================================================
"""

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
