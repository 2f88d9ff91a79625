"""Random runs of AutoRM: nodes that come and go, groups that change, messages of all sizes.

A site that has lost its memory starts as a new node, under a new UUID, and its applications join
their groups again.  Besides what `core.events.Observer` has, observers may have these methods::

    born(time, site, uuid)                        a node starts
    joined(time, site, group), left(...)          its applications join and leave
    asked(time, site, number, group, data, someone)   an application sends
    calm(time), expected(time, number, members), quiet(time)   how a run ends, see the driver

Nothing happens to bytes on the way: the packets of AutoRM have no checksum of their own, UDP
throws damaged ones away, so damage is loss.  After healing every node has to find all others, every
message to end, and a last message of each node and group to reach every member; then there must be
silence but for heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import GROUP, NODE, AutoRmConfig
from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, Engine
from roundelay.core.events import MEMORY, NOTHING_LEFT
from roundelay.core.notices import Notice, TransferEnded
from roundelay.sim.families.token import Draft
from roundelay.sim.kernel.load import RandomTimes, content
from roundelay.sim.kernel.member import UP
from roundelay.sim.kernel.world import World
from roundelay.sim.swarm.fault_kinds import PARTITIONS, Strike, kinds
from roundelay.sim.swarm.fault_runner import SETTLE_STEPS, Books, RunSetting, Striker

if TYPE_CHECKING:
    from roundelay.sim.swarm.plan import Plan


class AutoRmApplications:
    """Makes the nodes of a world, as its `make_engine`, and is their applications."""

    world: World

    def __init__(self, sites: int, config: AutoRmConfig) -> None:
        self.group = tuple(range(sites))
        self.config = config
        # Of each site: its groups, with the number of applications in each.
        self.memberships: list[dict[str, int]] = [{} for _ in self.group]

    def attached(self, world: World) -> None:
        self.world = world

    def __call__(self, site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        # A UUID for this start begins with the site, counted from 1.
        uuid = (site + 1).to_bytes(4, "big") + rng.randbytes(12)
        return Beamon(site, self.group, self.config, rng, now, uuid=uuid)

    def started(self, time: int, site: int, engine: Beamon) -> None:
        self.world.tell("born", time, site, engine.uuid)
        for group in list(self.memberships[site]):
            self._join(site, group)

    def join(self, site: int, group: str, local: int = 1) -> None:
        """`local` applications at `site` are in `group`; at a site that is down, when it is up."""
        self.memberships[site][group] = local
        self._join(site, group)

    def _join(self, site: int, group: str) -> None:
        def verb(beamon: Beamon, now: int) -> None:
            beamon.join(group, now, self.memberships[site][group])
            self.world.tell("joined", self.world.now, site, group)

        self.world.call(site, verb)

    def leave(self, site: int, group: str) -> None:
        """No application at `site` is in `group` any more; nothing happens if it is not up."""

        def verb(beamon: Beamon, now: int) -> None:
            beamon.leave(group, now)
            self.memberships[site].pop(group, None)
            self.world.tell("left", self.world.now, site, group)

        self.world.call(site, verb)

    def send(
        self,
        site: int,
        group: str,
        data: bytes,
        number: int,
        *,
        someone: bool = False,
        sender_joined: bool = False,
    ) -> bool:
        """An application at `site` sends message `number`; False if the site takes none."""

        def verb(beamon: Beamon, now: int) -> None:
            if someone:
                beamon.send_someone(group, data, now, number, sender_joined)
            else:
                beamon.send_everyone(group, data, now, number)
            # Observers hear of it before of its delivery, which may be part of the same call.
            self.world.tell("asked", self.world.now, site, number, group, data, someone)

        return self.world.enter(site, Bundle.of(data), verb, tells=True)


KINDS: Final = (
    *kinds("loss burst duplicate replay delay reorder clog"),
    *kinds("heartbeat data acknowledgement", "target:"),
    *PARTITIONS,
    *kinds("crash:memory crash:nothing pause storm:restart clock:rate clock:jump churn"),
)
"""What a Beamon has to survive; with churn, applications leave a group, or join one."""


class AutoRmDraft(Draft):
    """Draws a plan of AutoRM."""

    def fields(self) -> dict[str, Any]:
        rng = self.rng
        sites = rng.choice((2, 3, 3, 4, 4, 5, 6, 8))
        self.one_way_ns = rng.choice((MS // 20, MS // 4, MS, 5 * MS))
        faults = self.faults(KINDS)
        config = self.autorm(sites)
        links = self.links(faults)
        strikes = self.strikes(faults, sites)
        heal_ns = strikes[-1].at + self.unit_ns * rng.randint(1, 3)
        messages = rng.randint(60, 160)
        return self.steady(
            (16, 200, 3_000, 20_000, 100_000),
            sites=sites,
            boot="",
            config=config,
            medium="datagram",
            medium_args=(self.one_way_ns // 4, self.one_way_ns),
            messages=messages,
            links=links,
            strikes=strikes,
            heal_ns=heal_ns,
            liveness_ns=40 * self.unit_ns + messages * self.turn_ns,
        )

    def autorm(self, sites: int) -> dict[str, Any]:
        """Times in units of the round trip, buffers large and small."""
        rng = self.rng
        trip = 2 * self.one_way_ns
        jitter = int(trip * rng.choice((0, 0.5, 2)))
        timeout = jitter + int(trip * rng.uniform(1.5, 6))
        least = int(timeout * rng.choice((2, 5, 10)))
        retries = rng.choice((3, 6, 10))
        factor = rng.choice((3, 4, 4, 6))
        per_node = max(1, least // rng.choice((3, 5, 10)))
        config = {
            "mtu": rng.choice((576, 1500, 1500, 9000)),
            "trust": rng.choice((0.0, 0.3, 0.5, 0.5, 1.0)),
            "hb_min_ns": least,
            "hb_per_node_ns": per_node,
            "hb_on_change_ns": least // rng.choice((2, 10)),
            "stale_factor": factor,
            "ack_timeout_ns": timeout,
            "ack_jitter_ns": jitter,
            "max_retries": retries,
            "confirm_every": rng.choice((1, 4, 32)),
            "burst": rng.choice((4, 32, 256)),
            "pace_ns": trip // rng.choice((1, 4)),
            "serial_scope": rng.choice((NODE, NODE, GROUP)),
            "someone_failover": rng.random() < 0.2,
            "history": rng.choice((1, 8, 32)),
            "queue_bytes": rng.choice((20_000, 1 << 20, 1 << 24)),
            "max_message": 1 << 20,
            "reassembly_peer": rng.choice(((1 << 20) + 512, 1 << 24)),
            "reassembly_total": 1 << 24,
        }
        # How long a node may be silent before it is buried ...
        stale = factor * max(least, per_node * 2 * sites)
        self.unit_ns = stale + least
        # ... and how long a message may take that has to wait for the end of somebody.
        self.turn_ns = (retries + 3) * timeout + stale // 4
        return config


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


class AutoRmBooks(Books):
    """Knows which messages have not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.uuids: dict[int, bytes] = {}
        self.pending: dict[int, bytes] = {}  # number of a message → its sender

    def born(self, time: int, site: int, uuid: bytes) -> None:
        self.uuids[site] = uuid

    def asked(
        self, time: int, site: int, number: int, group: str, data: bytes, someone: bool
    ) -> None:
        self.submissions.add(data)
        self.pending[number] = self.uuids[site]

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if isinstance(notice, TransferEnded):
            self.pending.pop(notice.tag, None)

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
        for site, group, someone in product(world.group, GROUPS, (False, True)):
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
