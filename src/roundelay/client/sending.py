"""The sending side of a `Group`, and how a group ends for its application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final

from roundelay.client.messages import Receipt, bundle_of, synced
from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.errors import (
    ConfigError,
    ConnectionLost,
    GroupClosed,
    GroupFailed,
    Indeterminate,
    NoRecorder,
    QueueFull,
    Refused,
    SettingsMismatch,
)
from roundelay.node.node_api import NO_TAG, Refusal, Send, View

HEAR_S: Final = 2.0
"""How long after `join` a recorder may still be on its way to be heard of."""


Over = GroupClosed | ConnectionLost | GroupFailed | Refused | SettingsMismatch
"""Why a group is over for its application."""


def why_out(group: str, reason: str) -> GroupFailed | Refused | SettingsMismatch:
    """What is raised to an application whose node says why it is not in the group."""
    failed = reason.removeprefix("failed: ")
    mismatch = SettingsMismatch.told(reason)
    if mismatch is not None:
        return mismatch
    return Refused(f"group {group}: {reason}") if failed == reason else GroupFailed(group, failed)


def why_not_sent(group: str, refusal: Refusal) -> Indeterminate | Refused | SettingsMismatch:
    """What is raised to the sender of a message that was refused."""
    about = f"group {group}: "  # a daemon may have said it already
    text = about + refusal.reason.removeprefix(about)
    if refusal.indeterminate:
        return Indeterminate(text)
    return SettingsMismatch.told(refusal.reason) or Refused(text)


def is_open(view: View) -> bool:
    """Whether broadcasts are confirmed: the group works, and has as many members as it wants."""
    return view.state.startswith("open") and not view.state.startswith("open: waiting")


class JoinedGroup:
    """What a `Group` knows of itself: where it is, who is in it, and whether it is over."""

    def __init__(self, name: str, node_api: Any) -> None:
        self.name = name
        """The full name, with the prefix of its protocol."""
        self._node_api = node_api
        self._view = View(name, "0", (), "looking for members")
        self._changed = asyncio.Event()
        self._closed: Over | None = None
        """Why it is over; GroupClosed: the application has left."""

    @property
    def view(self) -> View:
        """Who is in the group, as far as this member knows."""
        return self._view

    async def changed_view(self, known: View | None) -> View:
        """The present view as soon as it is another one than `known`."""
        while self._view is known:
            self._check_open()
            self._changed.clear()
            await self._changed.wait()
        self._check_open()
        return self._view

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)


class GroupSending(JoinedGroup):
    """The part of a `Group` that sends."""

    def __init__(self, name: str, node_api: Any, recorders: int) -> None:
        super().__init__(name, node_api)
        self._recorders = recorders
        """How many of them must have synced a message before its receipt."""
        self.answer_s: float | None = None
        """How long a receipt may take; None: our own node sees to that."""
        self._joined_at = time.monotonic()
        self._receipts: dict[int, asyncio.Future[Receipt]] = {}
        self._tags = count()
        self._room = asyncio.Event()
        self._room.set()
        self._turn = asyncio.Lock()
        """Of those who wait for room or for a recorder, in the order of their calls."""
        self._untold: Refusal | None = None

    async def broadcast(
        self,
        data: bytes,
        *,
        conference: int = 0,
        kind: int = 0,
        durability: str | None = None,
        recorders: int | None = None,
    ) -> Receipt:
        """Send `data` to every member; returns when its place in the order is final.

        `conference` and `kind` are numbers that travel with the message: recorders and replays
        select by them, and `message.conference`, `message.kind` have them.  With
        `durability="recorded"` it returns when `recorders` of the group's recorders (1 unless
        said otherwise) have it on disk, with "synced" when L + 1 members do (docs/durability.md);
        without, or with "committed", as `join` was told.

        Raises Indeterminate when the group cannot say in time (a minority, a partition): the
        message may still be delivered later.  Raises NoRecorder, and sends nothing, when fewer
        recorders are known than have to sync it.
        """
        bundle = bundle_of([data], "data", conference, kind)
        count = synced(durability, recorders, self._recorders)
        return await self.submit(bundle, recorders=count)

    async def broadcast_many(
        self,
        messages: Sequence[bytes],
        *,
        conference: int = 0,
        kind: int = 0,
        durability: str | None = None,
        recorders: int | None = None,
    ) -> Receipt:
        """Send several messages, in order; the receipt is that of the last one."""
        bundle = bundle_of(messages, "messages", conference, kind)
        if not 0 < len(bundle) <= MESSAGES_MAX:
            raise ConfigError("messages", len(bundle), f"1 to {MESSAGES_MAX} at once")
        count = synced(durability, recorders, self._recorders)
        return await self.submit(bundle, recorders=count)

    async def broadcast_unit(
        self,
        parts: Sequence[bytes],
        *,
        conference: int = 0,
        kind: int = 0,
        durability: str | None = None,
        recorders: int | None = None,
    ) -> Receipt:
        """Send messages that take effect together, or not at all (services journal and wide).

        Each part has its own place in the order, but they are delivered together, where the last
        of them has its place; `message.unit` says which is `start`, `middle` and `end`, and all
        have its `seq`.  If we do not live to send the last one, nobody is told the others.
        """
        bundle = bundle_of(parts, "parts", conference, kind)
        if not 0 < len(bundle) <= MESSAGES_MAX:
            raise ConfigError("parts", len(bundle), f"1 to {MESSAGES_MAX} of a unit")
        count = synced(durability, recorders, self._recorders)
        return await self.submit(bundle, recorders=count, unit=True)

    async def send(
        self, data: bytes, to: Iterable[str], *, conference: int = 0, kind: int = 0
    ) -> Receipt:
        """Send `data` to the members named (service `selective`)."""
        bundle = bundle_of([data], "data", conference, kind)
        return await self.submit(bundle, to=tuple(to))

    async def send_someone(self, data: bytes) -> Receipt:
        """Send `data` to exactly one application of one member, whichever."""
        return await self.submit(bundle_of([data]), someone=True)

    async def submit(self, bundle: Bundle, **how: Any) -> Receipt:
        """What all of these do; `how` is as `Send` has it.  Bundles go out in the order of
        the calls, also of those that wait for room."""
        tag = next(self._tags)
        waiting: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._receipts[tag] = waiting
        try:
            await self._post(bundle, tag, **how)
            if self.answer_s is None:
                return await waiting
            await asyncio.wait([waiting], timeout=self.answer_s)
            if not waiting.done():
                why = "" if is_open(self._view) else f" ({self._view.state})"
                raise Indeterminate(
                    f"group {self.name}: the node has not answered in {self.answer_s:g} s{why}; "
                    "it may still be delivered"
                )
            return waiting.result()
        finally:
            self._receipts.pop(tag, None)
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # seen: of one that was never sent, the caller hears otherwise

    async def post(self, messages: Sequence[bytes], *, conference: int = 0, kind: int = 0) -> None:
        """Send messages without waiting for their commit; waits while the queue is full.

        After the connection to a daemon broke, the next call raises Indeterminate, once, and sends
        nothing: nobody knows what became of what was posted before."""
        await self._post(bundle_of(messages, "messages", conference, kind), NO_TAG)

    def in_doubt(self, group: str, reason: str) -> None:
        self._untold = self._untold or Refusal(self.name, NO_TAG, reason, True)

    def _tell_earlier(self, tag: int) -> None:
        """What went wrong with a `post` is said by the next one; that it was refused, by anything
        that is sent next."""
        untold = self._untold
        if untold is None or (untold.indeterminate and tag != NO_TAG):
            return
        self._untold = None
        if untold.indeterminate:
            raise Indeterminate(
                f"group {self.name}: earlier messages may be delivered or not: {untold.reason}"
            )
        raise Refused(f"group {self.name}: an earlier message was refused: {untold.reason}")

    async def _post(self, bundle: Bundle, tag: int, **how: Any) -> None:
        send = Send(self.name, bundle, tag, **how)
        async with self._turn:  # nobody overtakes one who waits
            while True:
                self._check_open()
                self._tell_earlier(tag)
                try:
                    self._node_api.send(self, send)
                    return
                except NoRecorder:
                    if time.monotonic() > self._joined_at + HEAR_S:
                        raise
                    await asyncio.sleep(0.02)  # it may not have been heard of yet
                except QueueFull:
                    self._room.clear()
                    await self._room.wait()
