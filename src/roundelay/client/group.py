"""`roundelay.join`: a group as an application sees it.

::

    async with roundelay.join("orders", service="resilient", resilience=1) as group:
        receipt = await group.broadcast(b"...")     # returns at commit: receipt.seq, receipt.time
        async for message in group:                 # the agreed order
            print(message.seq, message.sender, message.data)

What was said before is replayed from recorders (`record=True`, `roundelay node --record`)::

        async for message in group.replay(since=1000, conference=7, sender="ann"):
            ...                                     # what is recorded, and then it ends
    roundelay.join("orders", since=1000)            # from there on, and then live

The same calls work embedded (a node in this process, the default) and through a daemon
(`node="127.0.0.1:6678"`); with a plain `with` they block (`client.blocking`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.client.blocking import BlockingGroup, LoopThread
from roundelay.client.messages import COMMITTED, Message, marked, messages_of, synced
from roundelay.client.replaying import Replaying
from roundelay.client.since import Moment, place_of
from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.engine import SECOND
from roundelay.core.errors import (
    ConfigError,
    ConnectionLost,
    GroupClosed,
    Indeterminate,
    NoRecorder,
    QueueFull,
    Refused,
    SlowConsumer,
)
from roundelay.journal.journal import ALWAYS, JournalConfig
from roundelay.node.groups import (
    AUTORM,
    CONFIGURED,
    SERVICES,
    GroupSpec,
    check_members,
    check_roles,
    full_name,
    protocol_of,
)
from roundelay.node.interfaces import parse_address
from roundelay.node.keys import load_secret
from roundelay.node.node import Node, NodeConfig
from roundelay.node.outbox import cost
from roundelay.node.probe import MULTICAST, Choice
from roundelay.node.recorder import Filter, RecordConfig, parse_filter
from roundelay.node.switchboard import NO_TAG, Batch, Receipt, Refusal, View
from roundelay.wire.frontend_replay import check_mark

INBOX_BYTES: Final = 32 << 20
"""What may wait for an application that does not read; beyond it, the application has to say
how it wants to go on (`SlowConsumer`)."""
BATCH_COST: Final = 128
"""What a batch takes beside its messages, about."""


HEAR_S: Final = 2.0
"""How long after `join` a recorder may still be on its way to be heard of."""


class Group(Replaying):
    """A group that was joined; made by `join`."""

    def __init__(
        self,
        name: str,
        switchboard: Any,
        close: Any = None,
        since: int | None = None,
        recorders: int = 0,
    ) -> None:
        self.name = name
        """The full name, with the prefix of its protocol."""
        self._switchboard = switchboard
        self._close = close
        self._inbox: deque[Batch] = deque()
        self._inbox_bytes = 0
        self._since = since or 0
        """The application has everything before this position."""
        self.conferences: frozenset[int] = frozenset()
        """Only messages of these are delivered; empty: all."""
        self.hosts_node = False
        """The node is there for us alone: it may have other roles than to serve us."""
        self._recorders = recorders
        """How many of them must have synced a message before its receipt."""
        self._joined_at = time.monotonic()
        self._overflow: SlowConsumer | None = None
        self._arrived = asyncio.Event()
        self._receipts: dict[int, asyncio.Future[Receipt]] = {}
        self._tag = 0
        self._room = asyncio.Event()
        self._room.set()
        self._view = View(name, "0", (), "looking for members")
        self._changed = asyncio.Event()
        self._closed: str | None = None
        self._untold: Refusal | None = None

    # -- what the node calls (Application) -------------------------------------------------

    def deliver(self, batch: Batch) -> None:
        if not self.conferences:
            self._deliver(batch)
            return
        at = 0
        for conference, kind, part in batch.bundle.by_mark():
            if conference in self.conferences:
                seq = batch.seq + at if batch.seq >= 0 else -1
                self._deliver(structs.replace(batch, seq=seq, bundle=part.marked(conference, kind)))
            at += len(part.sizes)

    def _deliver(self, batch: Batch) -> None:
        if self._overflow is not None:
            return
        if 0 <= batch.seq < self._since:
            # The node's disk knew less than the application: it is told only what is new to it.
            known = self._since - batch.seq
            if known >= len(batch.bundle.sizes):
                return
            rest = batch.bundle.part(known, len(batch.bundle.sizes))
            batch = structs.replace(batch, seq=self._since, bundle=rest)
        size = cost(batch.bundle) + BATCH_COST
        if self._inbox_bytes + size > INBOX_BYTES and self._inbox:
            self._fall_behind(batch)
        else:
            self._inbox_bytes += size
            self._inbox.append(batch)
        self._arrived.set()

    def _fall_behind(self, batch: Batch) -> None:
        """There is no room: a recorder gives it later, or the application has to be told."""
        later = getattr(self._switchboard, "fell_behind", None)
        if later is None or not later(self, self.name, batch.seq):
            seq = batch.seq if batch.seq >= 0 else None
            self._overflow = SlowConsumer(self.name, seq, INBOX_BYTES)

    @property
    def full(self) -> bool:
        """So much is to be read that nothing of the past should be added to it."""
        return self._inbox_bytes > INBOX_BYTES // 8

    def receipt(self, receipt: Receipt) -> None:
        waiting = self._receipts.pop(receipt.tag, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(receipt)

    def refused(self, refusal: Refusal) -> None:
        if refusal.tag == NO_TAG:  # only a daemon says that: our `join`, or a `post`
            if self._switchboard.joined(self.name):
                self._untold = refusal  # the next `post` says it
            else:
                self.disconnected(refusal.reason)
            return
        waiting = self._receipts.pop(refusal.tag, None)
        if waiting is not None and not waiting.done():
            kind = Indeterminate if refusal.indeterminate else Refused
            waiting.set_exception(kind(f"group {self.name}: {refusal.reason}"))

    def viewed(self, view: View) -> None:
        self._view = view
        self._changed.set()
        self._changed = asyncio.Event()

    def writable(self, group: str) -> None:
        self._room.set()

    def disconnected(self, reason: str) -> None:
        """The node is gone."""
        self._closed = reason
        self._arrived.set()
        self._room.set()
        self._changed.set()
        for waiting in self._receipts.values():
            if not waiting.done():
                waiting.set_exception(Indeterminate(f"group {self.name}: {reason}"))
        self._receipts.clear()

    # -- sending ---------------------------------------------------------------------------

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
        said otherwise) have it on disk; without, or with "committed", as `join` was told.

        Raises Indeterminate when the group cannot say in time (a minority, a partition): the
        message may still be delivered later.  Raises NoRecorder, and sends nothing, when fewer
        recorders are known than have to sync it.
        """
        bundle = marked(Bundle.of(data), conference, kind)
        return await self._send(bundle, None, False, self._synced(durability, recorders))

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
        if not 0 < len(messages) <= MESSAGES_MAX:
            raise ConfigError("messages", len(messages), f"1 to {MESSAGES_MAX} at once")
        bundle = marked(Bundle.of(*messages), conference, kind)
        return await self._send(bundle, None, False, self._synced(durability, recorders))

    async def send(
        self, data: bytes, to: Iterable[str], *, conference: int = 0, kind: int = 0
    ) -> Receipt:
        """Send `data` to the members named (service `selective`)."""
        return await self._send(marked(Bundle.of(data), conference, kind), tuple(to), False)

    async def send_someone(self, data: bytes) -> Receipt:
        """Send `data` to exactly one application of one member, whichever."""
        return await self._send(Bundle.of(data), None, True)

    def _synced(self, durability: str | None, recorders: int | None) -> int:
        """How many recorders a receipt waits for."""
        return synced(durability, recorders, self._recorders)

    async def _send(
        self, bundle: Bundle, to: tuple[str, ...] | None, someone: bool, recorders: int = 0
    ) -> Receipt:
        tag = self._tag
        self._tag += 1
        waiting: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._receipts[tag] = waiting
        try:
            await self._post(bundle, tag, to, someone, recorders)
            return await waiting
        finally:
            self._receipts.pop(tag, None)

    async def post(self, messages: Sequence[bytes], *, conference: int = 0, kind: int = 0) -> None:
        """Send messages without waiting for their commit; waits while the queue is full."""
        bundle = marked(Bundle.of(*messages), conference, kind)
        await self._post(bundle, NO_TAG, None, False)

    async def _post(
        self,
        bundle: Bundle,
        tag: int,
        to: tuple[str, ...] | None,
        someone: bool,
        recorders: int = 0,
    ) -> None:
        extra = {"recorders": recorders} if recorders else {}
        while True:
            self._check_open()
            if self._untold is not None:
                refusal, self._untold = self._untold, None
                raise Refused(
                    f"group {self.name}: an earlier message was refused: {refusal.reason}"
                )
            try:
                self._switchboard.send(
                    self, self.name, bundle, tag=tag, to=to, someone=someone, **extra
                )
                return
            except NoRecorder:
                if time.monotonic() > self._joined_at + HEAR_S:
                    raise
                await asyncio.sleep(0.02)  # it may not have been heard of yet
            except QueueFull:
                self._room.clear()
                await self._room.wait()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise GroupClosed(f"group {self.name}: {self._closed}")

    # -- receiving -------------------------------------------------------------------------

    async def batches(self) -> AsyncIterator[Batch]:
        """Messages as they come, those of one sender together: the fast way to read."""
        while True:
            while self._inbox:
                batch = self._inbox.popleft()
                self._inbox_bytes -= cost(batch.bundle) + BATCH_COST
                yield batch
            if self._overflow is not None:
                raise self._overflow
            if self._closed is not None:
                return
            self._arrived.clear()
            await self._arrived.wait()

    async def __aiter__(self) -> AsyncIterator[Message]:
        async for batch in self.batches():
            if batch.bundle.marks:
                for message in messages_of(batch):
                    yield message
                continue
            seq: int | None = batch.seq if batch.seq >= 0 else None
            for data in batch.bundle:
                yield Message(seq, batch.sender, data, batch.time)
                if seq is not None:
                    seq += 1

    # -- membership ------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """Who is in the group, as far as this member knows."""
        return self._view

    async def views(self) -> AsyncIterator[View]:
        """The present view, then each one that follows."""
        while self._closed is None:
            changed, view = self._changed, self._view
            yield view
            await changed.wait()

    async def ready(self, members: int = 1) -> View:
        """Wait until the group works and has that many members."""
        async for view in self.views():
            if view.state.startswith("open") and len(view.members) >= members:
                return view
        raise GroupClosed(f"group {self.name}: {self._closed}")

    # -- life ------------------------------------------------------------------------------

    async def leave(self) -> None:
        if self._closed is not None:
            return
        self._switchboard.leave(self, self.name)
        self._switchboard.gone(self)
        self.disconnected("left")
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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


