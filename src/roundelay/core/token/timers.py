"""When each timer of a token site is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from roundelay.core.engine import NEVER
from roundelay.core.errors import InvariantBroken

if TYPE_CHECKING:
    from roundelay.core.token.site import TokenSite


DUES: Final = (
    "send_due",
    "request_due",
    "hold_due",
    "pass_due",
    "beacon_due",
    "token_due",
    "auth_due",
    "silence_due",
    "reform_due",
)
"""The timers, in the order in which `TokenSite.on_timer` looks at them."""


class Timers:
    """Nine moments, any of which may be NEVER.

    `heard` and `progress` are when anything, and anything new, was last heard of the list: a timer
    that restarts with every arrival is not moved each time; it looks at these when it comes.
    """

    __slots__ = (
        "auth_due",
        "beacon_due",
        "heard",
        "hold_due",
        "pass_due",
        "progress",
        "reform_due",
        "request_due",
        "send_due",
        "silence_due",
        "site",
        "token_due",
    )

    def __init__(self, site: TokenSite) -> None:
        self.site = site
        self.heard = self.progress = 0
        self.reform_due = NEVER
        self.stop()

    def arm(self, due: int) -> int:
        """Make sure that `on_timer` is called by `due`."""
        site = self.site
        if due < site.deadline:
            site.deadline = due
        return due

    def stop(self) -> None:
        """Disarm the timers of a list; that of the reformation goes on."""
        self.send_due = self.hold_due = self.pass_due = self.request_due = NEVER
        self.beacon_due = self.silence_due = self.token_due = self.auth_due = NEVER

    def watch(self, now: int) -> None:
        """A list is entered: start its watchdogs (CM-R15, CM-N21)."""
        config = self.site.config
        self.heard = self.progress = now
        self.auth_due = self.arm(now + config.auth_timeout_ns)
        if config.silence_ns < NEVER:
            self.silence_due = self.arm(now + config.silence_ns)

    def earliest(self) -> int:
        """When the first of them is due."""
        return min(
            self.send_due,
            self.request_due,
            self.hold_due,
            self.pass_due,
            self.beacon_due,
            self.token_due,
            self.auth_due,
            self.silence_due,
            self.reform_due,
        )

    def check_invariants(self) -> None:
        if self.site.deadline > self.earliest():
            raise InvariantBroken(f"a timer is due before the deadline {self.site.deadline}")
