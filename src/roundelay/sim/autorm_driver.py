"""Runs a plan of AutoRM: faults, healing, then a time in which nothing may go wrong.

After healing every node has to find all others, every message to end, and a last message of each
node and group to reach every member; then there must be silence but for heartbeats.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import GROUP
from roundelay.core.events import MEMORY, NOTHING_LEFT
from roundelay.sim.autorm_check import AutoRmCheck
from roundelay.sim.autorm_world import AutoRmWorld
from roundelay.sim.faults import Strike
from roundelay.sim.load import Load, content
from roundelay.sim.member import UP
from roundelay.sim.strikes import SETTLE_STEPS, Setting, Striker

GROUPS: Final = ("alpha", "beta", "gamma")
SOMEONE: Final = 0.25
"""How many of the messages are to someone."""


class GroupLoad(Load):
    """Messages of random sites to random groups, at random times, to everyone or to someone."""

    world: AutoRmWorld

    def __init__(self, messages: int, until_ns: int, size: int) -> None:
        super().__init__(messages)
        self.until_ns = until_ns
        self.most = size

    def begin(self) -> None:
        for _ in range(self.messages):
            self.world.at(int(self.rng.random() * self.until_ns), self.one)

    def one(self) -> None:
        """A message from anybody."""
        rng = self.rng
        site = rng.randrange(len(self.world.sites))
        size = rng.choice((0, 1, 40, rng.randint(0, self.most)))
        self.send(site, rng.choice(GROUPS), size, rng.random() < SOMEONE)

    def send(self, site: int, group: str, size: int, someone: bool) -> int:
        """The number of the message, or -1 if the site did not take it."""
        number = self.submitted_total
        self.submitted_total += 1
        data = content(site, number, size)
        joined = group in self.world.applications[site] and self.rng.random() < 0.5
        taken = self.world.send(site, group, data, number, someone=someone, sender_joined=joined)
        return number if taken else -1


class AutoRmDriver(Striker):
    """One run of a plan of AutoRM."""

    world: AutoRmWorld
    load: GroupLoad
    world_class = AutoRmWorld

    def prepare(self, setting: Setting) -> list[object]:
        config = self.plan.config
        self.check = AutoRmCheck(
            self.breach,
            per_group=config.get("serial_scope") == GROUP,
            failover=bool(config.get("someone_failover")),
        )
        return [self.check, *setting.observers]

    def arrange(self) -> None:
        self.rng = self.world.stream("groups")
        for site in self.world.group:
            for group in GROUPS:
                if self.rng.random() < 0.6:
                    self.world.join(site, group, self.rng.choice((1, 2)))

    def make_load(self) -> GroupLoad:
        plan = self.plan
        return GroupLoad(plan.messages, plan.heal_ns, plan.size)

    @property
    def committed(self) -> int:
        return self.check.committed

    observers_judge = False

    @property
    def submitted(self) -> int:
        return len(self.check.messages)

    def settle(self, healed: int) -> bool:
        # Until the last replay has arrived: an old heartbeat says what is no longer true.
        self.world.run(healed + self.plan.liveness_ns // 8)
        return self.settled_by(healed + self.plan.liveness_ns)

    # -- healing ---------------------------------------------------------------------------

    def heal_sites(self) -> None:
        self.world.restart_all()

    def settled(self) -> bool:
        """Every message has ended, and every node knows all others and their groups."""
        return not self.check.open() and not self.strangers()

    def strangers(self) -> str:
        """What some node has wrong about another, or ""."""
        nodes = [self.world.beamon(site) for site in self.world.group]
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
        world, check, plan = self.world, self.check, self.plan
        if not settled:
            pending = check.open()
            self.breach("I7", f"{pending} messages have not ended; {self.strangers()}")
            return
        check.stable_since = world.now
        numbers = []
        for site in world.group:
            for group in GROUPS:
                for someone in (False, True):
                    number = self.load.send(site, group, self.rng.choice((0, 5000)), someone)
                    if number >= 0:
                        numbers.append(number)
        if not numbers:
            self.breach("I7", "no node takes a message")
        step = max(1, plan.liveness_ns // SETTLE_STEPS)
        if not world.run_until(lambda: not check.open(), world.now + plan.liveness_ns, step):
            self.breach("I7", f"{check.open()} messages have not ended though nothing is wrong")
        joined = {site: self.world.beamon(site).groups for site in world.group}
        for number in numbers:
            check.expect(number, joined)
        # What is still under way arrives and is answered for the last time.
        world.run(world.now + 20 * plan.config["ack_timeout_ns"])
        check.quiet = True
        before = world.sent
        world.run(world.now + 4 * max(node.environment.period() for node in self.nodes()))
        if world.sent == before:
            self.breach("I7", "no heartbeat for four periods")

    def nodes(self) -> list[Beamon]:
        return [self.world.beamon(site) for site in self.world.group]

    # -- strikes ---------------------------------------------------------------------------

    def strike_crash(self, strike: Strike, how: str) -> None:
        site = strike.args[0]
        if self.world.sites[site].state != UP:
            return
        self.count(strike.kind, site)
        self.world.crash(site, MEMORY if how == "memory" else NOTHING_LEFT)
        self.world.after(strike.lasts_ns, partial(self.world.restart, site))

    def strike_pause(self, strike: Strike, _: str) -> None:
        site = strike.args[0]
        if self.world.sites[site].state == UP:
            self.pause(site, strike, 2 * strike.lasts_ns)

    def strike_storm(self, strike: Strike, _: str) -> None:
        """A node starts again and again, each time as another."""
        site = strike.args[0]
        self.count(strike.kind, site)
        for i in range(3 + strike.args[-1] % 4):
            at = i * strike.lasts_ns
            self.world.after(at, partial(self.crash, site))
            self.world.after(at + strike.lasts_ns // 2, partial(self.world.restart, site))

    def crash(self, site: int) -> None:
        """Unless the time of faults is over."""
        if self.world.now < self.plan.heal_ns:
            self.world.crash(site, NOTHING_LEFT)

    def strike_churn(self, strike: Strike, _: str) -> None:
        site, group = strike.args[0], GROUPS[strike.args[-1] % len(GROUPS)]
        if self.world.sites[site].state != UP:
            return
        self.count(strike.kind, site)
        if group in self.world.applications[site]:
            self.world.leave(site, group)
            self.world.after(strike.lasts_ns, partial(self.world.join, site, group, 1))
        else:
            self.world.join(site, group, 1)
