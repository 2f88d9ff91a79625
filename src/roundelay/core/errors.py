"""Every error Roundelay raises, in three families that call for three reactions.

    RoundelayError
    ├── UsageError                the caller's mistake: says what to do, nothing was changed
    │   ├── ConfigError           a parameter outside its allowed values; names the field
    │   ├── QueueFull             a bounded queue has no room; try again later
    │   ├── PayloadTooLarge       a message above `max_payload`; split it or raise the limit
    │   └── ClusterBroken         a member of the cluster has failed; reopen it without that member
    ├── PeerError                 a peer's malformed input: counted by reason and dropped
    │   └── MalformedPdu
    └── InvariantBroken           our own bug: the site stops rather than go on wrongly

The first family is raised to the caller, the second never is, the third goes through everything.
"""

from __future__ import annotations


class RoundelayError(Exception):
    """Base of everything below."""


class UsageError(RoundelayError, ValueError):
    """The caller asked for something that cannot be done."""


class ConfigError(UsageError):
    """A parameter has a value that is not allowed.

    >>> str(ConfigError("loss", 1.2, "a number from 0 up to, not including, 1"))
    'loss = 1.2 is not allowed: a number from 0 up to, not including, 1'
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {value} is not allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class QueueFull(UsageError):
    """A bounded queue is full; nothing was queued."""


class PayloadTooLarge(UsageError):
    """A message is larger than the configured limit; nothing was queued."""


class ClusterBroken(UsageError):
    """A cluster protocol needs every member, and one has failed; nothing was queued."""


class PeerError(RoundelayError):
    """A peer sent something that cannot be right."""


class MalformedPdu(PeerError):
    """Bytes or fields that no correct peer sends; `reason` is the key it is counted under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class InvariantBroken(RoundelayError):
    """A state that the protocol excludes.  The site must stop."""
