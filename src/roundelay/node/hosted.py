"""A group hosted by a node: one engine, driven in real time.

The node hands over datagrams of the group and wakes it when its deadline has passed; after each
batch it calls `flush`, which carries out what the engine wants, in the order the engine asks for:
persist, send, deliver, notify.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from msgspec import structs

from roundelay.core.cluster.exchange import Exchange
from roundelay.core.cluster.pdu import ToRetx
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.engine import (
    EMPTY,
    EVERYONE,
    MS,
    NEVER,
    SECOND,
    Delivery,
    Effects,
    Engine,
    Notice,
    Pdu,
)
from roundelay.core.errors import RoundelayError
from roundelay.core.events import (
    DELIVER,
    NO_REF,
    NOBODY,
    NOTICE,
    RECEIVE,
    SEND,
    SUBMIT,
    Addressed,
)
from roundelay.core.positive_ack import PositiveAckSite
from roundelay.core.token.lives import OtherLife
from roundelay.core.token.pdu import DATA, B
from roundelay.core.token.reform import ANOTHER_LIFE
from roundelay.core.token.site import TokenSite
from roundelay.core.token.state import BROKEN, NORMAL
from roundelay.node import reasons
from roundelay.node.adaptors import MCAdaptor
from roundelay.node.directory import tag_of
from roundelay.node.early import Early
from roundelay.node.engines import early_stage
from roundelay.node.groups import GroupSpec
from roundelay.node.memory import Memory
from roundelay.node.one_channel import ASIDE, Arrival, Offered, OneChannel
from roundelay.node.outbox import Outbox, Underway
from roundelay.node.store import Store
from roundelay.node.switchboard import WHOLE, Application, Batch, View
from roundelay.node.tracer import Tracer
from roundelay.sim.disk import undelivered
from roundelay.wire.codec import encode, encode_parts, group_id

TRACE_ROWS = 1024
"""Rows of a trace that may wait for the engine's next effects."""

LARGE = 16_384
"""Bytes of a bundle that is sent in parts, without a copy of it."""

HUB = 0
"""The member that runs the hub, where there is one: the first of the roster."""


class Ground(Protocol):
    """What a hosted group needs of its node."""

    def send_everyone(self, data: bytes, hint: int) -> None: ...

    def send_parts(self, parts: list[bytes], hint: int) -> None: ...

    def send_member(self, name: str, data: bytes, hint: int) -> bool: ...

    def log(self, level: str, event: str, **fields: object) -> None: ...


