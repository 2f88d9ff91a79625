"""AutoRM at a node: the Beamon engine, its local applications, and who gets what."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.transfer import MESSAGE_OVERHEAD
from roundelay.core.bundle import Bundle
from roundelay.core.engine import ACCEPTED, SECOND, Delivery, Effects, Pdu
from roundelay.core.errors import PayloadTooLarge, QueueFull
from roundelay.core.events import DELIVER, NOBODY, SUBMIT
from roundelay.core.notices import TransferEnded
from roundelay.node.driver.engine_driver import EngineDriver
from roundelay.node.membership.directory import Directory
from roundelay.node.node_api import NO_TAG, Batch, Receipt, Refusal, Send, Subscriber, View
from roundelay.node.recording.handover import CatchUp, application_of

if TYPE_CHECKING:
    from roundelay.trace.live import LiveTrace

TRACES_MAX: Final = 256
"""Groups that can have a trace."""


MARK: Final = b"\0roundelay\0c"
MARKED: Final = struct.Struct(f">{len(MARK)}sII")
"""In front of a message that has a conference or kind; AutoRM's packets have no place for it."""


def _wrapped(bundle: Bundle) -> list[bytes]:
    """The messages as AutoRM carries them.  One that looks like a marked one is marked, too."""
    if not bundle.marks and MARK not in bundle.data:
        return list(bundle)
    messages = []
    for conference, kind, part in bundle.by_mark():
        for data in part:
            plain = not (conference or kind or data.startswith(MARK))
            messages.append(data if plain else MARKED.pack(MARK, conference, kind) + data)
    return messages


def _unwrapped(data: bytes) -> Bundle:
    if not data.startswith(MARK) or len(data) < MARKED.size:
        return Bundle.of(data)
    _, conference, kind = MARKED.unpack_from(data)
    return Bundle.of(data[MARKED.size :]).marked(conference, kind)


def site_of(uuid: bytes) -> int:
    """The number of a node in a trace: it has no other that all would agree on."""
    return int.from_bytes(uuid[:4], "big") & 0x7FFFFFFF


NAME_NS: Final = SECOND
UNNAMED_BYTES: Final = 1 << 20
"""How long, and how much, messages wait for the name of their sender."""


class PendingSend(Struct, eq=False):
    """What one `send` brought, until the fate of all its messages is known."""

    application: Subscriber
    group: str
    tag: int
    someone: bool
    count: int
    under_way: int
    """Messages of which that is not known yet."""
    nobody: int = 0
    """Messages to someone that there was nobody for."""
    given_up: dict[bytes, None] = {}
    """Nodes that were lost, or left the group, before they had all of them."""


