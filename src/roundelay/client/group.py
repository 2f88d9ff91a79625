"""`roundelay.join`: a group as an application sees it.

::

    async with roundelay.join("orders", service="resilient", resilience=1) as group:
        receipt = await group.broadcast(b"...")     # returns at commit: receipt.seq, receipt.time
        async for message in group:                 # the agreed order
            print(message.seq, message.sender, message.data)

What a reader does not take stays with the group: leaving the loop, or cancelling whoever waits,
loses nothing, and the next one to read goes on from there (`client.inbox`).

What was said before is replayed from recorders (`record=True`, `roundelay node --record`)::

        async for message in group.replay(since=1000, conference=7, sender="ann"):
            ...                                     # what is recorded, and then it ends
    roundelay.join("orders", since=1000)            # from there on, and then live

The same calls work embedded (a node in this process, the default) and through a daemon
(`node="127.0.0.1:6678"`); with a plain `with` they block (`client.blocking`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from msgspec import structs

from roundelay.client.blocking import BlockingGroup, LoopThread
from roundelay.client.contiguity import Contiguity, check_missing
from roundelay.client.daemon import Client, Daemon
from roundelay.client.inbox import Each, Inbox, InboxReader, check_timeout, cost_of
from roundelay.client.messages import Message, Receipt, synced
from roundelay.client.options import RETENTION, Options
from roundelay.client.replaying import Replaying
from roundelay.client.sending import GroupSending, Over, is_open, why_not_sent, why_out
from roundelay.client.since import since_of
from roundelay.core.errors import (
    ConfigError,
    ConnectionLost,
    GroupClosed,
    Indeterminate,
    SettingsMismatch,
    SlowConsumer,
)
from roundelay.core.position import LIVE, Position, Since
from roundelay.node import node_api
from roundelay.node.frontend.packets import check_mark
from roundelay.node.groups import GroupSpec
from roundelay.node.membership.settings import words_of
from roundelay.node.node import Node
from roundelay.node.node_api import NO_TAG, Batch, Missed, Refusal, View

INBOX_BYTES: Final = 32 << 20
"""What may wait for an application that does not read; beyond it, the application has to say
how it wants to go on (`SlowConsumer`)."""


class Group(GroupSending, Replaying, Client):
    """A group that was joined; made by `join`."""

    def __init__(
        self,
        name: str,
        node_api: Any,
        close: Any = None,
        recorders: int = 0,
        contiguity: Contiguity | None = None,
    ) -> None:
        super().__init__(name, node_api, recorders)
        self._close = close
        self.inbox = Inbox()
        """What has arrived and is not read yet."""
        self.inbox.on_room = self._make_room
        self._holds = False
        """A daemon knows that we can take no more now."""
        self._contiguity = contiguity or Contiguity(name)
        self.inbox.on_given = self._contiguity.given
        """Where the application is in the group's order."""
        self.on_break: Callable[[str], None] = lambda reason: None
        """Called, with the reason, when the connection to a daemon breaks and is made again."""
        self._overflow: SlowConsumer | None = None
        self._leaving: asyncio.Task[None] | None = None

    # -- what the node calls (Subscriber) -------------------------------------------------

    def deliver(self, batch: Batch) -> None:
        if self._overflow is not None:
            return
        if self.inbox.bytes + cost_of(batch) > INBOX_BYTES and self.inbox:
            self._fall_behind(batch)
            return
        error, new = self._contiguity.next_of(batch)
        if error is not None:
            self.inbox.put(error)
        if new is None:
            return
        if not self.conferences:
            self.inbox.put(new)
        else:
            at = 0
            for conference, kind, part in new.bundle.by_mark():
                if conference in self.conferences:
                    seq = new.seq + at if new.seq >= 0 else -1
                    chosen = part.marked(conference, kind)
                    self.inbox.put(structs.replace(new, seq=seq, bundle=chosen))
                at += len(part.sizes)
        if self.inbox.bytes > INBOX_BYTES // 2 and not self._holds:
            self._hold(True)

    def missed(self, missed: Missed) -> None:
        error = self._contiguity.missed(missed)
        if self._contiguity.error is not None:
            self.inbox.close(self._contiguity.error)
        elif error is not None:
            self.inbox.put(error)

    def _make_room(self) -> None:
        """Something was read."""
        if self._holds and not self.full:
            self._hold(False)

    def _hold(self, stop: bool) -> None:
        """Tell a daemon in time: what is on its way still needs room."""
        self._holds = stop
        self._node_api.hold(self.name, stop)

    def _fall_behind(self, batch: Batch) -> None:
        """There is no room: a recorder gives it later, or the application has to be told."""
        if not self._node_api.fell_behind(self, self.name, batch.seq):
            seq = batch.seq if batch.seq >= 0 else None
            self._overflow = SlowConsumer(self.name, seq, INBOX_BYTES)
            self.inbox.close(self._overflow)

    @property
    def full(self) -> bool:
        return self.inbox.bytes > INBOX_BYTES // 8

    def receipt(self, receipt: node_api.Receipt) -> None:
        waiting = self._receipts.pop(receipt.tag, None)
        if waiting is not None and not waiting.done():
            seq = receipt.seq if receipt.seq >= 0 else None
            history = self._view.history if seq is not None else ""
            level = receipt.resilience if receipt.resilience >= 0 else None
            waiting.set_result(
                Receipt(receipt.group, seq, receipt.time, history, receipt.given_up, level)
            )

    def refused(self, refusal: Refusal) -> None:
        if refusal.tag == NO_TAG:  # only a daemon says that: our `join`, or a `post`
            if self._node_api.joined(self.name):
                self._untold = refusal  # the next `post` says it
            else:
                self._end(why_out(self.name, refusal.reason))
            return
        waiting = self._receipts.pop(refusal.tag, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(why_not_sent(self.name, refusal))

    def viewed(self, view: View) -> None:
        self._view = view
        self._contiguity.viewed(view)
        self._changed.set()

    def writable(self, group: str) -> None:
        self._room.set()

    # -- what a daemon calls (client.daemon.Client) ----------------------------------------

    def goes_on(self, group: str, began: Since) -> Since | None:
        return self._contiguity.goes_on(began)

    def returned(self, group: str) -> None:
        if self._holds:
            self._hold(True)
        self._room.set()

    def broke(self, reason: str) -> None:
        """The connection has ended, and the next one is looked for."""
        self.on_break(reason)

    def cut_off(self, group: str, reason: str) -> None:
        self._end(ConnectionLost(f"group {self.name}: {reason}"))

    def _end(self, error: Over) -> None:
        """Nothing more comes, and nothing more can be sent."""
        if self._closed is not None:
            return
        self._closed = error
        self.inbox.close(error)
        self._room.set()
        self._changed.set()
        if isinstance(error, SettingsMismatch) and self.answer_s is not None:
            return  # the daemon is still there, and answers what has crossed its refusal
        for waiting in self._receipts.values():
            if not waiting.done():
                waiting.set_exception(Indeterminate(str(error)))
        self._receipts.clear()

    # -- receiving -------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        """Every message, in the group's order.

        Only our own `leave` ends it; if the node or the connection to it is lost, ConnectionLost
        is raised once everything that had arrived is read.  To stop in between, to cancel whoever
        waits and to read with several loops at once is safe: nothing is lost or given twice.
        """
        return InboxReader(self.inbox)

    def batches(self) -> AsyncIterator[Batch]:
        """Messages as they come, those of one sender together: the fast way to read.

        Otherwise as `async for message in group`."""
        return Each(lambda: self.inbox.following(self.inbox.take_batch))

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message.

        Raises TimeoutError when none came within `timeout` seconds (None: waits for ever; 0: does
        not wait), GroupClosed after `leave`, ConnectionLost when the node is gone,
        MissingMessages in place of what nobody has any more."""
        check_timeout(timeout)
        message = self.inbox.take()
        if message is not None:
            return message
        async with asyncio.timeout(timeout):
            return await self.inbox.following(self.inbox.take)

    @property
    def position(self) -> Position | None:
        """Where to go on (`join(…, since=…)`): the position of the next message that the
        application was not given yet.  None as long as it is not known, and without an order."""
        position = self._contiguity.position
        if position is None or not self.inbox.unread:
            return position
        return structs.replace(position, seq=position.seq - self.inbox.unread)

    @property
    def skipped(self) -> int:
        """With `missing="skip"`: how many messages nobody had any more."""
        return self._contiguity.skipped

    # -- membership ------------------------------------------------------------------------

    @property
    def history(self) -> str:
        """The id of the group's history that positions belong to; empty while it is not known."""
        return self._view.history

    def views(self) -> AsyncIterator[View]:
        """The present view, then each one that follows; it ends as `async for` does."""
        known: View | None = None

        async def following() -> View:
            nonlocal known
            known = await self.changed_view(known)
            return known

        return Each(following)

    async def ready(self, members: int = 1) -> View:
        """Wait until the group confirms broadcasts and has that many members.

        A group that nobody else is in yet does not, unless it was founded with `min_members=1`."""
        async for view in self.views():
            if is_open(view) and len(view.members) >= members:
                return view
        self._check_open()
        raise AssertionError("views end with the group only")

    # -- life ------------------------------------------------------------------------------

    async def leave(self) -> None:
        """End the membership.  What had arrived can still be read.

        It goes on to the end when whoever waits for it is cancelled."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())
        await asyncio.shield(self._leaving)

    async def _leave(self) -> None:
        lost = self._closed is not None
        self._end(GroupClosed(f"group {self.name}: left"))
        await self._end_replays()
        if not lost:
            self._node_api.leave(self, self.name)
            self._node_api.gone(self)
        if self._close is not None:
            await self._close()


class Joining:
    """What `join` returns: awaitable, and a context manager for `async with` or plain `with`."""

    def __init__(self, open_group: Any) -> None:
        self._open = open_group
        self._group: Group | None = None

    def __await__(self) -> Any:
        return self._open().__await__()

    async def __aenter__(self) -> Group:
        self._group = await self._open()
        return self._group

    async def __aexit__(self, *exception: object) -> None:
        if self._group is not None:
            await self._group.leave()

    # -- without asyncio -------------------------------------------------------------------

    def __enter__(self) -> BlockingGroup:
        thread = LoopThread()
        try:
            self._blocking = BlockingGroup(thread, thread.call(self._open()))
        except BaseException:
            thread.stop()
            raise
        return self._blocking

    def __exit__(self, *exception: object) -> None:
        self._blocking.leave()


def join(group: str, **options: Any) -> Joining:
    """Join a group of processes that share one history.

    service     resilient (default), total, partial, selective, reliable, journal, fifo
    resilience  L: members that may fail without a committed message being lost; without it, as the
                group has it, or what its size allows, up to 2
    min_members nothing is confirmed while the group has fewer; without it, as it has it, or 2
    members     names of all members, if they are known beforehand; needs `name` and `dir`
    stage       when to deliver: accepted, preacknowledged, acknowledged (total, partial, selective)
    hub         service total: one channel through a hub that the first member runs
    config      services journal and wide: the file that says who plays which role (docs/grsb.md,
                docs/wide.md)
    conferences only messages of these, which are numbers; none named: all
    name        of this node; empty: made up, new each time
    dir         where this member keeps what must survive a restart
    interface   name or address of the network interface; empty: the first where multicast works
    multicast   HOST:PORT of the medium
    seeds       HOST:PORT of other nodes, for networks without multicast
    advertise   HOST:PORT under which others reach this node
    listen      HOST:PORT of this node itself, with seeds
    via         HOST:PORT of a switch to cross (`roundelay switch`)
    key         file with the shared secret; without it, that of this user
    insecure    datagrams in the clear
    timeout     seconds after which `broadcast` raises Indeterminate, and after which a lost
                connection to a daemon is given up (ConnectionLost)
    since       where this application goes on: a position (`group.position`, its text, or a bare
                number), a datetime or "start"; what is past comes from the memory of members or a
                recorder, then it is live, with no gap.  NoSuchPosition is raised by reading if the
                position is of another history of the group, or of its future
    missing     "raise" (default) MissingMessages in place of what nobody has any more, or "skip" it
    record      True: record the group in `dir`; or a filter, such as "conference=7,sender=ann":
                of everything else only the heads are kept
    fsync       of the record: always (default), interval or os (docs/recorder.md)
    keep_bytes  of the record: the oldest part of it goes when it takes more; 0 (default): no limit
    keep_s      the same, for what was recorded longer ago than so many seconds
    keep_conference_s  as {7: 86400}: of older records of conference 7 only the heads are kept
    durability  committed (default); synced: `broadcast` returns when L + 1 members have synced the
                message; recorded: when recorders have
    recorders   how many of them, 1 by default
    log_level   debug, info, warning (default) or error: what goes to the logger `roundelay.node`
    node        HOST:PORT or unix:PATH of a daemon to go through, instead of a node in this process
    """
    known = Options.__struct_fields__
    for option, value in options.items():
        if option not in known:
            raise ConfigError(option, value, f"an option of {', '.join(known)}")
    chosen = Options(**options)
    spec = chosen.spec(group)
    synced(chosen.durability, chosen.recorders, 0)
    check_missing(chosen.missing)
    since = None if chosen.since is None else since_of(chosen.since)
    if chosen.record is not False and chosen.node:
        allowed = "none through a daemon: start that with --record"
        raise ConfigError("record", chosen.record, allowed)
    for option in RETENTION:
        if chosen.record is False and option in options:
            raise ConfigError(option, options[option], "only with record=True, or a filter")

    async def open_group() -> Group:
        if chosen.node:
            return await _through_daemon(chosen, spec, since)
        return await _embedded(chosen, spec, since)

    return Joining(open_group)


def _group(
    options: Options, spec: GroupSpec, node_api: Any, close: Any, since: Since | None
) -> Group:
    recorders = synced(options.durability, options.recorders, 0)
    start = None if since is None or since.time else Position(since.history, since.seq)
    timed = since is not None and since.time > 0
    contiguity = Contiguity(spec.name, start, options.missing, timed)
    group = Group(spec.name, node_api, close, recorders, contiguity)
    group.conferences = frozenset(options.conferences)
    for conference in group.conferences:
        check_mark(conference, 0)
    return group


async def _embedded(options: Options, spec: GroupSpec, since: Since | None) -> Group:
    node = Node(options.node_config(spec))
    group = _group(options, spec, node, node.stop, since)
    group.hosts_node = True
    node.on_fatal = lambda error: group.cut_off(spec.name, f"stopped: {error}")
    try:
        await node.start()
        node.recorders.check(spec.name)
        node.join(group, spec.name, since or LIVE)
    except BaseException:
        await node.stop()
        raise
    return group


async def _through_daemon(options: Options, spec: GroupSpec, since: Since | None) -> Group:
    daemon = await Daemon.connect(options.node, name=options.name, patience_s=options.timeout)
    group = _group(options, spec, daemon, daemon.close, since)
    group.answer_s = options.timeout
    daemon.on_break = group.broke
    try:
        wishes = spec if words_of(spec) else None
        daemon.join(group, spec.name, since or LIVE, wishes)
        if wishes is not None:  # which may be refused
            async with asyncio.timeout(options.timeout):
                await group.changed_view(group.view)
    except BaseException:
        await daemon.close()
        raise
    return group


__all__ = ["Group", "Joining", "Message", "SlowConsumer", "join"]
