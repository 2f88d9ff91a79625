"""Failpoints: a process that dies, or stops, at an exact moment, for tests of what follows.

The environment variable names the moment::

    ROUNDELAY_FAILPOINT=BCAST:5:kill     the 5th BCAST has been sent: SIGKILL to ourselves
    ROUNDELAY_FAILPOINT=BCAST:5:stop     the same with SIGSTOP; SIGCONT wakes the process up

Nothing else of the batch happens: no further send, no delivery.  A node that runs with a failpoint
says so in its log.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from roundelay.core.errors import ConfigError
from roundelay.wire.switch_header import KIND_NAMES

VARIABLE: Final = "ROUNDELAY_FAILPOINT"
ACTIONS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failpoint:
    """After the nth PDU of a kind."""

    def __init__(self, text: str) -> None:
        kind, _, rest = text.partition(":")
        nth, _, action = rest.partition(":")
        hints = {hint for hint, names in KIND_NAMES.items() if kind in names}
        if not hints or not nth.isdecimal() or int(nth) < 1 or action not in ACTIONS:
            raise ConfigError(VARIABLE, text, f"KIND:NTH:{'|'.join(ACTIONS)}, as in BCAST:5:kill")
        self.text = text
        self.hints = hints
        self.remaining = int(nth)
        self.signal = ACTIONS[action]

    @classmethod
    def from_environment(cls) -> Failpoint | None:
        text = os.environ.get(VARIABLE, "")
        return cls(text) if text else None

    def sent(self, hint: int) -> None:
        """A PDU has left."""
        if hint in self.hints:
            self.remaining -= 1
            if self.remaining == 0:
                os.kill(os.getpid(), self.signal)