class AutoRm:
    """The AutoRM groups of one node, and its environment: host and link of their engine."""

    closed = False
    chan_seq = 0  # its packets have numbers of their own

    def __init__(
        self, uuid: bytes, config: AutoRmConfig, rng: Random, now: int, directory: Directory
    ) -> None:
        self.beamon: Any = Beamon(0, (0,), config, rng, now, uuid=uuid)
        self.driver = EngineDriver(self.beamon, 0, self, self)
        self.packets: list[Any] = []
        """What is to be sent."""
        self.directory = directory
        self.applications: dict[str, dict[int, Subscriber]] = {}
        self.tags: dict[int, PendingSend] = {}
        self.next_tag = 0
        self.turns: dict[str, int] = {}
        self.turned_away: dict[tuple[int, str], Subscriber] = {}
        self.slowed: set[str] = set()  # of all services, groups with a recorder that is behind
        self.shown: dict[str, tuple[str, ...]] = {}
        self.tracer: Callable[[str, int], LiveTrace | None] = lambda group, member: None
        self.traces: dict[str, LiveTrace] = {}
        self.fault: Callable[[str, BaseException], None] = lambda group, error: None
        """A group cannot go on."""
        self.submitted: dict[str, int] = {}  # of groups with a trace: own messages so far
        self.unnamed: dict[bytes, tuple[int, list[Any]]] = {}
        """Deliveries of nodes whose name is still on its way, and how long to wait for it."""
        self.unnamed_bytes = 0
        self.look = False
        """A heartbeat or a name was heard: who is in which group may have changed."""

    # -- applications ----------------------------------------------------------------------

    def join(self, application: Subscriber, group: str, now: int) -> None:
        joined = self.applications.get(group, {})
        if id(application) in joined:
            return
        self.beamon.join(group, now, local=len(joined) + 1)
        self.applications.setdefault(group, {})[id(application)] = application
        application.viewed(self.view(group))

    def leave(self, application: Subscriber, group: str, now: int) -> None:
        joined = self.applications.get(group, {})
        subscriber = joined.pop(id(application), None)
        if subscriber is None:
            return
        if isinstance(subscriber, CatchUp):
            subscriber.stop()
        if joined:
            self.beamon.join(group, now, local=len(joined))
        else:
            del self.applications[group]
            self.turns.pop(group, None)
            self.shown.pop(group, None)
            self.beamon.leave(group, now)

    def gone(self, application: Subscriber, now: int) -> None:
        for group in list(self.applications):
            self.leave(application, group, now)
        for tag in [tag for tag, sent in self.tags.items() if sent.application is application]:
            del self.tags[tag]
        for key in [key for key in self.turned_away if key[0] == id(application)]:
            del self.turned_away[key]

    def send(self, application: Subscriber, send: Send, now: int) -> None:
        """Queue the messages, all or none of them; the tag is that of all together."""
        group, tag, someone = send.group, send.tag, send.someone
        beamon = self.beamon
        config = beamon.config
        messages = _wrapped(send.bundle)
        if max(map(len, messages)) > config.max_message:
            raise PayloadTooLarge(
                f"a message of {max(map(len, messages))} bytes: AutoRM groups take up to "
                f"{config.max_message}"
            )
        size = sum(map(len, messages)) + MESSAGE_OVERHEAD * len(messages)
        if len(messages) > 1 and size > config.queue_bytes:
            raise PayloadTooLarge(
                f"{len(messages)} messages of {size} bytes in all: at most {config.queue_bytes} "
                "at once, send them in parts"
            )
        if group in self.slowed or (
            beamon.queued_bytes and beamon.queued_bytes + size > config.queue_bytes
        ):
            self.turned_away[(id(application), group)] = application
            raise QueueFull(
                f"{beamon.queued_bytes} bytes wait to be sent (at most {config.queue_bytes}): "
                "wait until some are"
            )
        joined = id(application) in self.applications.get(group, {})
        sent = PendingSend(application, group, tag, someone, len(messages), len(messages))
        trace = self.trace(group)
        if trace is not None and not someone:
            index = self.submitted.get(group, 0)
            self.submitted[group] = index + len(messages)
            trace.rows.append((now, site_of(beamon.uuid), SUBMIT, index, NOBODY, send.bundle))
        for message in messages:
            known = -1
            if someone or tag != NO_TAG:
                known, self.next_tag = self.next_tag, self.next_tag + 1
                self.tags[known] = sent
            if someone:
                beamon.send_someone(group, message, now, tag=known, sender_joined=joined)
            else:
                beamon.send_everyone(group, message, now, tag=known)

    # -- what the engine wants -------------------------------------------------------------

    def carry_out(self, now: int) -> list[Any]:
        """Hand over deliveries and receipts; what must be sent is returned."""
        self.driver.carry_out(now)
        if self.unnamed:
            self._release(now)
        for trace in self.traces.values():
            trace.flush()  # before anything is sent (`roundelay.trace.live` says why)
        if self.look:
            self._show_views()
        if self.turned_away and self.beamon.queued_bytes * 2 <= self.beamon.config.queue_bytes:
            for key, application in list(self.turned_away.items()):
                if key[1] not in self.slowed:
                    del self.turned_away[key]
                    application.writable(key[1])
        packets, self.packets = self.packets, []
        return packets

    def feed(self, now: int) -> None:
        """The engine has been given all messages."""

    def admits(self, sender: int, chan_seq: int, life: int) -> bool:
        """The engine itself is handed what arrives (`node.traffic.receiver`)."""
        return True

    def transmit(self, destination: int, pdu: Pdu, line: int, now: int) -> None:
        self.packets.append(pdu)

    def traced(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Each group has a trace of its own."""
        return []

    def hand_over(self, effects: Effects, now: int) -> None:
        for delivery in effects.deliveries:
            if not self._await_name(delivery, now):
                self._give(delivery)
        for notice in effects.notices:
            if isinstance(notice, TransferEnded):
                self._sent(notice.tag, notice.reached, notice.given_up)
            else:
                self.look = True

    @property
    def deadline(self) -> int:
        """When there is something to do at the latest."""
        due: int = self.beamon.deadline
        if self.unnamed:
            due = min(due, *(until for until, _ in self.unnamed.values()))
        return due

    def _await_name(self, delivery: Any, now: int) -> bool:
        """Keep back what a node sends before we know its name, for a moment.

        Its INFO is on the way if it is one of ours; nodes of the paper have no names.
        """
        source = delivery.uuid
        held = self.unnamed.get(source)
        if held is None:
            node = self.beamon.environment.nodes.get(source)
            if self.directory.named(source) or node is None:
                return False
            until = node.first_seen + NAME_NS
            if until <= now:
                return False
            held = self.unnamed[source] = (until, [])
        held[1].append(delivery)
        self.unnamed_bytes += len(delivery.data)
        return True

    def _release(self, now: int) -> None:
        crowded = self.unnamed_bytes > UNNAMED_BYTES
        for source, (until, held) in list(self.unnamed.items()):
            if crowded or until <= now or self.directory.named(source):
                del self.unnamed[source]
                for delivery in held:
                    self.unnamed_bytes -= len(delivery.data)
                    self._give(delivery)

    def _give(self, delivery: Any) -> None:
        try:
            self._deliver(delivery)
        except Exception as error:  # of that group, and of no other
            self.fault(delivery.group, error)

    def _deliver(self, delivery: Any) -> None:
        joined = self.applications.get(delivery.group)
        if not joined:
            return
        trace = self.trace(delivery.group)
        if trace is not None and not delivery.one_of:
            source, bundle = site_of(delivery.uuid), Bundle.of(delivery.data)
            traced = Delivery(-1, source, -1, bundle, ACCEPTED)
            trace.rows.append((0, site_of(self.beamon.uuid), DELIVER, -1, source, traced))
        name = self.directory.name_of(delivery.uuid)
        batch = Batch(delivery.group, -1, name, time.time_ns(), _unwrapped(delivery.data))
        if not delivery.one_of:
            for application in list(joined.values()):
                application.deliver(batch)
            return
        mine = self.tags.get(delivery.tag)
        sender = mine.application if mine is not None else None
        # Whoever catches up gets it at once: it is not among what is recorded.
        local = list(map(application_of, joined.values()))
        local = [subscriber for subscriber in local if not subscriber.is_recorder] or local
        candidates = [subscriber for subscriber in local if subscriber is not sender] or local
        turn = self.turns.get(delivery.group, 0)
        self.turns[delivery.group] = turn + 1
        candidates[turn % len(candidates)].deliver(batch)

    def _sent(self, inner: int, reached: tuple[bytes, ...], given_up: tuple[bytes, ...]) -> None:
        """Nothing more is done about a message: AR-12, and who sent it learns how that ended."""
        sent = self.tags.pop(inner, None)
        if sent is None:
            return
        sent.under_way -= 1
        if not sent.someone or not reached:
            has_it = set(map(self.directory.name_of, reached))  # in a later life, too
            lost = [uuid for uuid in given_up if self.directory.name_of(uuid) not in has_it]
            sent.given_up |= dict.fromkeys(lost)
            sent.nobody += sent.someone and not given_up
        if sent.under_way or sent.tag == NO_TAG:
            return
        names = tuple(dict.fromkeys(map(self.directory.name_of, sent.given_up)))
        try:
            if sent.someone and (sent.nobody or names):
                sent.application.refused(_refusal(sent, names))
            else:
                receipt = Receipt(sent.group, sent.tag, -1, time.time_ns(), names)
                sent.application.receipt(receipt)
        except Exception as error:
            self.fault(sent.group, error)

    def trace(self, group: str) -> LiveTrace | None:
        """Where what happens in a group is recorded.  What goes to someone only is not."""
        trace = self.traces.get(group)
        if trace is None and len(self.traces) < TRACES_MAX:
            trace = self.tracer(group, site_of(self.beamon.uuid))
            if trace is not None:
                self.traces[group] = trace
        return trace

    # -- what is known ---------------------------------------------------------------------

    def view(self, group: str) -> View:
        mine = (self.directory.name_of(self.beamon.uuid),) if group in self.applications else ()
        # A name has several lives while one that was replaced is not given up, or wakes up.
        names = {self.directory.name_of(uuid) for uuid in self.beamon.members(group)}
        members = mine + tuple(sorted(names.difference(mine)))
        return View(group, str(len(members)), members, "open")

    def _show_views(self) -> None:
        self.look = False
        for group, joined in list(self.applications.items()):
            view = self.view(group)
            if self.shown.get(group) != view.members:
                self.shown[group] = view.members
                try:
                    for application in list(joined.values()):
                        application.viewed(view)
                except Exception as error:
                    self.fault(group, error)


def _refusal(sent: PendingSend, lost: tuple[str, ...]) -> Refusal:
    """A message to someone that nobody is known to have."""
    if lost:
        reason = (
            f"{', '.join(lost)} was chosen and was lost, or left the group, before it said that it "
            "has the message: it may have it"
        )
    else:
        reason = "nobody but the sender is in the group now: send it again when somebody is"
    return Refusal(sent.group, sent.tag, reason, bool(lost) or sent.nobody < sent.count)
