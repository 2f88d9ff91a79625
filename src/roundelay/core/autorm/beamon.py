"""A Beamon: one node of AutoRM (Höfig 2007), without sockets and clocks.

Theory of operation.  Nodes share one medium on which everything is multicast.  A node announces
the groups of its applications in heartbeats; whoever hears it keeps it in a table, and forgets it
when it falls silent (`environment`).  A message to everyone goes to all nodes that declare the
group at that moment, one to someone to a single one of them, chosen at random.  Messages are cut
into packets; receivers tell what they lack when asked, and that is sent again (`transfer`), until
a receiver has the message whole (`reassembly`) or is dropped from the table.  A node has one
message under way at a time, so a receiver gets its messages in the order they were sent.

There is no fixed group: packets carry UUIDs, and all of them go to everybody.  The numbers of
members that every engine is told (`me`, `source`) are only passed on to who is handed a message::

    beamon.join("news", now); beamon.send_everyone("news", b"...", now)

Deviations from the paper and from PROTOCOLS §8, all tested:

- What was delivered of a sender is remembered after its death (AR-14): one that was merely asleep
  may repeat a message whose acknowledgement it did not see.
- Time in which this node itself did not run counts against nobody (AR-4, AR-10).
- The heartbeat after a growth of the environment is not put off further than twice what others
  expect from the last one, else they would bury us before they hear of the growth (AR-3, AR-4).
- A target is dropped after too many rounds without progress *and* as many time-outs (AR-10):
  repeated old acknowledgements must not shorten its life.  Progress is more packets known to be
  there than ever before, of which a shorter list is one sign.
- The last number of a cut list of missing packets equals `highest` (§8.3 says both "below" and
  "set to it").
- Targets, and the choice of someone, are made when the message's turn comes, not when it is
  queued; then it is also handed to local applications, so their order is that of sending.
- Sequence numbers start over after 2³² - 1; order is decided by distance.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, Final

from msgspec import structs

from roundelay.core.autorm import packets as p
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.environment import ALIVE, DEAD, DROPPED, Environment, KnownNode
from roundelay.core.autorm.reassembly import OWED_MAX, Inbound
from roundelay.core.autorm.transfer import (
    MESSAGE_OVERHEAD,
    OutgoingMessage,
    PacketPacer,
    Target,
    Transfer,
)
from roundelay.core.bundle import Bundle
from roundelay.core.engine import (
    ACCEPTED,
    EVERYONE,
    NEVER,
    ONLY_LINE,
    UNKNOWN_LIFE,
    Delivery,
    Engine,
    Pdu,
)
from roundelay.core.errors import (
    ConfigError,
    InvariantBroken,
    PayloadTooLarge,
    QueueFull,
    UsageError,
)
from roundelay.core.notices import NodeDown, NodeDropped, NodeUp, TransferEnded

JITTER: Final = 0.1
"""AR-3: how far the time between heartbeats may be off, either way."""


class AutoRmDelivery(Delivery, frozen=True, gc=False):
    """A message for the local applications in `group`: all of them, or exactly one if `one_of`.

    `source` is the number by which `receive` was told of its node, `uuid` the name of that;
    `number` is its sequence there.  `tag` is that of the own call if this node has sent it, or -1.
    """

    group: str
    uuid: bytes
    one_of: bool
    tag: int = -1

    @property
    def data(self) -> bytes:
        return self.bundle.data


class Beamon(Engine):
    """One node, named `uuid` for as long as it runs."""

    __slots__ = (
        "active", "by_seq", "config", "environment", "groups", "hb_due", "hb_jitter", "hb_reported",
        "hb_sent", "inbound", "pacer", "queued_bytes", "queues", "ran", "resent", "rng", "seq",
        "uuid",
    )  # fmt: skip

    def __init__(
        self,
        me: int,
        group: tuple[int, ...],
        config: AutoRmConfig,
        rng: Random,
        now: int = 0,
        *,
        uuid: bytes,
    ) -> None:
        if len(uuid) != p.UUID_BYTES or uuid == p.ZERO:
            raise ConfigError("uuid", uuid.hex(), f"{p.UUID_BYTES} bytes, not all zero")
        super().__init__(me, group)
        self.uuid = bytes(uuid)
        self.config = config.check()
        self.rng = rng
        self.environment = Environment(config)
        self.inbound = Inbound(config)
        self.groups: dict[str, int] = {}  # joined here: how many local applications
        # Heartbeats.
        self.hb_sent = now
        self.hb_reported = 0  # nodes in the last one; 0: none sent yet
        self.hb_jitter = 1.0  # of the next one
        self.hb_due = now + int(rng.random() * config.hb_on_change_ns)
        # Messages of ours.
        self.seq = 0
        self.queues: dict[str, deque[OutgoingMessage]] = {}  # by scope (AR-7)
        self.active: dict[str, Transfer] = {}  # by scope
        self.by_seq: dict[int, Transfer] = {}
        self.queued_bytes = 0
        self.pacer = PacketPacer(config.burst, config.pace_ns)
        self.resent = 0  # packets sent more than once
        self.ran = now  # when this node was last called
        self.deadline = self.hb_due

    # -- the applications ------------------------------------------------------------------

    def join(self, group: str, now: int, local: int = 1) -> None:
        """AR-5: `local` applications of this node are in `group` from now on.

        Raises UsageError if the name cannot be, or if a heartbeat has no room for it.
        """
        size = 1 + len(_encoded(group))
        if local < 1:
            raise UsageError(f"local = {local} applications in a group: at least 1, or leave it")
        if group not in self.groups:
            if len(self.groups) >= p.GROUPS_MAX:
                raise UsageError(
                    f"cannot join {group!r}: a node announces at most {p.GROUPS_MAX} groups; "
                    "leave one, or use another node"
                )
            room = self.config.mtu - p.IP_UDP_HEAD - p.HEARTBEAT_HEAD
            if size + sum(1 + len(name.encode()) for name in self.groups) > room:
                raise UsageError(
                    f"cannot join {group!r}: the names of all groups must fit one heartbeat of "
                    f"{room} bytes; leave some, use shorter names or a larger mtu"
                )
            self._wake(now)
            self._announce(now)
        self.groups[group] = local
        self.deadline = self._earliest()

    def leave(self, group: str, now: int) -> None:
        """The last local application has left `group`; harmless if none was in it."""
        if self.groups.pop(group, None) is not None:
            self._wake(now)
            self.inbound.leave(group)
            self._announce(now)
            self.deadline = self._earliest()

    def _announce(self, now: int) -> None:
        """AR-3: an extra heartbeat soon, but not more often than that."""
        within = self.config.hb_on_change_ns
        due = now + int(self.rng.random() * within)
        self.hb_due = min(self.hb_due, max(due, self.hb_sent + within))

    def farewell(self, now: int) -> None:
        """Leave all groups and say so at once, so that nobody waits for this node."""
        for group in list(self.groups):
            self.leave(group, now)
        self._beat(now)
        self.deadline = self._earliest()

    def submit(self, bundle: Bundle, now: int, group: str = "") -> None:
        """A bundle of one message to everyone in `group`; see `send_everyone`."""
        if not group:
            raise UsageError("messages of AutoRM go to a group: name it")
        if len(bundle) != 1:
            raise UsageError(f"{len(bundle)} messages at once: AutoRM takes one at a time")
        self.send_everyone(group, bundle.data, now)

    def send_everyone(self, group: str, data: bytes, now: int, tag: int = -1) -> None:
        """AR-6: to all applications in `group`, here too.

        Raises UsageError, PayloadTooLarge or QueueFull, and then changes nothing.
        """
        self._enqueue(OutgoingMessage(group, data, False, tag, False), now)

    def send_someone(
        self, group: str, data: bytes, now: int, tag: int = -1, sender_joined: bool = False
    ) -> None:
        """AR-6: to one application in `group`, at a node chosen at random.

        This node can be chosen if it has a member besides the sending application, which is one
        itself if `sender_joined`.
        """
        self._enqueue(OutgoingMessage(group, data, True, tag, sender_joined), now)

    def _enqueue(self, item: OutgoingMessage, now: int) -> None:
        _encoded(item.group)
        config = self.config
        if len(item.data) > config.max_message:
            raise PayloadTooLarge(
                f"{len(item.data)} bytes are above max_message = {config.max_message}: split them"
            )
        if self.queued_bytes and self.queued_bytes + item.cost > config.queue_bytes:
            raise QueueFull(
                f"{self.queued_bytes} bytes wait to be sent (queue_bytes = {config.queue_bytes}): "
                "send again when some have left"
            )
        self._wake(now)
        self.queued_bytes += item.cost
        scope = self.inbound.scope(item.group)
        self.queues.setdefault(scope, deque()).append(item)
        if scope not in self.active:
            self._start(scope, now)
            self._pump(now)
        self.deadline = self._earliest()

    # -- what happens ----------------------------------------------------------------------

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        if not isinstance(pdu, p.Packet):
            self.drop("not a packet of AutoRM")
            return
        uuid = pdu.source
        if uuid == self.uuid:
            return  # AR-13: our own, back from the medium
        self._wake(now)
        node = self.environment.nodes.get(uuid)
        if node is None:  # AR-1
            node = self.environment.admit(uuid, now)
            if node is None:
                self.drop("too many nodes")
                return
            self.notify(NodeUp(uuid))
        node.last_seen = now
        node.history.append(now)
        if isinstance(pdu, p.Data):
            self._on_data(pdu, source, now)
        elif isinstance(pdu, p.Acknowledgement):
            self._on_acknowledgement(pdu, now)
        else:
            self._on_heartbeat(pdu, node, now)
        self.deadline = self._earliest()

    def on_timer(self, now: int) -> None:
        """Do whatever is due at `now`."""
        self._wake(now)
        if self.inbound.ack_due <= now:
            for answer in self.inbound.answers(self.uuid, now):
                self.send(EVERYONE, answer)
        if self._beat_due() <= now:
            self._beat(now)
            self._scan(now)
        elif self.environment.scan_due <= now:
            self._scan(now)
        for transfer in list(self.active.values()):
            if transfer.due <= now:
                self._next_round(transfer, now)
        self._pump(now)
        self.deadline = self._earliest()

    def _wake(self, now: int) -> None:
        """If this node was asleep (stopped, or starved), the others are not to blame for that."""
        asleep = now - max(self.deadline, self.ran)
        self.ran = now
        if asleep > self.config.hb_min_ns:
            self.environment.excuse(asleep, now)
            for transfer in self.active.values():
                transfer.excuse(asleep, now)

    def _earliest(self) -> int:
        """The one deadline, of all that is to come."""
        due = min(self._beat_due(), self.environment.scan_due, self.inbound.ack_due)
        for transfer in self.active.values():
            due = min(due, transfer.due if transfer.waiting else self.pacer.next)
        return due

    # -- heartbeats ------------------------------------------------------------------------

    def _beat_due(self) -> int:
        """AR-3: when the next heartbeat is due, which changes with the environment."""
        environment = self.environment
        if not self.hb_reported:
            return self.hb_due
        period = int(environment.period() * self.hb_jitter)
        # Others expect us by what we last reported (AR-4): never later than twice that.
        expected = 2 * environment.period_of(self.hb_reported)
        return min(self.hb_due, self.hb_sent + min(period, expected))

    def _beat(self, now: int) -> None:
        nodes = min(self.environment.local, p.NODES_MAX)
        self.send(EVERYONE, p.Heartbeat(self.uuid, nodes, tuple(self.groups)))
        self.hb_sent = now
        self.hb_reported = nodes
        self.hb_due = NEVER
        self.hb_jitter = 1.0 + JITTER * (2.0 * self.rng.random() - 1.0)

    def _on_heartbeat(self, packet: p.Heartbeat, node: KnownNode, now: int) -> None:
        for group in self.environment.heartbeat(node, packet, now):
            # AR-11: it has left the group, and is none the worse for it.
            for transfer in list(self.active.values()):
                if transfer.item.group == group:
                    self._lose(transfer, node.uuid, now)

    def _scan(self, now: int) -> None:
        """AR-4: bury the dead; AR-14: forget what their like will not complete."""
        environment, inbound = self.environment, self.inbound
        for uuid in environment.stale(now):
            self._remove(uuid, now, DEAD)
        for key, message in list(inbound.assembling.items()):
            stale = environment.stale_ns(environment.nodes.get(key[0]))
            if message.touched + stale < now:
                inbound.discard(key)

    def _remove(self, uuid: bytes, now: int, verdict: str) -> None:
        """A node leaves the table and everything that is owed to it."""
        self.environment.remove(uuid, now, verdict)
        self.notify(NodeDropped(uuid) if verdict == DROPPED else NodeDown(uuid))
        for transfer in list(self.active.values()):
            self._lose(transfer, uuid, now)

    # -- sending ---------------------------------------------------------------------------

    def _start(self, scope: str, now: int) -> None:
        """AR-7: the next message of `scope`, if there is one; those without targets end here."""
        queue = self.queues.get(scope)
        while queue:
            item = queue.popleft()
            self.seq = p.following(self.seq)
            transfer = self._transfer(item, now)
            if transfer is not None:
                self.active[scope] = transfer
                self.by_seq[transfer.seq] = transfer
                break
        if not queue:
            self.queues.pop(scope, None)

    def _transfer(self, item: OutgoingMessage, now: int) -> Transfer | None:
        """AR-6: who gets the message; None if no other node does."""
        targets = self.environment.members(item.group)
        destination = p.ZERO
        if item.someone:
            candidates = [uuid for uuid in targets if uuid not in item.tried]
            if self.groups.get(item.group, 0) > item.sender_joined:
                candidates.append(self.uuid)
            if not candidates:
                self._settle(item, (), item.tried)
                return None
            destination = self.rng.choice(candidates)
            targets = (destination,)
        if item.group in self.groups and destination in (p.ZERO, self.uuid):
            mine = (item.group, self.uuid, item.someone, item.tag)
            self._deliver(self.me, self.seq, item.data, *mine)
        if not targets or destination == self.uuid:
            self._settle(item, (self.uuid,) if destination == self.uuid else (), item.tried)
            return None
        owed = {uuid: Target(now) for uuid in targets}
        return Transfer(self.uuid, self.seq, item, destination, owed, self.config)

    def _settle(
        self, item: OutgoingMessage, reached: tuple[bytes, ...], given_up: tuple[bytes, ...]
    ) -> None:
        """Nothing more is done about a message of ours."""
        self.queued_bytes -= item.cost
        if item.tag != -1:
            self.notify(TransferEnded(item.tag, reached, given_up))

    def _pump(self, now: int) -> None:
        """AR-8: send what the pace allows, in turn if several messages are under way."""
        pacer = self.pacer
        while True:
            sending = [transfer for transfer in self.active.values() if not transfer.waiting]
            if not sending:
                return
            for transfer in sending:
                if transfer.all_sent():  # the last one to be asked is gone
                    transfer.wait(now)
                    continue
                if not pacer.may_send(now):
                    return
                self.send(EVERYONE, transfer.next_packet())
                self.resent += not transfer.first
                if transfer.all_sent():
                    transfer.wait(now)

    def _on_acknowledgement(self, packet: p.Acknowledgement, now: int) -> None:
        """AR-9: what a receiver has."""
        if packet.destination != self.uuid:
            return
        transfer = self.by_seq.get(packet.seq)
        if transfer is None:
            return  # late: that message is finished
        refusal = transfer.acknowledged(packet, now)
        if refusal:
            self.drop(refusal)
        elif not transfer.targets:
            self._finish(transfer, now)
        elif transfer.waiting and transfer.all_answered():
            self._next_round(transfer, now)
            self._pump(now)

    def _next_round(self, transfer: Transfer, now: int) -> None:
        """AR-9, AR-10: drop the hopeless, send the others what they lack."""
        for uuid in transfer.hopeless(now):
            self._note(transfer, uuid, now)
            self._remove(uuid, now, DROPPED)
        if transfer.targets:
            transfer.again()
            for uuid in transfer.targets:
                self._note(transfer, uuid, now)

    def _note(self, transfer: Transfer, uuid: bytes, now: int) -> None:
        """For `why`: what is sent again for a node."""
        node, target = self.environment.nodes[uuid], transfer.targets[uuid]
        node.resent += len(target.missing) or 1
        node.retries = target.retries
        node.retried_at = now

    def _lose(self, transfer: Transfer, uuid: bytes, now: int) -> None:
        """A target is gone; the rest goes on without it."""
        if not transfer.lose(uuid):
            return
        if not transfer.targets:
            self._finish(transfer, now)
        elif transfer.waiting and transfer.all_answered():
            transfer.due = now  # it was the last that was awaited

    def _finish(self, transfer: Transfer, now: int) -> None:
        """AR-12: every target is done or gone: the next message."""
        item = transfer.item
        scope = self.inbound.scope(item.group)
        del self.active[scope], self.by_seq[transfer.seq]
        given_up = (*item.tried, *transfer.given_up)
        if item.someone and self.config.someone_failover and not transfer.reached:  # E 48
            again = structs.replace(item, tried=given_up)
            self.queues.setdefault(scope, deque()).appendleft(again)
        else:
            self._settle(item, tuple(transfer.reached), given_up)
        self._start(scope, now)
        self._pump(now)

    # -- receiving -------------------------------------------------------------------------

    def _on_data(self, packet: p.Data, source: int, now: int) -> None:
        """AR-13: what is not for us is ignored, what is no longer wanted is answered."""
        destination = packet.destination
        if destination not in (p.ZERO, self.uuid):
            return
        if not 0 <= packet.number < packet.count:
            self.drop("packet number outside its message")
            return
        joined = packet.group in self.groups
        if joined:
            data = self.inbound.accept(packet, now)
            if isinstance(data, str):
                self.drop(data)
            elif data is not None:
                one_of = bool(packet.flags & p.ONE_OF)
                self._deliver(source, packet.seq, data, packet.group, packet.source, one_of)
        elif destination == p.ZERO:
            return
        if packet.flags & p.CONFIRMATION:  # AR-15
            due = now + int(self.rng.random() * self.config.ack_jitter_ns)
            if not self.inbound.owe(packet, due, not joined):
                self.drop("too many acknowledgements")

    def _deliver(self, source: int, seq: int, data: bytes, *about: Any) -> None:
        """Hand over message `seq`, and what an AutoRmDelivery says of it besides."""
        delivery = AutoRmDelivery(-1, source, seq, Bundle.of(data), ACCEPTED, *about)
        self.out.deliveries.append(delivery)

    # -- what it holds ---------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing is queued and nothing is under way."""
        return not self.active and not self.queues

    def members(self, group: str) -> tuple[bytes, ...]:
        """The other nodes that declare `group`."""
        return self.environment.members(group)

    def why(self, uuid: bytes, now: int) -> dict[str, Any]:
        """Why the node `uuid` is dead or alive to this one."""
        about = self.environment.why(uuid, now)
        if uuid == self.uuid:
            about |= {"verdict": ALIVE, "reason": "this is the node that was asked"}
        return about

    def status(self) -> dict[str, Any]:
        """This node in plain values."""
        environment = self.environment
        return {
            "node": self.uuid.hex(),
            "nodes_local": environment.local,
            "nodes_estimated": environment.estimate(),
            "heartbeat_period_ns": environment.period(),
            "groups": dict(self.groups),
            "queued_bytes": self.queued_bytes,
            "under_way": len(self.active),
            "sent_messages": self.seq,
            "packets_resent": self.resent,
            "drops": dict(self.drops),
        }

    def bounds(self) -> dict[str, tuple[int, int]]:
        inbound, nodes, config = self.inbound, self.environment.nodes, self.config
        longest = max((len(node.history) for node in nodes.values()), default=0)
        largest = max(config.queue_bytes, config.max_message + MESSAGE_OVERHEAD)
        busiest = max(inbound.per_peer.values(), default=0)
        return {
            "nodes": (len(nodes), config.nodes_max),
            "queue_bytes": (self.queued_bytes, largest),
            "reassembly_total": (inbound.total, config.reassembly_total),
            "reassembly_peer": (busiest, config.reassembly_peer),
            "sources": (len(inbound.done), config.sources_max),
            "acknowledgements": (len(inbound.owed), OWED_MAX),
            "history": (longest, config.history),
        }

    def check_invariants(self) -> None:
        """Each scope has one message under way before others wait, and everything is counted."""
        self.environment.check_invariants()
        self.inbound.check_invariants()
        if self.uuid in self.environment.nodes:
            raise InvariantBroken("a node is in its own table")
        if self.deadline > self._earliest():
            raise InvariantBroken(f"something is due before the deadline {self.deadline}")
        if not self.queues.keys() <= self.active.keys() or not all(self.queues.values()):
            raise InvariantBroken("messages wait although none is under way before them")
        if self.by_seq != {transfer.seq: transfer for transfer in self.active.values()}:
            raise InvariantBroken(f"{[*self.by_seq]} are under way, or others")
        under_way = sum(transfer.item.cost for transfer in self.active.values())
        if self.queued_bytes < under_way or (self.queued_bytes > under_way and not self.queues):
            raise InvariantBroken(f"{self.queued_bytes} bytes queued, {under_way} under way")
        for transfer in self.active.values():
            transfer.check_invariants()


def _encoded(group: str) -> bytes:
    """The name of a group as it stands in packets, or UsageError."""
    try:
        name = group.encode()
    except UnicodeEncodeError:
        raise UsageError(f"group name {group!r} is not valid Unicode text") from None
    if not 1 <= len(name) <= p.NAME_MAX:
        raise UsageError(
            f"a group name has 1 to {p.NAME_MAX} bytes in UTF-8, this one has {len(name)}"
        )
    return name