def _addresses(values: Iterable[str] | str, field: str) -> tuple[tuple[str, int], ...]:
    items = values.split(",") if isinstance(values, str) else values
    return tuple(parse_address(item.strip(), field) for item in items if item.strip())


class Options(Struct, frozen=True, kw_only=True):
    """How to join: see `join`."""

    service: str = "resilient"
    resilience: int = 1
    members: tuple[str, ...] = ()
    stage: str = ""
    hub: bool = False
    config: str | Path = ""
    conferences: Iterable[int] = ()
    name: str = ""
    dir: str | Path | None = None
    multicast: str = f"{MULTICAST[0]}:{MULTICAST[1]}"
    interface: str = ""
    seeds: tuple[str, ...] | str = ()
    advertise: str = ""
    listen: str = ""
    via: str = ""
    key: str | Path | None = None
    insecure: bool = False
    timeout: float = 10.0
    since: Moment | None = None
    record: bool | str | Filter = False
    fsync: str = ALWAYS
    durability: str = COMMITTED
    recorders: int = 1
    node: str = ""
    log_level: str = "warning"
    tracer: Any = None

    def spec(self, group: str) -> GroupSpec:
        if self.service not in SERVICES:
            raise ConfigError("service", self.service, ", ".join(SERVICES))
        members = check_members(tuple(self.members)) if self.members else ()
        if members and SERVICES[self.service] == AUTORM:
            raise ConfigError("members", ",".join(members), "none for fifo: who joins is a member")
        spec = GroupSpec(
            name=full_name(group, self.service), protocol=SERVICES[self.service],
            members=members, resilience=self.resilience, stage=self.stage, hub=self.hub,
            config=str(self.config),
        )  # fmt: skip
        return spec if self.node else check_roles(spec)

    def records(self, group: str) -> tuple[RecordConfig, ...]:
        """What the node records."""
        wanted = self.record
        if wanted is False:
            return ()
        if protocol_of(group) in CONFIGURED:
            raise ConfigError("record", wanted, "nothing: its file says who records the group")
        if isinstance(wanted, str):
            wanted = parse_filter(wanted.replace(":", ",").split(","), wanted)
        if not isinstance(wanted, Filter):
            wanted = Filter()
        journal = JournalConfig(sync=self.fsync)
        journal.check()
        return (RecordConfig(group=group, wanted=wanted, journal=journal),)

    def node_config(self, spec: GroupSpec) -> NodeConfig:
        choice = Choice(
            multicast=parse_address(self.multicast, "multicast"),
            interface=self.interface,
            seeds=_addresses(self.seeds, "seeds"),
            advertise=parse_address(self.advertise, "advertise") if self.advertise else None,
            listen=parse_address(self.listen, "listen") if self.listen else None,
            via=parse_address(self.via, "via") if self.via else None,
            name=self.name,
        )
        secret = None if self.insecure else load_secret(Path(self.key) if self.key else None)
        extra = {"tracer": self.tracer} if self.tracer is not None else {}
        return NodeConfig(
            name=self.name, dir=Path(self.dir) if self.dir else None, choice=choice,
            secret=secret, groups=(spec,) if spec.protocol != AUTORM else (),
            records=self.records(spec.name),
            log_level=self.log_level, answer_ns=int(self.timeout * SECOND), **extra,
        )  # fmt: skip


