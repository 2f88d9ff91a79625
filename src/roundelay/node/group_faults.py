"""An error in one group fails that group: the others, and the node, do not notice.

Whatever goes wrong while a group is opened or driven (its disk is full, no file can be opened, a
broken invariant of its engine) ends there: its engines are dropped, its applications are told, and
`FailedGroup` takes its place, which says why in `status` and is not mentioned to other nodes: to
them this member is gone.  Whoever joins the group tries to open it again, and so does the node by
itself if it was told to host or to record it.

Only the loss of the medium stops a node.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import NEVER, SECOND
from roundelay.core.errors import (
    ConfigError,
    GroupFailed,
    InvariantBroken,
    RoundelayError,
    UsageError,
)
from roundelay.core.position import LIVE, Since
from roundelay.node.driver.outbox import Outbox
from roundelay.node.group_host import GroupDriver, GroupHost
from roundelay.node.groups import GroupSpec, family_of, plain_spec
from roundelay.node.node_api import NO_TAG, Refusal, Send, Subscriber, View
from roundelay.node.recording.handover import CatchUp, application_of

if TYPE_CHECKING:
    from roundelay.node.node import Node

RETRY_NS: Final = 5 * SECOND
RETRY_MOST_NS: Final = 60 * SECOND
"""How long a node waits before it opens a failed group again, at first and at most."""
ASKED_NS: Final = SECOND
"""How soon after it failed one who sends without having joined may have it tried again."""


def reason_of(error: BaseException) -> str:
    """One line for people."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    if isinstance(error, RoundelayError) and not isinstance(error, InvariantBroken):
        return str(error)
    return f"{type(error).__name__}: {error}"


class FailedGroup(GroupHost):
    """The place of a group that has failed; it holds nothing but what is to be shown."""

    closed = True
    deadline = NEVER
    """When the node opens it again by itself."""

    def __init__(self, node: Node, spec: GroupSpec, error: BaseException, tries: int) -> None:
        self.node = node
        self.spec = spec
        self.error = error
        self.reason = reason_of(error)
        self.state = f"failed: {self.reason}"
        self.outbox = Outbox(spec.name, 0, 0, 0)
        self.applications = {}
        self.recorders: dict[int, Any] = {}
        """Recorders here: they go on when the group does."""
        self.tries = tries
        self.at = time.monotonic_ns()

    def failure(self) -> RoundelayError:
        """For whoever wants something of the group."""
        if isinstance(self.error, UsageError):
            return self.error
        return GroupFailed(self.spec.name, self.reason)

    def on_timer(self, now: int) -> None:
        """See whether the cause is gone."""
        self.deadline = NEVER
        with suppress(RoundelayError):  # it is in the new place, and in the log
            self.node.group_host(self.spec.name)

    def join(self, application: Subscriber, since: Since) -> None:
        raise self.failure()

    def send(self, application: Subscriber, send: Send) -> None:
        """One who did not even join may have the group tried again, if it failed a while ago."""
        node, name = self.node, self.spec.name
        if time.monotonic_ns() - self.at <= ASKED_NS:
            raise self.failure()
        if self.spec.family.own_packets:
            del node.group_hosts[name]
        else:
            node.group_host(name)
        node.send(application, send)

    def agree(self, wishes: GroupSpec) -> None:
        raise self.failure()

    def part(self, application: Subscriber, now: int) -> None:
        self.recorders.pop(id(application), None)

    def view(self) -> View:
        return View(self.spec.name, "0", (), self.state)

    def status(self) -> dict[str, object]:
        return {
            "group": self.spec.name,
            "service": self.spec.service,
            "protocol": self.spec.protocol,
            "state": self.state,
            "roster": [],
            "members": [],
            "applications": 0,
        }


