"""An interface that changes its address, goes away and comes back: the medium follows it.

A socket stays bound to the address it was given.  When the interface gets another one (a lease that
ran out, a machine that was moved), everything sent from the old one is lost, and what is sent to it
arrives nowhere.  So the interface is looked at once a second; when it has another address, or is
back after it was gone, the medium is opened anew there, and the others are told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError
from roundelay.node.medium.interfaces import Interface, interfaces
from roundelay.node.medium.media import FanoutMedium, Medium, MulticastMedium

LOOK_NS: Final = SECOND
UP: Final = "up"


class MediumWatch:
    """Looks after the medium of a node.

    `log` takes a level, an event and fields; `moved` is called when the medium has been opened
    anew.
    """

    def __init__(self, medium: Medium, log: Callable[..., None], moved: Callable[[], None]) -> None:
        self._medium = medium
        self._log = log
        self._moved = moved
        self._due = 0
        self.state = UP
        """`up`, or what is wrong."""
        self._name = self._interface_name()

    def _interface_name(self) -> str:
        """The interface that the medium is bound to; empty: to none in particular."""
        medium = self._medium
        if isinstance(medium, MulticastMedium):
            return medium.interface.name
        if isinstance(medium, FanoutMedium):
            return next((i.name for i in interfaces() if i.address == medium.address[0]), "")
        return ""

    def look(self, now: int) -> None:
        """Follow the interface, if it is time to look."""
        if not self._name or now < self._due:
            return
        self._due = now + LOOK_NS
        present = [interface for interface in interfaces() if interface.name == self._name]
        if not present:
            if self.state == UP:
                self.state = f"{self._name} is gone, or has no address"
                self._log("warning", "medium.lost", interface=self._name, reason=self.state)
            return
        if self.state == UP and self._medium.address[0] == present[0].address:
            return
        self._reopen(present[0])

    def _reopen(self, interface: Interface) -> None:
        medium, before = self._medium, self._medium.address
        assert isinstance(medium, MulticastMedium | FanoutMedium)
        try:
            medium.reopen(interface)
        except (ConfigError, OSError) as error:
            if self.state == UP:
                self._log("warning", "medium.lost", interface=self._name, reason=str(error))
            self.state = f"cannot be opened on {self._name}: {error}"
            return
        self.state = UP
        old, new = (f"{host}:{port}" for host, port in (before, medium.address))
        self._log("warning", "medium.moved", interface=self._name, before=old, now=new)
        self._moved()
