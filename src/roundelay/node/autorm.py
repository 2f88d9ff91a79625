"""AutoRM at a node: the Beamon engine, its local applications, and who gets what."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.bundle import Bundle
from roundelay.core.errors import QueueFull
from roundelay.node.directory import Directory
from roundelay.node.switchboard import NO_TAG, Application, Batch, Receipt, View


class AutoRm:
    """The AutoRM groups of one node, and its environment."""

    def __init__(
        self, uuid: bytes, config: AutoRmConfig, rng: Random, now: int, directory: Directory
    ) -> None:
        self.beamon: Any = Beamon(uuid, config, rng, now)
        self.directory = directory
        self.applications: dict[str, dict[int, Application]] = {}
        self.tags: dict[int, tuple[Application, str, int]] = {}
        self.next_tag = 0
        self.turns: dict[str, int] = {}
        self.turned_away: dict[tuple[int, str], Application] = {}
        self.shown: dict[str, tuple[str, ...]] = {}

    # -- applications ----------------------------------------------------------------------

    def join(self, application: Application, group: str, now: int) -> None:
        joined = self.applications.get(group, {})
        if id(application) in joined:
            return
        self.beamon.join(group, now, local=len(joined) + 1)
        self.applications.setdefault(group, {})[id(application)] = application
        application.viewed(self.view(group))

    def leave(self, application: Application, group: str, now: int) -> None:
        joined = self.applications.get(group, {})
        if joined.pop(id(application), None) is None:
            return
        if joined:
            self.beamon.join(group, now, local=len(joined))
        else:
            del self.applications[group]
            self.turns.pop(group, None)
            self.shown.pop(group, None)
            self.beamon.leave(group, now)

    def gone(self, application: Application, now: int) -> None:
        for group in list(self.applications):
            self.leave(application, group, now)
        for tag in [tag for tag, (who, _, _) in self.tags.items() if who is application]:
            del self.tags[tag]
        for key in [key for key in self.turned_away if key[0] == id(application)]:
            del self.turned_away[key]

    def send(
        self,
        application: Application,
        group: str,
        bundle: Bundle,
        tag: int,
        someone: bool,
        now: int,
    ) -> None:
        """Queue each message of `bundle`; the tag is that of the last one."""
        beamon = self.beamon
        joined = id(application) in self.applications.get(group, {})
        messages = list(bundle)
        try:
            for place, message in enumerate(messages, 1):
                last = place == len(messages)
                inner = self._tag(application, group, tag) if last else -1
                if someone:
                    beamon.send_someone(group, message, now, tag=inner, sender_joined=joined)
                else:
                    beamon.send_everyone(group, message, now, tag=inner)
        except Exception as error:
            self.tags.pop(self.next_tag - 1, None)
            if isinstance(error, QueueFull):
                self.turned_away[(id(application), group)] = application
            raise

    def _tag(self, application: Application, group: str, tag: int) -> int:
        inner = self.next_tag
        self.next_tag += 1
        self.tags[inner] = (application, group, tag)
        return inner

    # -- what the engine wants -------------------------------------------------------------

    def carry_out(self, now: int) -> list[Any]:
        """Hand over deliveries and receipts; what must be sent is returned."""
        sends: list[Any] = []
        while True:
            effects = self.beamon.take()
            if not effects.sends and not effects.deliveries and not effects.notices:
                break
            sends += effects.sends
            for delivery in effects.deliveries:
                self._deliver(delivery)
            for notice in effects.notices:
                if notice.kind == "sent":
                    self._sent(notice.info[0])
                else:
                    self._show_views()
        if self.turned_away and self.beamon.queued_bytes * 2 <= self.beamon.config.queue_bytes:
            waiting = list(self.turned_away.items())
            self.turned_away.clear()
            for (_, group), application in waiting:
                application.writable(group)
        return sends

    def _deliver(self, delivery: Any) -> None:
        joined = self.applications.get(delivery.group)
        if not joined:
            return
        name = self.directory.name_of(delivery.source)
        batch = Batch(delivery.group, -1, name, time.time_ns(), Bundle.of(delivery.data))
        if not delivery.one_of:
            for application in list(joined.values()):
                application.deliver(batch)
            return
        sender = self.tags.get(delivery.tag, (None,))[0]
        candidates = [one for one in joined.values() if one is not sender] or list(joined.values())
        turn = self.turns.get(delivery.group, 0)
        self.turns[delivery.group] = turn + 1
        candidates[turn % len(candidates)].deliver(batch)

    def _sent(self, inner: int) -> None:
        application, group, tag = self.tags.pop(inner, (None, "", NO_TAG))
        if application is not None and tag != NO_TAG:
            application.receipt(Receipt(group, tag, -1, time.time_ns()))

    # -- what is known ---------------------------------------------------------------------

    def view(self, group: str) -> View:
        others = tuple(sorted(self.directory.name_of(one) for one in self.beamon.members(group)))
        mine = (self.directory.name_of(self.beamon.uuid),) if group in self.applications else ()
        return View(group, str(len(others) + len(mine)), mine + others, "open")

    def _show_views(self) -> None:
        for group, joined in self.applications.items():
            view = self.view(group)
            if self.shown.get(group) != view.members:
                self.shown[group] = view.members
                for application in list(joined.values()):
                    application.viewed(view)
