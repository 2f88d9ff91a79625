"""Two lives of one site: a process was stopped, replaced under its name, and wakes up again.

The replacement is the site from then on, and has nothing of what the first one knew.  The first one
is its *twin*: it goes on where it stopped, hears what the site hears, sends as the site, and ends
when it has heard of the other, as a node does (`node.membership.identity`).  What it delivers and
takes for receipts goes to an application of its own, which is judged here: every position must hold
what everybody else has there, and a message of ours that comes through must be one of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roundelay.core.engine import ONLY_LINE, Delivery, Pdu
from roundelay.core.token.ballot import OtherLife
from roundelay.sim.kernel.member import DOWN, PAUSED, UP, SimulatedSite

if TYPE_CHECKING:
    from roundelay.sim.kernel.kernel import Kernel

QUEUE = 256
"""PDUs that the socket of a stopped process keeps."""


class Twins:
    """The twins of a world's sites, and by whose life each transmission was sent."""

    def __init__(self, world: Kernel) -> None:
        self.world = world
        self.of: dict[int, SimulatedSite] = {}  # by site
        self.lives: dict[int, int] = {}  # transmission → boot number of the engine that made it
        self.own: dict[int, tuple[int, set[bytes]]] = {}  # first own number, and own messages
        self.order: dict[int, tuple[int, bytes]] = {}
        self.wrong: list[tuple[int, str]] = []
        world.on_delivered.append(self._heard)

    def stop(self, member: SimulatedSite) -> None:
        """The process of `member` stops; whoever replaces it, it will wake up as its twin."""
        engine: Any = member.engine
        clock = (member.rate, member.true_clock, member.base_now, member.base_local)
        twin = SimulatedSite(member.id, None, kept=engine, state=PAUSED, is_twin=True)
        twin.rate, twin.true_clock, twin.base_now, twin.base_local = clock
        own = engine.own
        mine = {data for bundle in (*own.kept, *own.waiting) for data in bundle}
        self.own[member.id] = (own.base, mine)
        self.of[member.id] = twin

    def wake(self, site: int) -> None:
        twin = self.of.get(site)
        if twin is None or twin.state != PAUSED:
            return
        twin.engine, twin.kept, twin.state = twin.kept, None, UP
        waiting = list(twin.queue)
        twin.queue.clear()
        for src, pdu, ref, _ in waiting:
            self._receive(twin, src, pdu, ref)
        if twin.engine is not None:
            self.world.rearm(twin)

    def end(self, site: int) -> None:
        """It has heard that another has its name."""
        twin = self.of.pop(site, None)
        if twin is not None:
            twin.engine, twin.kept, twin.state = None, None, DOWN

    # -- what passes -----------------------------------------------------------------------

    def sent(self, site: SimulatedSite, ref: int) -> None:
        self.lives[ref] = getattr(site.engine, "boot", 0)

    def life(self, ref: int) -> int:
        return self.lives.get(ref, 0)

    def arrive(self, src: int, pdu: Pdu, receivers: Sequence[SimulatedSite], ref: int) -> None:
        """What reaches a site reaches its twin."""
        for site in receivers:
            twin = self.of.get(site.id)
            if twin is None:
                continue
            if twin.engine is not None:
                self._receive(twin, src, pdu, ref)
            elif len(twin.queue) < QUEUE:
                twin.queue.append((src, pdu, ref, ONLY_LINE))

    def _receive(self, twin: SimulatedSite, src: int, pdu: Pdu, ref: int) -> None:
        engine: Any = twin.engine
        if engine is not None:
            engine.receive(pdu, src, twin.local(self.world.now), ONLY_LINE, self.life(ref))
            self.world.settle(twin, engine)

    # -- what is delivered -----------------------------------------------------------------

    def _heard(self, now: int, site: int, delivery: Delivery) -> None:
        if delivery.seq >= 0:
            self.order[delivery.seq] = (delivery.source, delivery.bundle.data)

    def delivered(self, twin: SimulatedSite, delivery: Delivery) -> None:
        """The application of a twin is handed `delivery`."""
        known = self.order.setdefault(delivery.seq, (delivery.source, delivery.bundle.data))
        if known != (delivery.source, delivery.bundle.data):
            self.wrong.append((twin.id, f"its twin has another message at {delivery.seq}"))
        first, mine = self.own[twin.id]
        if delivery.source != twin.id or delivery.number < first or isinstance(delivery, OtherLife):
            return
        if any(data not in mine for data in delivery.bundle):
            self.wrong.append((twin.id, f"its twin took receipt {delivery.number} of another"))
