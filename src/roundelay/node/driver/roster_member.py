"""A member of a group whose members find each other: what its engine wants, and what it is told.

`node.membership` makes one for each roster that the group has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from roundelay.core.engine import NEVER, NO_POSITION, Delivery, Effects, Engine, Notice
from roundelay.core.errors import RoundelayError
from roundelay.core.events import DELIVER, NO_REF, NOBODY, NOTICE, Addressed
from roundelay.core.families import TOTAL
from roundelay.core.token.ballot import OtherLife
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import undelivered
from roundelay.node.driver.channel_link import ChannelLink, HubLink
from roundelay.node.driver.engine_driver import NEAR_NS, EngineDriver
from roundelay.node.driver.engines import early_stage
from roundelay.node.driver.outbox import Outbox, Underway
from roundelay.node.groups import RING
from roundelay.node.membership import reasons
from roundelay.node.node_api import WHOLE, Batch, View
from roundelay.node.recording.memory import Memory
from roundelay.node.storage.store import Store
from roundelay.wire.codec import group_id

if TYPE_CHECKING:
    from roundelay.node.group_host import GroupHost
    from roundelay.trace.live import LiveTrace


class Early:
    """What the applications of one member were given early (`stage=`), and is not through yet.

    The engine hands over each message twice: early, without a place, and again when it is through.
    What is through has its place; it goes to recorders and into the member's memory, settles
    receipts, and moves the position of the group, as in a member that delivers late.  Applications
    are given the early copy, and at the end those messages that never came early: when a cluster
    ends, what others have accepted.  So each is given once, and a change of roster is none of their
    business.
    """

    def __init__(self, stage: str, me: int, selective: bool) -> None:
        self.stage = stage
        self._me = me
        self._selective = selective
        self._given: set[tuple[int, int]] = set()  # bounded by what can be under way

    def give(self, delivery: Delivery) -> bool:
        """Whether an early copy is for the applications."""
        if self._selective and delivery.source == self._me:
            return False  # our own copy may not be for us: that is known when it is through
        self._given.add((delivery.source, delivery.number))
        return True

    def was_given(self, delivery: Delivery) -> bool:
        """Whether the applications have what is through now."""
        key = (delivery.source, delivery.number)
        if key in self._given:
            self._given.remove(key)
            return True
        return False


class RosterMember:
    """One member of one group, in one incarnation of its roster."""

    def __init__(
        self,
        group: GroupHost,
        roster: tuple[str, ...],
        engine: Any,
        on_gap: Callable[[int, int], None],
        on_notice: Callable[[Notice], None] | None,
        *,
        epoch: str = "",
        beside: bool = False,
        store: Store | None = None,
        base: int = 0,
        lives: tuple[bytes, ...] = (),
        lineage: str = "",
        intercept: Callable[[Delivery], bool] | None = None,
    ) -> None:
        """`epoch`: the name of that incarnation, if it is not the only one.  `beside`: its messages
        are about the roster of a group whose own engine carries those of the applications."""
        node, name, me = group.node, group.spec.name, engine.me
        self.log = node.log
        spec = self.spec = structs.replace(group.spec, protocol=RING) if beside else group.spec
        self.me = me
        self.roster = roster
        self.token: TokenSite | None = engine if spec.family.resilient else None
        self.resilience = engine.config.resilience if spec.family.resilient else -1
        self.settles_later = engine.answered_below != NO_POSITION
        """A delivery of ours does not say yet that everybody has it."""
        kind = "ring" if self.token is not None else "data"
        self.id = group_id(f"{name}\0{kind} {epoch}" if epoch else name)
        self.hub = HubLink(self, node, lives) if spec.family.one_channel else None
        self.link = self.hub or ChannelLink(self, node, lives)
        keep = self.keep if store is not None else None
        trace: LiveTrace | None = None
        if not beside:
            known = {"resilience": self.resilience} if self.token is not None else {}
            trace = node.config.tracer(f"{name} {epoch}" if epoch else name, me, **known)
        self.driver = EngineDriver(engine, me, self, self.link, keep, trace)
        self.link.driver = self.driver
        self.receive = self.driver.receive if self.hub is None else self.hub.receive
        self.outbox = Outbox(name, 1 << 16, 1 << 16, 1 << 20) if beside else group.outbox
        self.store = store
        self.base = base
        """Position of the engine's first message in the group's order, over all incarnations."""
        self.applications = {} if beside else group.applications
        self.delivered = 0
        self.begun = False  # the engine was given something to send
        self.state = "forming"
        self.version: tuple[int, int] = (-1, -1)
        self.members: tuple[int, ...] = ()
        self.closed = False
        self.intercept = intercept
        """Sees each delivery first; True keeps it from the applications."""
        self.on_notice = on_notice
        self.on_delivered: Callable[[], None] | None = None
        """After each batch of deliveries, all of which are written."""
        self.on_gap = on_gap
        """The positions from the first number up to the second are passed over."""
        stage = early_stage(spec)
        self.early = Early(stage, me, spec.family.selective) if stage else None
        """Applications want messages at an earlier stage."""
        self.memory: Memory | None = None
        """Where what is delivered is kept for those who come later, if it has an order."""
        self.lineage = lineage
        """The id of the history that positions belong to."""
        self.waits = ""
        """Too few members for applications' messages: what the state says of that."""
        self.held = False
        """No new messages go to the engine while the roster changes."""
        if trace is not None:
            self.record_restart(trace, time.monotonic_ns())
        if not spec.family.resilient:
            self.state = "open"
            self.members = tuple(range(len(roster)))
        self.expected = self.position
        """The position after the last one delivered; -1 where there is no order."""

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    # -- what the node calls ---------------------------------------------------------------

    @property
    def deadline(self) -> int:
        if self.closed:
            return NEVER
        deadline = self.driver.engine.deadline
        return deadline if self.hub is None else min(deadline, self.hub.deadline)

    def on_timer(self, now: int) -> None:
        engine = self.driver.engine
        if engine.deadline <= now:
            engine.on_timer(now)
        if self.hub is not None:
            self.hub.on_timer(now)

    def carry_out(self, now: int) -> None:
        """Carry out what the engine wants."""
        self.driver.carry_out(now)
        engine, outbox = self.driver.engine, self.outbox
        if self.settles_later:
            while outbox.underway and 0 <= outbox.underway[0].number < engine.answered_below:
                outbox.settle(-1, time.time_ns())
        if engine.deadline < now + NEAR_NS:
            # What it was for may be settled: to ask costs less than to be woken for nothing.
            engine.on_timer(now)
        if outbox.turned_away:
            outbox.make_room()

    # -- what the driver calls -------------------------------------------------------------

    def keep(self, effects: Effects) -> None:
        """Write what the engine persists."""
        if effects.persists and self.store is not None:
            token = self.token
            self.store.write(effects.persists, token is not None and token.config.sync_commits)
            if token is not None:
                self.store.rotate(token)

    def hand_over(self, effects: Effects, now: int) -> None:
        """Tell applications what is delivered and noticed."""
        deliveries, notices = effects.deliveries, effects.notices
        if deliveries and notices:
            # A view may name another history, which what is delivered with it is of.
            for view in [notice for notice in notices if notice.kind == "view"]:
                self.notice(view)
            notices = [notice for notice in notices if notice.kind != "view"]
        wall = time.time_ns()
        for delivery in deliveries:
            if self.closed:
                break
            if self.early is not None and delivery.stage == self.early.stage:
                self.deliver_early(self.early, delivery, wall)
                continue
            seq = self.advance(delivery)
            if self.is_kept_back(delivery, seq, wall):
                continue
            bundle = delivery.bundle
            self.delivered += len(bundle.sizes)
            sender = self.roster[delivery.source]
            batch = Batch(self.spec.name, seq, sender, wall, bundle, WHOLE, self.lineage)
            if self.memory is not None and seq >= 0:
                self.memory.add(batch)
            if self.early is not None:
                self.deliver_late(self.early, delivery, batch)
                continue
            # Looked up each time: one that cannot keep it has another in its place from then on.
            for application in list(self.applications.values()):
                application.deliver(batch)
        if deliveries and self.on_delivered is not None:
            self.on_delivered()
        for notice in notices:
            self.notice(notice)

    def advance(self, delivery: Delivery) -> int:
        """The position of what is delivered, or -1; what was skipped is passed over."""
        if delivery.seq < 0:
            return -1
        seq = self.base + delivery.seq
        if seq > self.expected:
            self.pass_over(seq)
        self.expected = seq + len(delivery.bundle.sizes)
        return seq

    def is_kept_back(self, delivery: Delivery, seq: int, wall: int) -> bool:
        """Whether applications here are not given this: our own copy of what is for others, which
        tells us that it is through, or a message of the nodes themselves."""
        if delivery.source == self.me:
            own = self.own_delivered(delivery, seq, wall)
            if own is not None and own.to is not None and self.roster[self.me] not in own.to:
                return True
        return self.intercept is not None and self.intercept(delivery)

    def traced(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that are early are written down when they are through."""
        if self.early is None:
            return deliveries
        return [delivery for delivery in deliveries if delivery.stage != self.early.stage]

    def ready(self) -> bool:
        """Whether the engine should be given another bundle now: one waits there at most."""
        engine = self.driver.engine
        if self.held or engine.stopped or not engine.takes_more:
            return False
        # The first submission waits for a list: what never was in one certainly is not sent.
        return self.begun or engine.is_formed

    def feed(self, now: int) -> None:
        """Give the engine bundles while it takes them."""
        outbox = self.outbox
        engine: Any = self.driver.engine
        while outbox and self.ready() and (not self.waits or outbox.has_word):
            self.begun = True
            gathered = outbox.gather()
            bundle, names = gathered.bundle, gathered.to
            to = None if names is None else self.destinations(names)
            if to is not None and not to:
                outbox.refuse(gathered, "its destinations are no longer in the group")
                continue
            if self.driver.trace is not None:
                shown = bundle if to is None else Addressed(bundle, tuple(sorted({*to, self.me})))
                self.driver.record_submission(self.driver.trace, shown, now)
            self.driver.submitted += len(bundle)
            try:
                if to is not None:
                    # Our own copy tells us when it is through; see `is_kept_back`.
                    engine.submit(bundle, now, {*to, self.me})
                else:
                    engine.submit(bundle, now)
            except RoundelayError as error:
                outbox.lose_track(gathered, str(error))

    def destinations(self, names: tuple[str, ...]) -> set[int]:
        """Members of the present roster among `names`."""
        return {place for place, name in enumerate(self.roster) if name in names}

    def deliver_early(self, early: Early, delivery: Delivery, wall: int) -> None:
        """A message whose place is not certain: for applications, not for recorders."""
        retired = self.intercept is not None and self.intercept(delivery)
        if not retired and early.give(delivery):
            name, sender = self.spec.name, self.roster[delivery.source]
            self.give_applications(Batch(name, -1, sender, wall, delivery.bundle))

    def deliver_late(self, early: Early, delivery: Delivery, batch: Batch) -> None:
        """The same when it is through: for recorders, and for applications that lack it."""
        for application in list(self.applications.values()):
            if application.is_recorder:
                application.deliver(batch)
        if not early.was_given(delivery):
            self.give_applications(structs.replace(batch, seq=-1, history=""))

    def give_applications(self, batch: Batch) -> None:
        for application in list(self.applications.values()):
            if not application.is_recorder:
                application.deliver(batch)

    def pass_over(self, seq: int) -> None:
        """What is before `seq` is not delivered here."""
        lo, self.expected = self.expected, seq
        if self.applications:
            self.on_gap(lo, seq)

    def own_delivered(self, delivery: Delivery, seq: int, wall: int) -> Underway | None:
        """A bundle of ours came through: the oldest one under way, unless it is of another life."""
        if self.settles_later:
            # Delivered here when it is sent; settled when everybody has answered.
            for bundle in self.outbox.underway:
                if bundle.number < 0:
                    bundle.number = delivery.number
                    break
        elif type(delivery) is not OtherLife:
            return self.outbox.settle(seq, wall, self.resilience)
        return None

    # -- the trace -------------------------------------------------------------------------

    def record_restart(self, trace: LiveTrace, now: int) -> None:
        """What the last life had on disk and not in its trace when it was killed."""
        stable = None if self.store is None else self.store.stable
        if stable is None:
            trace.forgot()
        deliveries, gap = undelivered(stable, trace.position)
        for delivery in deliveries:
            trace.rows.append((now, self.me, DELIVER, delivery.seq, delivery.source, delivery))
        if gap is not None:
            trace.rows.append((now, self.me, NOTICE, NO_REF, NOBODY, gap))
        trace.flush()

    # -- notices ---------------------------------------------------------------------------

    def notice(self, notice: Notice) -> None:
        kind, info = notice.kind, notice.info
        self.log("info", f"group.{kind}", group=self.spec.name, info=_shown(info))
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
            away = [self.roster[member] for member in self.engine.given_up()]
            self.state = reasons.broken(str(info[0]), away)
            if self.spec.family.resilient:
                for bundle in list(self.outbox.underway):
                    self.outbox.lose_track(bundle, self.state)
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

    def history(self) -> Iterator[Batch]:
        """What the engine keeps, in order; after a restart, what was delivered before it."""
        wall = time.time_ns()
        for kept in self.engine.kept_deliveries():
            seq, sender = self.base + kept.seq, self.roster[kept.source]
            yield Batch(self.spec.name, seq, sender, wall, kept.bundle, WHOLE, self.lineage)

    @property
    def position(self) -> int:
        """The next position to be delivered; -1 where there is no order."""
        return self.base + self.engine.position if self.spec.family.order == TOTAL else -1

    def retire(self) -> None:
        """The epoch is over: only serve those who have not got there yet."""
        self.held = True
        self.applications = {}
        self.outbox = Outbox(self.spec.name, 0, 0, 0)
        self.intercept = lambda delivery: True
        self.on_notice = None

    def close(self) -> None:
        self.closed = True
        if self.store is not None:
            self.store.close()

    def status(self) -> dict[str, object]:
        """As JSON."""
        engine = self.engine
        return {
            "group": self.spec.name,
            "service": self.spec.service,
            "protocol": self.spec.protocol,
            "state": self.view().state,
            "me": self.roster[self.me],
            "roster": list(self.roster),
            "members": [self.roster[member] for member in self.members],
            "position": self.position,
            "delivered": self.delivered,
            "submitted": self.driver.submitted,
            "waiting_bytes": self.outbox.bytes,
            "underway": len(self.outbox.underway),
            "pdus_sent": self.link.sent,
            "pdus_received": self.driver.received,
            "dropped": dict(engine.drops),
            "buffers": engine.usage(),
            "limits": engine.caps(),
            **engine.shown(),
        }


def _shown(info: tuple[object, ...]) -> str:
    text = ", ".join(str(part) for part in info)
    return text if len(text) <= 200 else text[:200] + "…"
