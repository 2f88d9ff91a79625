"""Runs a plan of AutoRM: faults, healing, then a time in which nothing may go wrong.

After healing every node has to find all others, every message to end, and a last message of each
node and group to reach every member; then there must be silence but for heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from roundelay.core.autorm.beamon import AutoRmDelivery, Beamon
from roundelay.core.events import MEMORY, NOTHING_LEFT
from roundelay.core.notices import Notice, TransferEnded
from roundelay.sim.families.autorm.applications import AutoRmApplications
from roundelay.sim.kernel.load import RandomTimes, content
from roundelay.sim.kernel.member import UP
from roundelay.sim.swarm.fault_kinds import Strike
from roundelay.sim.swarm.fault_runner import SETTLE_STEPS, RunSetting, Striker

if TYPE_CHECKING:
    from roundelay.sim.swarm.plan import Plan

GROUPS: Final = ("alpha", "beta", "gamma")
SOMEONE: Final = 0.25
"""How many of the messages are to someone."""


class GroupLoad(RandomTimes):
    """Messages of random sites to random groups, at random times, to everyone or to someone."""

    def __init__(self, applications: AutoRmApplications, plan: Plan) -> None:
        super().__init__(plan.messages, until_ns=plan.heal_ns)
        self.applications = applications
        self.most = plan.size

    def send_one(self) -> None:
        rng = self.rng
        site = rng.randrange(len(self.world.sites))
        size = rng.choice((0, 1, 40, rng.randint(0, self.most)))
        self.send(site, rng.choice(GROUPS), size, rng.random() < SOMEONE)

    def send(self, site: int, group: str, size: int, someone: bool) -> int:
        """The number of the message, or -1 if the site did not take it."""
        number = self.submitted_total
        self.submitted_total += 1
        data = content(site, number, size)
        apps = self.applications
        joined = group in apps.memberships[site] and self.rng.random() < 0.5
        taken = apps.send(site, group, data, number, someone=someone, sender_joined=joined)
        return number if taken else -1


class AutoRmBooks:
    """An observer that knows which messages have not ended."""

    def __init__(self) -> None:
        self.uuids: dict[int, bytes] = {}
        self.submissions: set[bytes] = set()
        self.delivered_somewhere: set[bytes] = set()
        self.pending: dict[int, bytes] = {}  # number of a message → its sender

    def born(self, time: int, site: int, uuid: bytes) -> None:
        self.uuids[site] = uuid

    def asked(
        self, time: int, site: int, number: int, group: str, data: bytes, someone: bool
    ) -> None:
        self.submissions.add(data)
        self.pending[number] = self.uuids[site]

    def delivered(self, time: int, site: int, delivery: AutoRmDelivery) -> None:
        self.delivered_somewhere.update(delivery.bundle)

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if isinstance(notice, TransferEnded):
            self.pending.pop(notice.tag, None)

    @property
    def committed(self) -> int:
        return len(self.delivered_somewhere & self.submissions)

    def open(self) -> int:
        """Messages of nodes that still run whose fate is not known."""
        living = set(self.uuids.values())
        return sum(sender in living for sender in self.pending.values())


class AutoRmDriver(Striker):
    """One run of a plan of AutoRM."""

    applications: AutoRmApplications
    load: GroupLoad
    observers_judge = False
    storm_keeps = NOTHING_LEFT
    pause_factor = 2

    def prepare(self, setting: RunSetting) -> Iterable[object]:
        self.books = AutoRmBooks()
        return setting.observers

    def arrange(self) -> None:
        self.rng = self.world.stream("groups")
        for site in self.world.group:
            for group in GROUPS:
                if self.rng.random() < 0.6:
                    self.applications.join(site, group, self.rng.choice((1, 2)))

    def make_load(self) -> GroupLoad:
        return GroupLoad(self.applications, self.plan)

    @property
    def submitted(self) -> int:
        return len(self.books.submissions)

    def settle(self, healed: int) -> bool:
        # Until the last replay has arrived: an old heartbeat says what is no longer true.
        self.world.run(healed + self.plan.liveness_ns // 8)
        return self.settled_by(healed + self.plan.liveness_ns)

    # -- healing ---------------------------------------------------------------------------

    def settled(self) -> bool:
        """Every message has ended, and every node knows all others and their groups."""
        return not self.books.open() and not self.strangers()

    def strangers(self) -> str:
        """What some node has wrong about another, or ""."""
        nodes = self.nodes()
        groups = {node.uuid: set(node.groups) for node in nodes}
        for node in nodes:
            table = node.environment.nodes
            if table.keys() | {node.uuid} != groups.keys():
                return f"{node.uuid.hex()[:14]} knows {len(table)} nodes of {len(nodes) - 1}"
            for uuid, other in table.items():
                if set(other.groups) != groups[uuid]:
                    return f"{node.uuid.hex()[:14]} has the groups of {uuid.hex()[:14]} wrong"
        return ""

    def after_settling(self, settled: bool) -> None:
        """I7 and QUIET."""
        world, books, plan = self.world, self.books, self.plan
        if not settled:
            pending = books.open()
            self.breach("I7", f"{pending} messages have not ended; {self.strangers()}")
            return
        world.tell("calm", world.now)
        numbers: dict[int, str] = {}
        for site in world.group:
            for group in GROUPS:
                for someone in (False, True):
                    number = self.load.send(site, group, self.rng.choice((0, 5000)), someone)
                    if number >= 0:
                        numbers[number] = group
        if not numbers:
            self.breach("I7", "no node takes a message")
        step = max(1, plan.liveness_ns // SETTLE_STEPS)
        if not world.run_until(lambda: not books.open(), world.now + plan.liveness_ns, step):
            self.breach("I7", f"{books.open()} messages have not ended though nothing is wrong")
        for number, group in numbers.items():
            members = [site for site in world.group if group in world.site(site).groups]
            world.tell("expected", world.now, number, members)
        # What is still under way arrives and is answered for the last time.
        world.run(world.now + 20 * plan.config["ack_timeout_ns"])
        world.tell("quiet", world.now)
        before = world.sent
        world.run(world.now + 4 * max(node.environment.period() for node in self.nodes()))
        if world.sent == before:
            self.breach("I7", "no heartbeat for four periods")

    def nodes(self) -> list[Beamon]:
        return [self.world.site(site) for site in self.world.group]

    # -- strikes ---------------------------------------------------------------------------

    def strike_crash(self, strike: Strike, how: str) -> None:
        site = strike.args[0]
        if self.world.sites[site].state != UP:
            return
        self.count(strike.kind, site)
        self.world.crash(site, MEMORY if how == "memory" else NOTHING_LEFT)
        self.world.after(strike.lasts_ns, partial(self.world.restart, site))

    def strike_churn(self, strike: Strike, _: str) -> None:
        site, group = strike.args[0], GROUPS[strike.args[-1] % len(GROUPS)]
        if self.world.sites[site].state != UP:
            return
        self.count(strike.kind, site)
        if group in self.applications.memberships[site]:
            self.applications.leave(site, group)
            self.world.after(strike.lasts_ns, partial(self.applications.join, site, group, 1))
        else:
            self.applications.join(site, group, 1)