def join(group: str, **options: Any) -> Joining:
    """Join a group of processes that share one history.

    service     resilient (default), total, partial, selective, reliable, journal, fifo
    resilience  L: members that may fail without a committed message being lost
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
    timeout     seconds after which `broadcast` raises Indeterminate
    since       where this application goes on: a position, a datetime or "start"; what is past
                comes from the member's own memory or a recorder, then it is live, with no gap
    record      True: record the group in `dir`; or a filter, such as "conference=7,sender=ann":
                of everything else only the heads are kept
    fsync       of the record: always (default), interval or os (docs/recorder.md)
    durability  committed (default), or recorded: `broadcast` returns when recorders have synced
    recorders   how many of them, 1 by default
    log_level   debug, info, warning (default) or error: JSON lines on standard error
    node        HOST:PORT or unix:PATH of a daemon to go through, instead of a node in this process
    """
    known = Options.__struct_fields__
    for option, value in options.items():
        if option not in known:
            raise ConfigError(option, value, f"an option of {', '.join(known)}")
    chosen = Options(**options)
    spec = chosen.spec(group)
    synced(chosen.durability, chosen.recorders, 0)
    place = None if chosen.since is None else place_of(chosen.since)
    if chosen.record is not False and chosen.node:
        allowed = "none through a daemon: start that with --record"
        raise ConfigError("record", chosen.record, allowed)

    async def open_group() -> Group:
        if chosen.node:
            return await _through_daemon(chosen, spec, place)
        return await _embedded(chosen, spec, place)

    return Joining(open_group)


