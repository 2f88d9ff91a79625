"""Drafts of cluster runs: TO, PO and SPO under the faults that their channel allows.

The cluster protocols stand on a channel that loses PDUs but keeps their order: per sender (MC),
or for TO in channel mode of all senders together (1C, with a sender's own copies).  So whatever
duplicates or reorders goes through an adapted medium, which turns it into loss.  Nobody may fail
(TR-15): partitions and pauses end before anybody would be given up.  One kind of plan is apart: a
member stops for good, and the others have to notice and to go on without it.
"""

from __future__ import annotations

from typing import Any, Final

from roundelay.core.cluster.config import DEFERRED, DYNAMIC, EAGER, STATIC
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, MS, PREACKNOWLEDGED
from roundelay.sim.families.token.draft import Draft
from roundelay.sim.swarm.fault_kinds import CLUSTER_TARGETS, PARTITIONS, LinkSpec, Strike, kinds

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