class Hosted:
    """One member of one group, in one incarnation of its roster."""

    def __init__(
        self,
        ground: Ground,
        spec: GroupSpec,
        me: int,
        roster: tuple[str, ...],
        engine: Any,
        outbox: Outbox,
        applications: dict[int, Application],
        *,
        store: Store | None = None,
        incarnation: str = "",
        base: int = 0,
        trace: Tracer | None = None,
        lives: tuple[bytes, ...] = (),
    ) -> None:
        self.ground = ground
        self.spec = spec
        self.me = me
        self.roster = roster
        self.engine: Engine = engine
        # What the engine is, asked once: `isinstance` with abstract classes takes its time.
        self.token = engine if isinstance(engine, TokenSite) else None
        self.acknowledged = engine if isinstance(engine, PositiveAckSite) else None
        self.lives = tuple(map(tag_of, lives))
        """Which lives of the nodes the members are, if those of an epoch are the only ones.  The
        engine of a token group knows better: its lists are made of lives (`core.token.lives`)."""
        self.life = self.token.boot if self.token is not None else 0
        """Ours, as our PDUs carry it."""
        if self.lives:
            self.life = self.lives[me]
        self.outbox = outbox
        self.store = store
        self.base = base
        """Position of the engine's first message in the group's order, over all incarnations."""
        self.id = group_id(f"{spec.name}\0{incarnation}" if incarnation else spec.name)
        self.chan_seq = time.time_ns() // 1_000_000 & 0xFFFFFFFF
        self.channel = MCAdaptor() if spec.protocol in ("to", "po", "spo") else None
        self.hub = OneChannel(me, HUB) if spec.hub and spec.protocol == "to" else None
        self.applications = applications
        self.trace = trace
        self.submitted = 0
        self.delivered = 0
        self.received = 0
        self.sent = 0
        self.begun = False  # the engine was given something to send
        self.state = "forming"
        self.version: tuple[int, int] = (-1, -1)
        self.members: tuple[int, ...] = ()
        self.closed = False
        self.intercept: Callable[[Delivery], bool] | None = None
        """Sees each delivery first; True keeps it from the applications."""
        self.on_notice: Callable[[Notice], None] | None = None
        self.on_delivered: Callable[[], None] | None = None
        """After each batch of deliveries, all of which are written."""
        self.on_gap: Callable[[int, int], None] | None = None
        """The positions from the first number up to the second are passed over."""
        stage = early_stage(spec)
        self.early = Early(stage, me, spec.protocol == "spo") if stage else None
        """Applications want messages at an earlier stage."""
        self.memory: Memory | None = None
        """Where what is delivered is kept for those who come later, if it has an order."""
        self.lineage = ""
        """The id of the history that positions belong to."""
        self.waits = ""
        """Too few members for applications' messages: what the state says of that."""
        self.held = False
        """No new messages go to the engine while the roster changes."""
        if trace is not None:
            self.record_restart(trace, time.monotonic_ns())
        if spec.protocol != "token":
            self.state = "open"
            self.members = tuple(range(len(roster)))
        self.expected = self.position
        """The position after the last one delivered; -1 where there is no order."""

    # -- in --------------------------------------------------------------------------------

    def receive(
        self, pdu: Pdu, sender: int, chan_seq: int, now: int, line: int = 0, life: int = 0
    ) -> None:
        """A PDU of this group arrived, decoded; `life` is the sender's."""
        if self.refused(sender, life):
            return
        if self.hub is not None:
            self.receive_channel(self.hub, Arrival(pdu, sender, chan_seq, life), now)
        elif self.channel is not None and not self.channel.admit(sender, chan_seq):
            self.engine.drop("channel order")
        else:
            self.take(pdu, sender, chan_seq, life, now)

    def take(self, pdu: Pdu, sender: int, chan_seq: int, life: int, now: int) -> None:
        self.received += 1
        if self.trace is not None:
            ref = sender << 48 | chan_seq
            self.trace.rows.append((now, self.me, RECEIVE, ref, sender, None))
        if self.token is not None:
            self.token.receive(pdu, sender, now, life)
        else:
            self.engine.receive(pdu, sender, now)

    def receive_channel(self, hub: OneChannel, arrival: Arrival, now: int) -> None:
        """A PDU that the hub has numbered, or a question to it."""
        if isinstance(arrival.pdu, ToRetx):
            for data in hub.answer(arrival.pdu):
                self.send_member(arrival.sender, data)
            return
        arrivals = hub.take(arrival, now)
        if arrivals is None:
            self.engine.drop("channel order")
        for arrival in arrivals or ():
            self.take(*arrival, now)

    def refused(self, sender: int, life: int) -> bool:
        """Whether a PDU is of nobody whose PDUs are heard here."""
        if sender >= len(self.roster) or (sender == self.me and self.hub is None):
            self.engine.drop("sender is no other member")
        elif self.lives and self.lives[sender] not in (0, life):
            self.engine.drop(ANOTHER_LIFE)
        else:
            return False
        return True

    def relay(self, data: bytes, pdu: Pdu, sender: int, chan_seq: int, now: int, life: int) -> None:
        """The hub of a channel: number PDUs, pass them on to everybody, take our own copies."""
        assert self.hub is not None
        if self.refused(sender, life):
            return
        offered = Offered(Arrival(pdu, sender, chan_seq, life), data)
        ready, missed = ([offered], None) if sender == self.me else self.hub.accept(offered)
        if missed is not None:
            self.send_member(sender, missed)
        for offered in ready:
            arrival, stamped = self.hub.stamp(offered)
            self.ground.send_everyone(stamped, stamped[2] << 8 | stamped[3])
            self.receive_channel(self.hub, arrival, now)

    def mend(self, hub: OneChannel, now: int) -> None:
        """What the channel has lost is offered, or asked for, once more."""
        offers, asked, arrivals = hub.mend(now)
        for data in offers:
            self.send_member(hub.hub, data)
        for lo, hi in asked:
            self.transmit(hub.hub, ToRetx(epoch=0, by=self.me, src=hub.hub, lo=lo, hi=hi), now)
        for arrival in arrivals:
            self.take(*arrival, now)

    def on_timer(self, now: int) -> None:
        if self.engine.deadline <= now:
            self.engine.on_timer(now)
        if self.hub is not None and self.hub.deadline <= now:
            self.mend(self.hub, now)

    @property
    def deadline(self) -> int:
        if self.closed:
            return NEVER
        deadline = self.engine.deadline
        return deadline if self.hub is None else min(deadline, self.hub.deadline)

    # -- out -------------------------------------------------------------------------------

    def flush(self, now: int) -> None:
        """Feed the engine, then carry out what it wants, until it wants nothing more."""
        engine, outbox = self.engine, self.outbox
        while not self.closed:
            if outbox:
                self.feed(now)
            if engine.deadline <= now:
                # An eager token site decides once per batch, by a timer that is due at once.
                engine.on_timer(now)
            effects = engine.take()
            if effects is EMPTY:
                break
            if effects.persists and self.store is not None:
                sync = self.token is not None and self.token.config.sync_commits
                self.store.write(effects.persists, sync)
                if self.token is not None:
                    self.store.rotate(self.token)
            if self.trace is not None:
                self.record(self.trace, effects, now)
            for destination, pdu in effects.sends:
                self.transmit(destination, pdu, now)
            notices = effects.notices
            if effects.deliveries:
                if notices:
                    # A view may name another history, which what is delivered with it is of.
                    for notice in [one for one in notices if one.kind == "view"]:
                        self.notice(notice, now)
                    notices = [one for one in notices if one.kind != "view"]
                self.deliver(effects.deliveries, now)
                if self.on_delivered is not None:
                    self.on_delivered()
            for notice in notices:
                self.notice(notice, now)
        if self.trace is not None and len(self.trace.rows) >= TRACE_ROWS:
            self.trace.flush()  # arrivals that led to nothing
        if self.acknowledged is not None:
            self.settle_acknowledged(self.acknowledged)
        if engine.deadline < now + NEAR_NS:
            # What it was for may be settled: to ask costs less than to be woken for nothing.
            engine.on_timer(now)
        if outbox.turned_away:
            outbox.make_room()

    def ready(self) -> bool:
        """Whether the engine should be given another bundle now: one waits there at most."""
        engine, token = self.engine, self.token
        if self.held:
            return False
        if token is not None:
            # The first submission waits for a list: what never was in one certainly is not sent.
            if token.phase == BROKEN:
                return True  # it refuses whatever it is given
            return not token.waiting and (self.begun or token.phase == NORMAL)
        if getattr(engine, "stopped", False):
            return False
        return not engine.queue  # type: ignore[attr-defined]

    def feed(self, now: int) -> None:
        """Give the engine bundles while it takes them."""
        outbox, engine = self.outbox, self.engine
        while outbox and self.ready() and (not self.waits or outbox.has_word):
            self.begun = True
            bundle, names, one = outbox.gather()
            to = None if names is None else self.destinations(names)
            if to is not None and not to:
                outbox.refuse(one, "its destinations are no longer in the group")
                continue
            if self.trace is not None:
                what = bundle if to is None else Addressed(bundle, tuple(sorted({*to, self.me})))
                self.trace.rows.append((now, self.me, SUBMIT, self.submitted, NOBODY, what))
            self.submitted += len(bundle)
            try:
                if to is not None and isinstance(engine, SpoSite):
                    # Our own copy tells us when it is through; see `deliver`.
                    engine.submit(bundle, now, {*to, self.me})
                else:
                    engine.submit(bundle, now)
            except RoundelayError as error:
                outbox.lose_track(one, str(error))

    def destinations(self, names: tuple[str, ...]) -> set[int]:
        """Members of the present roster among `names`."""
        return {place for place, name in enumerate(self.roster) if name in names}

    def transmit(self, destination: int, pdu: Pdu, now: int) -> None:
        self.chan_seq = (self.chan_seq + 1) & 0xFFFFFFFF
        chan_seq = self.chan_seq
        if self.hub is not None:
            chan_seq = self.hub.number(pdu) if destination == EVERYONE else ASIDE
        self.sent += 1
        if (
            type(pdu) is B
            and len(pdu.bundle.data) > LARGE
            and destination == EVERYONE
            and self.hub is None
        ):
            parts = encode_parts(pdu, self.me, self.id, chan_seq, life=self.life)
            self.ground.send_parts(parts, parts[0][2] << 8 | parts[0][3])
            return
        data = encode(pdu, sender=self.me, group_id=self.id, chan_seq=chan_seq, life=self.life)
        if self.hub is not None and destination == EVERYONE:
            if self.hub.here:
                self.relay(data, pdu, self.me, chan_seq, now, self.life)
                return
            self.hub.offered(pdu, data, now)
            self.send_member(self.hub.hub, data)
        elif destination == EVERYONE:
            self.ground.send_everyone(data, data[2] << 8 | data[3])
        else:
            self.send_member(destination, data)

    def send_member(self, member: int, data: bytes) -> None:
        if not self.ground.send_member(self.roster[member], data, data[2] << 8 | data[3]):
            self.engine.drop("address of a member not known yet")

    def deliver(self, deliveries: list[Delivery], now: int) -> None:
        wall = time.time_ns()
        name, roster, me, base = self.spec.name, self.roster, self.me, self.base
        for delivery in deliveries:
            if self.closed:
                return
            if self.early is not None and delivery.stage == self.early.stage:
                self.deliver_early(self.early, delivery, wall)
                continue
            seq = base + delivery.seq if delivery.seq >= 0 else -1
            if seq >= 0:
                if seq > self.expected:
                    self.pass_over(seq)
                self.expected = seq + len(delivery.bundle.sizes)
            if delivery.source == me:
                one = self.own_delivered(delivery, seq, wall)
                if one is not None and one.to is not None and roster[me] not in one.to:
                    continue  # a copy that was only for us to know
            if self.intercept is not None and self.intercept(delivery):
                continue
            self.delivered += len(delivery.bundle.sizes)
            batch = Batch(
                name, seq, roster[delivery.source], wall, delivery.bundle, WHOLE, self.lineage
            )
            if self.memory is not None and seq >= 0:
                self.memory.add(batch)
            if self.early is not None:
                self.deliver_late(self.early, delivery, batch)
                continue
            # Looked up each time: one that cannot keep it has another in its place from then on.
            for application in list(self.applications.values()):
                application.deliver(batch)

    def deliver_early(self, early: Early, delivery: Delivery, wall: int) -> None:
        """A message whose place is not certain: for applications, not for recorders."""
        retired = self.intercept is not None and self.intercept(delivery)
        if not retired and early.give(delivery):
            name, sender = self.spec.name, self.roster[delivery.source]
            self.give_applications(Batch(name, -1, sender, wall, delivery.bundle))

    def deliver_late(self, early: Early, delivery: Delivery, batch: Batch) -> None:
        """The same when it is through: for recorders, and for applications that lack it."""
        for application in list(self.applications.values()):
            if getattr(application, "is_recorder", False):
                application.deliver(batch)
        if not early.was_given(delivery):
            self.give_applications(structs.replace(batch, seq=-1, history=""))

    def give_applications(self, batch: Batch) -> None:
        for application in list(self.applications.values()):
            if not getattr(application, "is_recorder", False):
                application.deliver(batch)

    def pass_over(self, seq: int) -> None:
        """What is before `seq` is not delivered here."""
        lo, self.expected = self.expected, seq
        if self.on_gap is not None and self.applications:
            self.on_gap(lo, seq)

    def own_delivered(self, delivery: Delivery, seq: int, wall: int) -> Underway | None:
        """A bundle of ours came through: the oldest one under way, unless it is of another life."""
        if self.acknowledged is not None:
            # Delivered here when it is sent; settled when everybody has answered.
            for one in self.outbox.underway:
                if one.number < 0:
                    one.number = delivery.number
                    break
        elif type(delivery) is not OtherLife:
            return self.outbox.settle(seq, wall, self.token.resilience if self.token else -1)
        return None

    def settle_acknowledged(self, engine: PositiveAckSite) -> None:
        low = engine.low
        underway = self.outbox.underway
        while underway and 0 <= underway[0].number < low:
            self.outbox.settle(-1, time.time_ns())

    # -- the trace -------------------------------------------------------------------------

    def record(self, trace: Tracer, effects: Effects, now: int) -> None:
        """Write what this batch does, after its persists and before anybody else can know of it.

        `roundelay.trace.live` says why.
        """
        me, add = self.me, trace.rows.append
        for i, (destination, pdu) in enumerate(effects.sends, 1):
            ref = me << 48 | (self.chan_seq + i) & 0xFFFFFFFF
            add((now, me, SEND, ref, destination, pdu))
        early = None if self.early is None else self.early.stage
        for delivery in effects.deliveries:
            if delivery.stage == early:
                continue  # it is written down when it is through
            add((now, me, DELIVER, delivery.seq, delivery.source, delivery))
        for notice in effects.notices:
            add((now, me, NOTICE, NO_REF, NOBODY, notice))
        trace.flush()

    def record_restart(self, trace: Tracer, now: int) -> None:
        """What the last life had on disk and not in its trace when it was killed."""
        stable = None if self.store is None else self.store.stable
        if stable is None:
            trace.forgot()
        found, gap = undelivered(stable, trace.position)
        for delivery in found:
            trace.rows.append((now, self.me, DELIVER, delivery.seq, delivery.source, delivery))
        if gap is not None:
            trace.rows.append((now, self.me, NOTICE, NO_REF, NOBODY, gap))
        trace.flush()

    # -- notices ---------------------------------------------------------------------------

    def notice(self, notice: Notice, now: int) -> None:
        kind, info = notice.kind, notice.info
        self.ground.log("info", f"group.{kind}", group=self.spec.name, info=_shown(info))
        if kind == "view":
            self.version, self.members = info[0], info[1]  # type: ignore[assignment]
            self.state = "open"
            self.show()
        elif kind == "blocked":
            self.state = reasons.blocked(info, self.roster)
            self.show()
        elif kind == "unblocked":
            self.state = "open"
            self.show()
        elif kind == "broken":
            away = self.engine.given_up() if isinstance(self.engine, Exchange) else ()
            self.state = reasons.broken(str(info[0]), [self.roster[one] for one in away])
            if self.token is not None:
                for one in list(self.outbox.underway):
                    self.outbox.lose_track(one, self.state)
            self.show()
        elif kind == "indeterminate":
            lo, hi = int(info[0]), int(info[1])  # type: ignore[call-overload]
            for _ in range(min(hi - lo, len(self.outbox.underway))):
                self.outbox.lose_track(self.outbox.underway[0], "away for too long: history lost")
        elif kind == "gap_unavailable" and self.position > self.expected:
            self.pass_over(self.position)  # nothing was delivered behind it yet
        if self.on_notice is not None:
            self.on_notice(notice)

    def view(self) -> View:
        number, site = self.version
        version = f"{number}.{site}" if number >= 0 else "0"
        members = tuple(self.roster[member] for member in self.members)
        # What is given early has no place, so there is none at which an application begins.
        position = self.expected if self.early is None else -1
        state = self.waits if self.waits and self.state == "open" else self.state
        return View(self.spec.name, version, members, state, self.lineage, position)

    def show(self) -> None:
        view = self.view()
        for application in list(self.applications.values()):
            application.viewed(view)

    # -- history ---------------------------------------------------------------------------

    def history(self, since: int) -> Iterator[Batch]:
        """What the engine keeps from position `since` on, in order (token groups): after a
        restart, what the member has delivered before."""
        engine = self.engine
        if not isinstance(engine, TokenSite):
            return
        wall = time.time_ns()
        for ts in range(engine.first_kept, engine.cnts):
            entry = engine.log[ts]
            if entry.ack.kind != DATA:
                continue
            seq = self.base + entry.seq
            bundle = entry.bundle
            if seq + len(bundle) <= since:
                continue
            if seq < since:
                bundle = bundle.part(since - seq, len(bundle))
                seq = since
            sender = self.roster[entry.ack.s]
            yield Batch(self.spec.name, seq, sender, wall, bundle, WHOLE, self.lineage)

    @property
    def position(self) -> int:
        """The next position to be delivered; -1 where there is no order."""
        if isinstance(self.engine, TokenSite):
            return self.base + self.engine.seq
        if self.spec.protocol == "to":
            position: int = self.engine.position  # type: ignore[attr-defined]
            return self.base + position
        return -1

    def close(self) -> None:
        self.closed = True
        if self.store is not None:
            self.store.close()

    def status(self) -> dict[str, object]:
        """As JSON."""
        engine = self.engine
        found: dict[str, object] = {
            "group": self.spec.name,
            "service": self.spec.service,
            "protocol": self.spec.protocol,
            "state": self.view().state,
            "me": self.roster[self.me],
            "roster": list(self.roster),
            "members": [self.roster[member] for member in self.members],
            "position": self.position,
            "delivered": self.delivered,
            "submitted": self.submitted,
            "waiting_bytes": self.outbox.bytes,
            "underway": len(self.outbox.underway),
            "pdus_sent": self.sent,
            "pdus_received": self.received,
            "dropped": dict(engine.drops),
            "buffers": engine.usage(),  # type: ignore[attr-defined]
            "limits": engine.caps(),  # type: ignore[attr-defined]
        }
        if isinstance(engine, TokenSite):
            found["resilience"] = engine.resilience
            found["role"] = engine.role
            found["list"] = f"{engine.tl[0]}.{engine.tl[1]}"
        return found


def _shown(info: tuple[object, ...]) -> str:
    text = ", ".join(str(part) for part in info)
    return text if len(text) <= 200 else text[:200] + "…"


NEAR_NS = MS // 2
"""A deadline nearer than this is looked at again after each batch; and a timer is not moved to a
later time before it is that near, for it may have to be moved once more until then."""
ANSWER_NS = 10 * SECOND
"""A caller that has heard nothing for this long is told that the fate of its broadcast is open."""