Place = tuple[int, int] | None
"""Position and time to begin at."""


def _group(options: Options, spec: GroupSpec, switchboard: Any, close: Any, place: Place) -> Group:
    recorders = synced(options.durability, options.recorders, 0)
    since = None if place is None else place[0]
    group = Group(spec.name, switchboard, close, since, recorders)
    group.conferences = frozenset(options.conferences)
    for conference in group.conferences:
        check_mark(conference, 0)
    return group


async def _embedded(options: Options, spec: GroupSpec, place: Place) -> Group:
    node = Node(options.node_config(spec))
    group = _group(options, spec, node, node.stop, place)
    group.hosts_node = True
    node.on_fatal = lambda error: group.disconnected(f"stopped: {error}")
    try:
        await node.start()
        node.join(group, spec.name, *(place or ()))
    except BaseException:
        await node.stop()
        raise
    return group


async def _through_daemon(options: Options, spec: GroupSpec, place: Place) -> Group:
    from roundelay.client.remote import RemoteSwitchboard

    groups: list[Group] = []

    def lost(error: ConnectionLost) -> None:
        for group in groups:
            group.disconnected(str(error))

    remote = await RemoteSwitchboard.connect(options.node, name=options.name, lost=lost)
    group = _group(options, spec, remote, remote.close, place)
    groups.append(group)
    try:
        remote.join(group, spec.name, *(place or ()))
    except BaseException:
        await remote.close()
        raise
    return group


__all__ = ["Group", "Joining", "Message", "SlowConsumer", "join"]
