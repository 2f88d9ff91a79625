"""The kernel of a world: sites, a medium and a heap of events in virtual time.

Nothing here happens in real time or by real chance.  The heap holds what will happen, ordered by
time and then by the order in which it was decided; one seed gives every random source a stream of
its own (`Kernel.stream`), so that one more loss draw does not shift a crash.

A site's effects are carried out in the engine's order: persists, sends, deliveries, notices.  The
kernel also plays the node: it writes the disk and feeds the application.

Each arrival of a PDU at a site counts as one event, as does each wake-up and each submission.
What can go wrong with sites is in `world`, what can go wrong between them in `links`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import (
    NEVER,
    ONLY_LINE,
    STAMPED,
    Delivery,
    Effects,
    Engine,
    HandsOnToken,
    Notice,
    Pdu,
)
from roundelay.core.errors import ClusterBroken, InvariantBroken, QueueFull, Refused
from roundelay.core.events import (
    DELIVER,
    END,
    FAULT,
    HEAL,
    IDLE,
    LOSE,
    MARK,
    NO_REF,
    NOBODY,
    NOTICE,
    PASSING,
    RECEIVE,
    ROLE,
    STOP,
    SUBMIT,
    TOKEN,
    Addressed,
    Row,
    RowSink,
)
from roundelay.core.limits import whole
from roundelay.core.notices import GapUnavailable
from roundelay.sim.kernel.disk import SimulatedDisk
from roundelay.sim.kernel.member import PAUSED, UP, Consumer, SimulatedSite
from roundelay.sim.kernel.ports import Codec, EngineFactory, StableState
from roundelay.sim.kernel.twins import Twins
from roundelay.sim.network.links import PLAIN, Link
from roundelay.sim.network.media import Bus, SimulatedMedium

FLUSH_ROWS: Final = 8192
"""Rows kept before the recorder is asked to take them."""

PAUSE_QUEUE: Final = 1024
"""PDUs the operating system keeps for a paused site; more are lost."""

WAKES_MAX: Final = 10_000
"""Wake-ups of one site in one instant before it is called a loop."""


Verb = Callable[[Any, int], object]
"""Something that is done with an engine, at a time of its own clock."""


class Kernel(ABC):
    """`sites` engines made by `make_engine`, on `medium`, with the faults of `links`.

    `make_engine` may also look on, as an observer: who makes the engines may be their applications.
    `make_stable` makes an empty stable state; without it persists are dropped and a crash cannot
    keep the disk.  `recorder` receives the rows of the trace; arrivals are among them only with
    `trace_receives`.  `observers` may have any of the methods of `core.events.Observer`, and
    `sent(time, site, destination, pdu)`, which taps the wire, `attached(world)` before anything
    else, `started(time, site, engine)`; `sample_ns` > 0 shows them the engines' buffers that often.
    `check_invariants`: whether engines are asked after each batch if their state is sound; runs
    that are there to be timed do without.
    """

    def __init__(
        self,
        sites: int,
        make_engine: EngineFactory,
        *,
        seed: int | str = 0,
        medium: SimulatedMedium | None = None,
        links: Link = PLAIN,
        make_stable: Callable[[], StableState] | None = None,
        boot: str = "preformed",
        codec: Codec | None = None,
        recorder: RowSink | None = None,
        trace_receives: bool = True,
        observers: Iterable[object] = (),
        sample_ns: int = 0,
        check_invariants: bool = True,
    ) -> None:
        whole("sites", sites, 1)
        self.seed = seed
        self.now = 0
        self.heap: list[tuple[int, int, Callable[..., None], Any, Any, Any, Any]] = []
        self.tick = 0  # breaks ties in the heap: first decided, first done
        self.events = 0
        self.sent = 0  # transmissions; a multicast counts once
        self.sent_by_kind: dict[type[Pdu], int] = {}
        self.faults: dict[str, int] = defaultdict(int)  # injected, by kind
        self.refused: dict[str, int] = {}  # damaged copies, by the codec's reason
        self.undetected: list[tuple[int, int, int, Any]] = []  # damage the codec let through
        self.submissions_refused = 0
        self.twins: Twins | None = None
        self.recorder = recorder
        self.rows: list[Row] | None = None if recorder is None else recorder.rows
        self.arrival_rows = self.rows if trace_receives else None
        self.make_engine = make_engine
        self.check_invariants = check_invariants
        self.boot = boot
        self.running = False
        self.observers: list[object] = []
        self.on_submitted: list[Callable[[int, int, int, Bundle], None]] = []
        self.on_delivered: list[Callable[[int, int, Delivery], None]] = []
        self.on_noticed: list[Callable[[int, int, Notice], None]] = []
        self.on_sent: list[Callable[[int, int, int, Pdu], None]] = []
        for observer in (make_engine, *observers):
            self.observe(observer)

        self.group = tuple(range(sites))
        self.sites = [
            SimulatedSite(site, None if make_stable is None else SimulatedDisk(make_stable))
            for site in self.group
        ]
        self.medium = medium if medium is not None else Bus()
        self.medium.bind(self, self.stream("medium"), codec)
        self.installed = 0  # links so far, each with a stream of its own
        self.links: Link = PLAIN
        self.loss: float | None = 0.0  # set by `set_links`: chance of loss if that is all
        self.loss_random: Callable[[], float] = self.stream("unused").random
        self.set_links(links)
        for site in self.sites:
            self.start(site, None, boot)
        if sample_ns:
            self.sample_ns = sample_ns
            self.at(sample_ns, self._sample)

    # -- the outside -----------------------------------------------------------------------

    def stream(self, purpose: str) -> Random:
        """The random stream of one purpose.  Seeding with a string ignores the hash seed."""
        return Random(f"{self.seed}/{purpose}")

    def observe(self, observer: object) -> None:
        """From now on `observer` sees what applications see."""
        self.observers.append(observer)
        tell((observer,), "attached", self)
        for name in ("submitted", "delivered", "noticed", "sent"):
            method = getattr(observer, name, None)
            if method is not None:
                getattr(self, f"on_{name}").append(method)

    def tell(self, method: str, *args: object) -> None:
        """Call `method` of every observer that has it."""
        tell(self.observers, method, *args)

    def set_links(self, links: Link) -> None:
        """From now on these links are in place; PDUs under way are not touched any more."""
        for link in links.parts():
            link.bind(self._link_stream, self.fault)
            if link.episode and link not in self.links.parts():
                self.fault(link.kind)
                self.row(NOBODY, FAULT, link.kind)
        self.links = links
        self.loss = links.loss
        if links.loss:
            self.loss_random = links.rng.random

    def _link_stream(self, name: str) -> Random:
        self.installed += 1
        return self.stream(f"link/{self.installed}/{name}")

    def fault(self, kind: str) -> None:
        """Count an injected fault."""
        self.faults[kind] += 1

    def at(self, time: int, action: Callable[[], object]) -> None:
        """Call `action` at virtual `time` (at once if that has passed)."""
        self.tick += 1
        due = time if time > self.now else self.now
        heappush(self.heap, (due, self.tick, _call, action, None, None, None))

    def after(self, delay_ns: int, action: Callable[[], object]) -> None:
        self.at(self.now + delay_ns, action)

    def submit(self, site: int, bundle: Bundle, to: Iterable[int] | None = None) -> bool:
        """The application at `site` broadcasts; False if the site is not up or takes no more.

        `to`: only to these members, where the service has destinations.
        """
        if to is None:
            return self.enter(site, bundle, lambda engine, now: engine.submit(bundle, now))
        there = tuple(sorted(to))
        addressed = Addressed(bundle, there)
        return self.enter(site, addressed, lambda engine, now: engine.submit(bundle, now, there))

    def enter(self, site: int, what: Bundle | Addressed, verb: Verb, tells: bool = False) -> bool:
        """The application at `site` hands `what` to its engine by `verb`; False if it cannot.

        `tells`: `verb` itself tells the observers.
        """
        bundle = what.bundle if isinstance(what, Addressed) else what
        member = self.sites[site]
        engine = member.engine
        try:
            if engine is not None:
                verb(engine, member.local(self.now))
        except (QueueFull, ClusterBroken, Refused):
            engine = None
        if engine is None:
            self.submissions_refused += 1
            return False
        self.events += 1
        index = member.index
        member.index += len(bundle)
        if self.rows is not None:
            self.rows.append((self.now, site, SUBMIT, index, NOBODY, what))
        if not tells:
            for call in self.on_submitted:
                call(self.now, site, index, bundle)
        self.settle(member, engine)
        return True

    def call(self, site: int, verb: Verb) -> bool:
        """Call the engine of `site` and carry out what it wants; False if the site is not up."""
        member = self.sites[site]
        engine = member.engine
        if engine is None:
            return False
        verb(engine, member.local(self.now))
        self.settle(member, engine)
        return True

    def site(self, number: int) -> Any:
        """The engine of a site that has its memory, up or not, else None."""
        member = self.sites[number]
        return member.engine or member.kept

    def on_disk(self, number: int) -> Any:
        """What a site has on disk."""
        disk = self.sites[number].disk
        assert disk is not None
        return disk.stable

    # -- the loop --------------------------------------------------------------------------

    def run(self, until: int) -> None:
        """Let virtual time pass up to and including `until`, or to a call of `stop`."""
        heap = self.heap
        pop = heappop
        rows: list[Row] = [] if self.rows is None else self.rows
        self.running = True
        while heap and self.running:
            entry = pop(heap)
            time = entry[0]
            if time > until:
                heappush(heap, entry)
                break
            self.now = time
            entry[2](entry[3], entry[4], entry[5], entry[6])
            if len(rows) >= FLUSH_ROWS:
                self.flush()
        if self.running:
            self.now = max(self.now, until)
        self.running = False

    def run_until(self, done: Callable[[], bool], limit: int, step_ns: int) -> bool:
        """Run until `done()`, looking every `step_ns`; False if `limit` comes first."""
        while not done():
            if self.now >= limit or not self.heap:
                return False
            self.run(min(self.now + step_ns, limit))
        return True

    def stop(self) -> None:
        """Leave `run` after the present event."""
        self.running = False

    def flush(self) -> None:
        if self.recorder is not None:
            self.recorder.flush()

    def heal(self) -> None:
        """Plain links from now on; the observers may expect progress."""
        self.set_links(PLAIN)
        self.row(NOBODY, MARK, HEAL)
        self.tell("healed", self.now)

    def finish(self, settled: bool = True) -> None:
        """The run is over: tell the observers, hand the last rows over."""
        self.row(NOBODY, MARK, END if settled else STOP)
        up = {member.id for member in self.sites if member.engine is not None}
        self.tell("finished", self.now, up, settled)
        self.flush()

    def row(self, site: int, event: int, obj: object) -> None:
        """A row that concerns no transmission."""
        if self.rows is not None:
            self.rows.append((self.now, site, event, NO_REF, NOBODY, obj))

    # -- arrivals --------------------------------------------------------------------------

    def arrive(
        self,
        src: int,
        pdu: Pdu,
        receivers: Sequence[SimulatedSite],
        ref: int,
        line: int = ONLY_LINE,
    ) -> None:
        """`pdu` reaches all `receivers` at this instant on `line`: the hot path."""
        now = self.now
        rows = self.arrival_rows
        twins = self.twins
        self.events += len(receivers)
        for site in receivers:
            engine: Any = site.engine
            if engine is None:
                self._arrive_elsewhere(site, src, pdu, ref, line)
                continue
            if rows is not None:
                rows.append((now, site.id, RECEIVE, ref, src, None))
            if twins is None:
                engine.receive(pdu, src, now if site.true_clock else site.local(now), line)
            else:
                engine.receive(pdu, src, site.local(now), line, twins.life(ref))
            out = engine.out
            if out.sends or out.deliveries or out.persists or out.notices:
                self.carry_out(site, engine)
            if engine.deadline < site.armed:
                self.arm(site, engine)
            if rows is not None and site.token is not None:
                self.look_at_role(site, site.token)
        if twins is not None:
            twins.arrive(src, pdu, receivers, ref)

    def _arrive_elsewhere(
        self, site: SimulatedSite, src: int, pdu: Pdu, ref: int, line: int
    ) -> None:
        """The site is paused (its socket keeps the PDU for a while) or down."""
        if site.state == PAUSED and len(site.queue) < PAUSE_QUEUE:
            site.queue.append((src, pdu, ref, line))
        else:
            self.lose(site.id, ref, src, site.state)

    def lose(self, site: int, ref: int, src: int, reason: str) -> None:
        """A copy of transmission `ref` does not reach `site`."""
        if self.rows is not None:
            self.rows.append((self.now, site, LOSE, ref, src, reason))

    def look_at_role(self, site: SimulatedSite, token: HandsOnToken) -> None:
        """Record who holds the token."""
        role = TOKEN if token.holding else IDLE if token.passing < 0 else PASSING
        if role is not site.role:
            site.role = role
            self.row(site.id, ROLE, role)

    # -- effects ---------------------------------------------------------------------------

    def settle(self, site: SimulatedSite, engine: Engine) -> None:
        """After any call into `engine`: carry out what it wants, and keep its wake-up early."""
        out = engine.out
        if out.sends or out.deliveries or out.persists or out.notices:
            self.carry_out(site, engine)
        if engine.deadline < site.armed:
            self.arm(site, engine)
        if self.rows is not None and site.token is not None:
            self.look_at_role(site, site.token)

    def carry_out(self, site: SimulatedSite, engine: Engine) -> None:
        """Persists, sends, deliveries, notices.

        The engine's own batch is worked off and handed back empty for the one after the next:
        a batch costs more to make than to use.
        """
        if self.check_invariants:
            engine.check_invariants()
        if site.amid is not None:
            batch = engine.take()
            if not site.amid(batch):
                if batch.persists and site.disk is not None:
                    site.disk.write(batch.persists)
                self.carry_on(site, batch)
            return
        spare = site.spare
        # None while a batch is in use: an observer may make the engine fill another meanwhile.
        site.spare = None
        out = engine.take(spare)
        persists = out.persists
        if persists:
            if site.disk is not None:
                site.disk.write(persists)
            persists.clear()
        self.carry_on(site, out)
        out.sends.clear()
        out.deliveries.clear()
        out.notices.clear()
        site.spare = out

    def carry_on(self, site: SimulatedSite, out: Effects) -> None:
        """What follows the persists."""
        if out.sends:
            send = self.medium.send
            src = site.id
            for dst, pdu, line in out.sends:
                send(src, dst, pdu, line)
                if self.twins is not None:
                    self.twins.sent(site, self.sent)
        if out.deliveries:
            hand_over = self.hand_over
            for delivery in out.deliveries:
                hand_over(site, delivery)
        if out.notices:
            for notice in out.notices:
                self.notify(site, notice)

    @abstractmethod
    def offer(self, site: SimulatedSite, consumer: Consumer, delivery: Delivery) -> None:
        """Put `delivery` into the mailbox of a slow reader; a world knows how."""

    def hand_over(self, site: SimulatedSite, delivery: Delivery) -> None:
        """The application receives `delivery`."""
        if site.is_twin:
            assert self.twins is not None
            self.twins.delivered(site, delivery)
            self.tell("twin_delivered", delivery)
            return
        now = self.now
        seq = delivery.seq
        if seq >= 0 and delivery.stage != STAMPED:
            if seq < site.forgot:
                return  # the node knows how far its application has come
            site.position = seq + len(delivery.bundle.sizes)
        if self.rows is not None:
            self.rows.append((now, site.id, DELIVER, seq, delivery.source, delivery))
        for call in self.on_delivered:
            call(now, site.id, delivery)
        if site.consumer is not None:
            self.offer(site, site.consumer, delivery)

    def notify(self, site: SimulatedSite, notice: Notice) -> None:
        """The application receives `notice`."""
        if site.is_twin:
            return
        if isinstance(notice, GapUnavailable):
            lo, hi = notice.lo, notice.hi
            if lo < site.forgot:
                if hi <= site.forgot:
                    return
                notice = GapUnavailable(site.forgot, hi)
            site.position = max(site.position, hi)
        self.row(site.id, NOTICE, notice)
        for call in self.on_noticed:
            call(self.now, site.id, notice)

    # -- timers ----------------------------------------------------------------------------

    def arm(self, site: SimulatedSite, engine: Engine) -> None:
        """A wake-up at the engine's deadline, which is earlier than the armed one.

        Later wake-ups stay in the heap and are ignored when they come; a deadline that moves
        away costs nothing until the armed wake-up comes too early and is put back.
        """
        site.armed = deadline = engine.deadline
        if deadline >= NEVER:
            site.wake = NEVER
            return
        due = deadline if site.true_clock else site.true_time(deadline)
        site.wake = due = due if due > self.now else self.now
        self.tick = tick = self.tick + 1
        heappush(self.heap, (due, tick, self._wake, site, None, None, None))

    def _wake(self, site: SimulatedSite, _b: None, _c: None, _d: None) -> None:
        now = self.now
        if site.wake != now:
            return  # an earlier wake-up has replaced this one
        engine = site.engine
        site.armed = site.wake = NEVER
        if engine is None:
            return
        local = now if site.true_clock else site.local(now)
        if engine.deadline <= local:
            self.events += 1
            engine.on_timer(local)
            if engine.deadline <= local:
                site.wakes += 1
                if site.wakes > WAKES_MAX:
                    raise InvariantBroken(f"site {site.id} is due again and again at {local}")
            else:
                site.wakes = 0
            self.settle(site, engine)
        elif engine.deadline < site.armed:
            self.arm(site, engine)

    def rearm(self, site: SimulatedSite) -> None:
        """The clock or the engine was replaced: arm from scratch."""
        site.armed = site.wake = NEVER
        if site.engine is not None and site.engine.deadline < NEVER:
            self.arm(site, site.engine)

    # -- sites -----------------------------------------------------------------------------

    def start(self, site: SimulatedSite, stable: Any, boot: str) -> None:
        """A new engine for `site`."""
        site.incarnation += 1
        rng = self.stream(f"site/{site.id}/{site.incarnation}")
        engine = self.make_engine(site.id, stable, boot, site.local(self.now), rng)
        site.engine = engine
        site.kept = None
        site.state = UP
        site.role = IDLE
        site.token = engine.token
        site.armed = site.wake = NEVER
        self.settle(site, engine)
        self.tell("started", self.now, site.id, engine)

    def _sample(self) -> None:
        for site in self.sites:
            engine = site.engine
            if engine is not None:
                self.tell("sampled", self.now, site.id, engine.usage(), engine.caps())
        self.after(self.sample_ns, self._sample)


def tell(observers: Iterable[object], method: str, *args: object) -> None:
    """Call `method` of every one of `observers` that has it."""
    for observer in observers:
        call = getattr(observer, method, None)
        if call is not None:
            call(*args)


def _call(action: Callable[[], object], _b: None, _c: None, _d: None) -> None:
    action()
