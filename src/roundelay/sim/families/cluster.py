"""Random runs of TO, PO and SPO, under the faults that their channel allows.

The cluster protocols stand on a channel that loses PDUs but keeps their order: per sender (MC),
or for TO in channel mode of all senders together (1C, with a sender's own copies).  So whatever
duplicates or reorders goes through an adapted medium, which turns it into loss.  Nobody may fail
(TR-15): partitions and pauses end before anybody would be given up.  One kind of plan is apart: a
member stops for good, and the others have to notice and to go on without it.

What the driver demands beyond what the checkers see: after healing every message reaches all its
destinations; then the network falls silent (QUIET); nobody declares the cluster broken while all
members live; and on the wire no rule is broken (`wiretap`).

In a plan in which a member fails the driver is the cluster's owner.  It acts when every survivor
has suspected the member and declared the cluster broken (TR-15), or in some plans as soon as one
has; in some another member fails then.  The survivors say what they hold, one after the other, and
hand over the rest (TR-16): all must have been given the same, and nothing that anybody has been
given may be given back to its submitter.  Then they reopen the cluster without those who failed,
one after the other, in one new epoch, which is judged by observers of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Final

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.config import DEFERRED, DYNAMIC, EAGER, STATIC
from roundelay.core.cluster.flush import Tail
from roundelay.core.engine import (
    ACCEPTED,
    ACKNOWLEDGED,
    MS,
    NEVER,
    PREACKNOWLEDGED,
    Delivery,
    Notice,
)
from roundelay.core.events import MARK, NOBODY, NOTHING_LEFT
from roundelay.sim.families.token import Draft
from roundelay.sim.kernel.kernel import tell
from roundelay.sim.kernel.load import Load, Poisson, Saturating, To, identity
from roundelay.sim.kernel.member import PAUSED
from roundelay.sim.network.links import Targeted
from roundelay.sim.network.wiretap import WireTap
from roundelay.sim.swarm.fault_kinds import CLUSTER_TARGETS, PARTITIONS, LinkSpec, Strike, kinds
from roundelay.sim.swarm.fault_runner import Books, RunSetting, Striker

KINDS: Final = (
    *kinds("loss burst duplicate replay delay reorder clog corrupt truncate alien-version"),
    *CLUSTER_TARGETS,
    *PARTITIONS,
    *kinds("pause clock:rate clock:jump slow-consumer"),
)
"""What a cluster has to survive."""

FAILURE_KINDS: Final = (
    *kinds("loss delay corrupt truncate"),
    *kinds("dt null stat rst", "target:"),
    *kinds("rate jump", "clock:"),
)
"""What may happen beside a failure: nothing that makes the living look dead."""

DISORDER: Final = ("duplicate", "replay", "reorder")
"""What only an adapted medium makes bearable."""

ARRIVALS: Final = 6_500
"""Arrivals of PDUs a run is meant to cost, about; the number of messages follows from it."""


class ClusterDraft(Draft):
    """Draws a plan of a cluster."""

    bursts = ((0.0005, 0.002), (3, 20, 200))
    delays = (1, 5, 20)

    def fields(self) -> dict[str, Any]:
        rng = self.rng
        sites = rng.choice((2, 3, 3, 4, 4, 5, 6, 7))
        self.one_way_ns = rng.choice((MS // 20, MS // 4, MS, 5 * MS))
        fails = rng.randrange(sites) if sites > 2 and rng.random() < 0.15 else -1
        faults = self.faults(KINDS if fails < 0 else FAILURE_KINDS)
        self.policy = rng.choice((DEFERRED, DEFERRED, DEFERRED, EAGER))
        if sites > 5:
            self.policy = DEFERRED  # n² PDUs for a message would be most of the time spent
        medium, medium_args = self.channel(faults)
        config = self.cluster(sites, medium_args)
        links = self.links(faults)
        strikes = self.strikes(faults, sites)
        heal_ns = strikes[-1].at + self.unit_ns * rng.randint(1, 4)
        if fails < 0:
            config["attempts"] = self.patience(strikes, links)
        else:
            config["attempts"] = attempts = rng.choice((6, 8))
            strikes += (Strike(heal_ns, "fail", 0, (fails, rng.randrange(1 << 16))),)
            config["own_limit"] = 4096
            heal_ns += attempts * (4 * config["stat_ns"] + 8 * config["reset_ns"])
            heal_ns += 20 * self.unit_ns
        spread, never = self.spread(sites) if fails < 0 else (rng.choice((0, sites)), ())
        if not self.family.selective:
            spread, never = 0, ()
        messages = self.messages(sites, config["policy"], spread)
        saturated = fails < 0 and rng.random() < 0.2
        return {
            "sites": sites,
            "boot": config["boot"],
            "config": config,
            "medium": medium,
            "medium_args": medium_args,
            "wire": rng.random() < 0.25,
            "messages": messages,
            "rate": 0.0 if saturated else messages * 1e9 / heal_ns * rng.uniform(1, 2),
            "size": rng.choice((10, 16, 64, 200)),
            "links": links,
            "strikes": strikes,
            "heal_ns": heal_ns,
            "liveness_ns": 40 * self.unit_ns + messages * self.turn_ns,
            "spread": spread,
            "never": never,
            "sources": self.sources(sites, never) if fails < 0 else (),
            "fails": fails,
        }

    # -- the channel -----------------------------------------------------------------------

    def channel(self, faults: list[str]) -> tuple[str, tuple[int, ...]]:
        """A medium and its arguments; adapted where the faults would break its order."""
        rng, delay = self.rng, self.one_way_ns
        adapted = not {*DISORDER}.isdisjoint(faults)
        if self.family.one_channel:
            # One receiver's delay is everybody's disorder on one channel.
            adapted = adapted or "delay" in faults or "clog" in faults
            slot = rng.choice((0, 0, delay // 100, delay // 25))
            return "bus", (delay, slot, 1, int(adapted))
        if adapted and self.policy == DEFERRED and rng.random() < 0.5:
            # PDUs that follow each other closely overtake each other, also after healing.
            return "datagram", (delay * 3 // 4, delay, 0, 1)
        return "mesh", (delay // rng.choice((1, 4, 10)), delay, int(adapted))

    # -- the configuration -----------------------------------------------------------------

    def cluster(self, sites: int, medium_args: tuple[int, ...]) -> dict[str, Any]:
        rng = self.rng
        trip = 2 * self.one_way_ns
        slot = medium_args[1] if self.family.one_channel else 0
        policy = self.policy
        # What all members send at once takes its time on a bus.
        round_ns = trip + 2 * sites * slot * (sites if policy == EAGER else 1)
        ack = rng.choice((0, trip // 4, 2 * trip))
        wait = int(round_ns * rng.uniform(1, 4))
        stat = 2 * wait + int(round_ns * rng.uniform(1, 5))
        reset = int(round_ns * rng.uniform(1.5, 5))
        self.unit_ns = 3 * stat + reset
        self.shortest_ns = min(2 * stat, 4 * reset)  # per attempt, until the cluster is broken
        self.turn_ns = 4 * round_ns + 2 * ack
        # A place that a reset takes back is no place to deliver at.
        early = PREACKNOWLEDGED if self.family.one_channel else ACCEPTED
        stages = (ACKNOWLEDGED, ACKNOWLEDGED, ACKNOWLEDGED, PREACKNOWLEDGED, early)
        return {
            "ack_ns": ack,
            "wait_ns": wait,
            "stat_ns": stat,
            "reset_ns": reset,
            "window": rng.choice((1, 2, 8)),
            "buffers": rng.choice((0, 0, 0, sites**2, 4 * sites**2)),
            "policy": policy,
            "deliver_at": rng.choice(stages),
            "retx_burst": rng.choice((1, 4, 16)),
            "bundle": rng.random() < 0.3,
            "own_limit": rng.choice((16, 256, 4096)),
            "max_payload": rng.choice((200, 1200, 1200)),
            "boot": rng.choice((STATIC, STATIC, DYNAMIC)),
        }

    def patience(self, strikes: tuple[Strike, ...], links: tuple[LinkSpec, ...]) -> int:
        """R: whomever the strikes and bursts keep apart is not given up, hardly ever suspected."""
        silent_ns = sum(
            strike.lasts_ns for strike in strikes if strike.kind.startswith(("part", "pause", "cl"))
        )
        # A burst takes at least one copy per poll.
        burst = sum(int(spec.args[1]) for spec in links if spec.link == "Bursts")
        return 20 + burst + silent_ns // self.shortest_ns * self.rng.choice((1, 2))

    # -- the load --------------------------------------------------------------------------

    def spread(self, sites: int) -> tuple[int, tuple[int, ...]]:
        """SPO: how many members a message goes to, and who never gets one."""
        rng = self.rng
        never: tuple[int, ...] = ()
        if sites > 2 and rng.random() < 0.4:
            never = tuple(sorted(rng.sample(range(sites), rng.randint(1, sites - 2))))
        most = sites - len(never) - 1 if never else sites
        return rng.choice((0, 0, rng.randint(1, most))), never

    def sources(self, sites: int, never: tuple[int, ...]) -> tuple[int, ...]:
        """Mostly everybody; sometimes only those that are addressed, or a few."""
        rng = self.rng
        if rng.random() < 0.5:
            return ()
        some = [site for site in range(sites) if site not in never]
        return tuple(sorted(rng.sample(some, rng.randint(1, len(some)))))

    def messages(self, sites: int, policy: str, spread: int) -> int:
        """So many that a run takes about the same effort, whatever a message costs."""
        concerned = spread + 1 if spread else sites
        pdus = concerned**2 if policy == EAGER else 2 * concerned
        return min(300, max(60, ARRIVALS // (pdus * max(1, sites - 1)))) + self.rng.randint(0, 40)


class FastClusterDraft(ClusterDraft):
    """Of the `fast` profile: messages gather while window or flow control hold data back."""

    stream = "fast/plan"

    def cluster(self, sites: int, medium_args: tuple[int, ...]) -> dict[str, Any]:
        config = super().cluster(sites, medium_args)
        config["bundle"] = True
        config["max_payload"] = self.rng.choice((200, 1200, 60_000))
        return config

    def messages(self, sites: int, policy: str, spread: int) -> int:
        """More of them, so that they gather; but one channel for all must not be choked: PDUs
        that wait for it are neither lost nor heard, and look like members that have failed."""
        more = 1 if self.family.one_channel else self.rng.choice((1, 3, 10))
        return super().messages(sites, policy, spread) * more


REOPEN: Final = "reopen"
"""MARK: from here on the cluster is another one."""

TRIES: Final = 60
"""Messages within which a survivor is sure to address the failed member."""


class ClusterDriver(Striker):
    """One run of one plan."""

    def prepare(self, setting: RunSetting) -> Iterable[object]:
        plan = self.plan
        self.to = plan.destinations()
        self.books = ClusterBooks(self.receivers)
        self.tap = WireTap(self.breach, repeats=not plan.family.core.one_channel)
        self.successors = setting.successors
        self.members = tuple(range(plan.sites))
        self.failed: set[int] = set()
        self.reopened = False
        if plan.fails < 0:
            return [self.tap, *setting.observers]
        self.relay = Relay(setting.observers)
        return [self.tap, self.relay]

    def make_load(self) -> Load:
        plan = self.plan
        options: dict[str, Any] = {"sources": plan.sources, "size": plan.size, "to": self.to}
        if plan.rate:
            return Poisson(plan.messages, plan.rate, **options)
        return Saturating(plan.messages, backlog=1 + int(plan.config["window"]), **options)

    def receivers(self, source: int, number: int) -> Collection[int]:
        return self.members if self.to is None else self.to(source, number)

    def heal_sites(self) -> None:
        """Who has failed stays away."""
        for member in self.world.sites:
            if member.state == PAUSED:
                self.world.resume(member.id)
        if self.plan.fails >= 0 and not self.reopened:
            late = [site for site in self.survivors() if site not in self.books.broken]
            self.breach("TR-15", f"sites {late} have not noticed that {self.plan.fails} is gone")
            self.stop_all(Strike(0, "fail", 0, (self.plan.fails, 0)))

    def settled(self) -> bool:
        return self.load.done and not self.books.missing

    def after_settling(self, settled: bool) -> None:
        """VALID and AGREE, then QUIET."""
        books, world = self.books, self.world
        if self.plan.fails < 0 and books.broken:
            site, reason = min(books.broken.items())
            self.breach("TR-15", f"broken though all members live: {reason}", site)
        if not settled:
            for data, sites in list(books.missing.items())[:1]:
                source, number = identity(data)
                detail = f"message {number} of site {source} never came, as did "
                detail += f"{len(books.missing) - 1} others"
                self.breach("I7", detail, min(sites))
            if not self.load.done:
                refused = self.load.messages - self.load.submitted_total
                self.breach("I7", f"{refused} messages could not be submitted")
            return
        config = self.plan.config
        timers_ns = sum(config[name] for name in ("ack_ns", "wait_ns", "stat_ns", "reset_ns"))
        calm_ns = 20 * (timers_ns + self.plan.medium_args[0])
        world.sample_ns = calm_ns  # there is nothing more to see
        world.run(world.now + calm_ns)
        before = Counter(world.sent_by_kind)
        world.run(world.now + 5 * calm_ns)
        more = Counter(world.sent_by_kind) - before
        if more:
            sent = {kind.__name__: count for kind, count in more.items()}
            self.breach("QUIET", f"all is delivered, and still they send: {sent}")
        for member in world.sites:
            if member.engine is not None and member.engine.deadline < NEVER:
                self.breach("QUIET", "all is delivered, and still a timer runs", member.id)

    # -- strikes ---------------------------------------------------------------------------

    def strike_target(self, strike: Strike, pdu: str) -> None:
        """At everybody, or at one receiver only."""
        kth, many, whom = (arg % 3 for arg in strike.args[-3:])
        dst = None if whom else strike.args[0]
        self.put(Targeted(pdu, 1 + kth, 1 + many, dst=dst))

    # -- a failed member -------------------------------------------------------------------

    def survivors(self) -> tuple[int, ...]:
        return tuple(site for site in self.world.group if site not in self.failed)

    def strike_fail(self, strike: Strike, _: str) -> None:
        """The member is gone, and everybody has something to tell it."""
        failed = strike.args[0]
        self.fail(failed)
        self.books.on_broken = partial(self.look_at_broken, strike)
        for site in self.survivors():
            for _try in range(TRIES):
                number = self.load.numbers.get(site, 0)
                self.load.one_more(site)
                if failed in self.receivers(site, number):
                    break

    def look_at_broken(self, strike: Strike) -> None:
        """When everybody knows, or somebody, the owner acts; not from inside a batch of effects."""
        early = strike.args[1] >> 4 & 1
        if self.reopened or not (
            early or all(site in self.books.broken for site in self.survivors())
        ):
            return
        self.reopened = True
        if not early:
            for site in self.survivors():
                if self.plan.fails not in self.books.suspects.get(site, ()):
                    self.breach("TR-15", f"{self.plan.fails} was never suspected", site)
        self.world.after(0, partial(self.stop_all, strike))

    def stop_all(self, strike: Strike) -> None:
        """TR-16: the survivors say what they hold, one after the other; some plans lose one more.

        It fails before it has said anything, or after.
        """
        world, living = self.world, self.survivors()
        dice = strike.args[1] >> 5
        stagger = dice % 4 * int(self.plan.config["stat_ns"]) // 2
        another, says_it = dice >> 2 & 15, dice >> 6 & 1
        if len(living) < 3:
            another = len(living)  # nobody
        tails: dict[int, Tail] = {}
        for i, site in enumerate(living):
            if i != another or says_it:
                world.after(i * stagger, partial(self.stop_one, site, living, tails))
            if i == another:
                world.after(i * stagger, partial(self.fail, site))
        world.after(len(living) * stagger, partial(self.go_on, strike, tails))

    def fail(self, site: int) -> None:
        self.count("fail", site)
        self.failed.add(site)
        self.world.crash(site, NOTHING_LEFT)

    def stop_one(self, site: int, living: tuple[int, ...], tails: dict[int, Tail]) -> None:
        def verb(engine: Any, now: int) -> None:
            tails[site] = engine.tail(living)

        self.world.call(site, verb)

    def go_on(self, strike: Strike, tails: dict[int, Tail]) -> None:
        """All hand over the rest; then one new epoch, of which they hear one after the other."""
        world, books = self.world, self.books
        self.reopened = True
        self.members = members = self.survivors()
        for site in members:
            world.call(site, lambda engine, now: engine.flush(tails))
        for site, detail in books.unlike(members):
            self.breach("I2", detail, site)
        engines = [world.site(site) for site in members]
        epoch = 2 + max(max(engine.epoch, engine.rst) for engine in engines)
        self.to = self.plan.destinations(members)
        self.load.to = self.to
        books.missing.clear()
        self.relay.new = tuple(self.successors(members))
        world.row(NOBODY, MARK, REOPEN)
        stagger = strike.args[1] % 3 * int(self.plan.config["reset_ns"]) // 2
        for i, site in enumerate(members):
            world.after(i * stagger, partial(self.reopen_at, site, epoch))

    def reopen_at(self, site: int, epoch: int) -> None:
        books = self.books
        books.broken.pop(site, None)
        self.world.call(site, lambda engine, now: engine.reopen(self.members, epoch, now))
        self.relay.moved.add(site)
        back = books.given_back.pop(site, set())
        kept = books.own.pop(site, set()) - books.given.get(site, set()) - back
        if kept:
            detail = f"{len(kept)} own messages were neither delivered nor given back"
            self.breach("I5", detail, site)
        twice = back & books.given_anywhere
        if twice:
            detail = f"{len(twice)} messages were given back that somebody has been given"
            self.breach("I5", detail, site)


class ClusterBooks(Books):
    """Knows what each member has been given or given back, and who has given up on whom."""

    def __init__(self, receivers: To) -> None:
        super().__init__(receivers)
        self.own: dict[int, set[bytes]] = {}  # messages of a site that are for itself, too
        self.given: dict[int, set[bytes]] = {}  # what each site has received
        self.given_back: dict[int, set[bytes]] = {}
        self.suspects: dict[int, set[object]] = {}
        self.broken: dict[int, object] = {}  # site → reason
        self.on_broken: Callable[[], None] = lambda: None

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        super().submitted(time, site, index, bundle)
        own = {data for data in bundle if site in self.missing[data]}
        self.own.setdefault(site, set()).update(own)

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        super().delivered(time, site, delivery)
        self.given.setdefault(site, set()).update(delivery.bundle)

    def unlike(self, members: Collection[int]) -> Iterator[tuple[int, str]]:
        """TR-16: what one of `members` has been given, and another it was for has not."""
        given = {site: self.given.get(site, set()) for site in members}
        for data in sorted(set().union(*given.values())):
            source, number = identity(data)
            for site in members:
                if site in self.receivers(source, number) and data not in given[site]:
                    yield site, f"message {number} of site {source} was given to others only"
                    return

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if notice.kind == "suspect":
            self.suspects.setdefault(site, set()).add(notice.info[0])
        elif notice.kind == "undelivered":
            bundles: Any = notice.info[0]
            self.given_back[site] = {data for bundle in bundles for data in bundle}
        elif notice.kind == "broken":
            self.broken[site] = notice.info[0]
            self.on_broken()


class Relay:
    """Shows a cluster to its observers until it is reopened, then to those of its successor."""

    def __init__(self, observers: Iterable[object]) -> None:
        self.old = tuple(observers)
        self.new: tuple[object, ...] = ()
        self.moved: set[int] = set()  # members of the new cluster

        for method in ("submitted", "delivered", "noticed", "crashed", "sampled"):
            setattr(self, method, partial(self._tell, method))

    def _tell(self, method: str, time: int, site: int, *args: object) -> None:
        observers = self.new if site in self.moved else self.old
        tell(observers, method, time, site, *args)

    def healed(self, time: int) -> None:
        tell(self.old + self.new, "healed", time)

    def finished(self, time: int, up: set[int], settled: bool = True) -> None:
        tell(self.old, "finished", time, up, False)
        tell(self.new, "finished", time, up & self.moved, settled)
