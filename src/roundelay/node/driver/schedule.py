"""When a node acts.

Datagrams come in batches, and each is handed to the group it belongs to; at the end of the batch
every group that was touched carries out what its engine wants.  One timer is armed at a time, for
the earliest deadline of all engines, and of everything else that the node looks after.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from roundelay.core.engine import NEVER, SECOND
from roundelay.core.errors import UsageError
from roundelay.node.driver.engine_driver import NEAR_NS
from roundelay.node.group_host import GroupDriver

if TYPE_CHECKING:
    from roundelay.node.node import Node


class Schedule:
    """Runs the drivers of a node, and the node itself, when there is something to do."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.drivers: dict[int, GroupDriver] = {}
        """By the id that the datagrams for them carry."""
        self.touched: dict[int, GroupDriver] = {}
        """Those that have something to do in this turn."""
        self.node_touched = True
        """The node itself may have something to do."""
        self.running = False
        self._armed = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.running = True

    def stop(self) -> None:
        """Nothing is done any more; harmless when repeated."""
        self.running = False
        self._armed = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def register(self, driver: GroupDriver) -> None:
        """Datagrams with its id are for `driver` from now on."""
        clash = self.drivers.get(driver.id)
        if clash is not None and clash is not driver:
            raise UsageError(
                f"groups {clash.spec.name} and {driver.spec.name} have the same id on the wire: "
                "rename one"
            )
        self.drivers[driver.id] = driver
        self.wake(driver)

    def unregister(self, driver: GroupDriver) -> None:
        if self.drivers.get(driver.id) is driver:
            del self.drivers[driver.id]
        self.touched.pop(driver.id, None)

    def wake(self, driver: GroupDriver | None = None) -> None:
        """Something is to be done, by `driver` or by the node: in this turn of the loop, but
        once."""
        if driver is not None:
            self.touched[driver.id] = driver
        else:
            self.node_touched = True
        if not self._soon and self.running:
            self._soon = True
            self._loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._soon = False
        self.drained()

    def drained(self) -> None:
        """A batch is through: everybody does what there is to do, then sleep until the next."""
        if not self.running:
            return
        node = self.node
        try:
            now = time.monotonic_ns()
            due = NEVER
            touched = self.touched
            while touched:
                self.touched = {}
                for driver in touched.values():
                    try:
                        driver.carry_out(now)
                        if driver.deadline < due:
                            due = driver.deadline
                    except Exception as error:  # of that group: it stops rather than go on wrongly
                        node.faults.fail_group(driver.spec.name, error)
                touched = self.touched
            if self.node_touched:
                self.node_touched = False
                node.carry_out(now)
                due = now
            if due < self._armed or self._armed < now + NEAR_NS:
                self.rearm()
        except Exception as error:  # nobody else's: stop rather than go on wrongly
            node.fail(error)

    # -- the timer -----------------------------------------------------------------------------

    def rearm(self) -> None:
        """One timer, for whatever is due first."""
        due = self._first_due()
        if due != self._armed:
            self._arm(due)

    def due_at(self, due: int) -> None:
        """Something is due then, perhaps before all the rest."""
        if due < self._armed:
            self._arm(due)

    def _first_due(self) -> int:
        due = self.node.next_due()
        for driver in self.drivers.values():
            due = min(due, driver.deadline)
        return due

    def _arm(self, due: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = due
        wait = max(0, due - time.monotonic_ns())
        self._timer = self._loop.call_later(wait / SECOND, self._on_timer)

    def _on_timer(self) -> None:
        self._armed = NEVER
        self._timer = None
        if not self.running:
            return
        node = self.node
        try:
            now = time.monotonic_ns()
            due = self._first_due()
            if due > now:  # what it was for has been settled meanwhile, or the loop is early
                self._arm(due)
                return
            self.node_touched = True
            for driver in list(self.drivers.values()):
                if driver.deadline <= now:
                    self.touched[driver.id] = driver
                    node.faults.guard(driver, driver.on_timer, now)
            node.on_timer(now)
        except Exception as error:
            node.fail(error)
            return
        self.drained()