class Faults:
    """The boundary between the groups of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    # -- a group that is opened --------------------------------------------------------------

    def open(self, kind: type[Any], spec: GroupSpec) -> GroupHost:
        """A host of that kind for the group.  If that fails, nothing of it is left but why."""
        node, name = self.node, spec.name
        host: Any = object.__new__(kind)  # known here also if it is never finished
        try:
            host.__init__(node, spec, time.monotonic_ns())
        except Exception as error:
            self._dismantle(name, host)
            before = self._failed(name)
            if before is not None and before.deadline != NEVER and isinstance(error, ConfigError):
                raise  # one application's wish, and not why the group has failed
            failed = FailedGroup(node, spec, error, 0 if before is None else before.tries + 1)
            failed.entered = list(getattr(host, "entered", ()))
            if before is not None:
                failed.recorders = before.recorders
            node.group_hosts[name] = failed
            self._report(failed, before)
            self._plan(name)  # an application that asks does not end the node's own tries
            raise failed.failure() from error
        before = self._failed(name)
        node.group_hosts[name] = host
        if before is not None:
            node.log("warning", "group.opened_again", group=name, after=before.reason)
            for recorder in before.recorders.values():
                host.join(recorder, Since(recorder.next) if recorder.ordered else LIVE)
        opened: GroupHost = host
        return opened

    def make_room(self, most: int) -> bool:
        """Whether one more group can be hosted: of those that have failed the oldest makes room,
        unless the node was told to have it."""
        groups = self.node.group_hosts
        while len(groups) >= most:
            failed = [
                host
                for host in groups.values()
                if isinstance(host, FailedGroup)
                and host.spec.name not in self.node.specs
                and not host.recorders
            ]
            if not failed:
                return False
            del groups[min(failed, key=lambda host: host.at).spec.name]
        return True

    def entered(self, name: str) -> list[str]:
        """Epochs that a member which failed here was in: the next one is not new to them."""
        before = self._failed(name)
        return [] if before is None else list(before.entered)

    def _failed(self, name: str) -> FailedGroup | None:
        host = self.node.group_hosts.get(name)
        return host if isinstance(host, FailedGroup) else None

    @contextmanager
    def joining(self, name: str) -> Iterator[None]:
        """Somebody joins: what is wrong with the wish is told, what is wrong with the group fails
        it as well."""
        try:
            yield
        except Exception as error:
            if isinstance(error, RoundelayError) and not isinstance(error, InvariantBroken):
                raise
            self.fail_group(name, error)
            raise GroupFailed(name, reason_of(error)) from error

    # -- a group that runs -------------------------------------------------------------------

    def fail_group(self, name: str, error: BaseException) -> None:
        """The group has failed: drop its engines, tell its applications, keep the reason."""
        node = self.node
        host: Any = node.group_hosts.get(name)
        if isinstance(host, FailedGroup):
            return
        spec = host.spec if host is not None else node.specs.get(name) or plain_spec(name)
        failed = FailedGroup(node, spec, error, 0)
        failed.entered = list(getattr(host, "entered", ()))
        applications = self._applications(name, host)
        self._dismantle(name, host)
        if host is not None:
            with suppress(Exception):
                host.outbox.abandon(failed.state)
        node.group_hosts[name] = failed
        self._report(failed)
        failed.recorders = {id(one): one for one in applications if one.is_recorder}
        view, refusal = failed.view(), Refusal(name, NO_TAG, failed.state, False)
        for application in applications:
            try:
                application.viewed(view)
                if id(application) not in failed.recorders:
                    application.refused(refusal)
            except Exception as fault:  # it is not worth more than the others
                node.log("error", "application.failed", group=name, reason=reason_of(fault))
        if not any(application.hosts_node for application in applications):
            self._plan(name)  # else the node is there for one who was just told
        node.say_soon(time.monotonic_ns())

    def guard(
        self, part: GroupHost | GroupDriver, call: Callable[..., None], *arguments: Any
    ) -> None:
        """Call something of a group's."""
        try:
            call(*arguments)
        except Exception as error:
            self.fail_group(part.spec.name, error)

    def guard_aside(self, what: str, call: Callable[..., None], *arguments: Any) -> None:
        """Call something that no group hangs on."""
        try:
            call(*arguments)
        except Exception as error:
            self.node.drop(f"fault of the {what}")
            where = "".join(traceback.format_exception(error))
            self.node.log("error", f"{what}.fault", reason=reason_of(error), where=where)

    def _applications(self, name: str, host: Any) -> list[Any]:
        """Those of the group; each is taken out of it."""
        node = self.node
        if host is None and family_of(name).own_packets:
            subscribers = dict(node.autorm.applications.get(name, {}))
            for subscriber in subscribers.values():
                with suppress(Exception):
                    node.autorm.leave(application_of(subscriber), name, time.monotonic_ns())
        else:
            subscribers = dict(getattr(host, "applications", {}))
        for subscriber in subscribers.values():
            if isinstance(subscriber, CatchUp):
                with suppress(Exception):
                    subscriber.stop()
        return list(map(application_of, subscribers.values()))

    def _dismantle(self, name: str, host: Any) -> None:
        """Let go of engines, files and sockets; what is broken may not even close."""
        node = self.node
        drivers = node.schedule.drivers.values()
        for driver in [driver for driver in drivers if driver.spec.name == name]:
            node.schedule.unregister(driver)
            if driver is not host:
                self._close(driver)
        if host is None:
            return
        with suppress(Exception):
            host.abandon()
        for part in ("store", "journal", "line"):
            self._close(getattr(host, part, None))

    def _close(self, part: Any) -> None:
        if part is not None:
            with suppress(Exception):
                part.close()

    def _plan(self, name: str) -> None:
        """Groups that the node was told to host or to record are opened again by itself."""
        failed = self._failed(name)
        if failed is None or isinstance(failed.error, ConfigError):
            return
        if name in self.node.specs or failed.recorders:
            failed.deadline = failed.at + min(RETRY_MOST_NS, RETRY_NS << min(failed.tries, 8))
            self.node.wake()

    def _report(self, failed: FailedGroup, before: FailedGroup | None = None) -> None:
        """Once for each reason: a disk that is full stays so for a while."""
        if before is not None and before.reason == failed.reason:
            return
        details: dict[str, object] = {}
        error = failed.error
        if not isinstance(error, OSError | RoundelayError) or isinstance(error, InvariantBroken):
            details["where"] = "".join(traceback.format_exception(error))
        self.node.log(
            "error", "group.failed", group=failed.spec.name, reason=failed.reason, **details
        )
