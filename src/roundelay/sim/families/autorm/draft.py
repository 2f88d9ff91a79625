"""Drafts of AutoRM runs: nodes that come and go, groups that change, messages of all sizes.

Nothing that happens to bytes on the way: the packets of AutoRM have no checksum of their own, UDP
throws damaged ones away, so damage is loss.
"""

from __future__ import annotations

from typing import Any, Final

from roundelay.core.autorm.config import GROUP, NODE
from roundelay.core.engine import MS
from roundelay.sim.families.token.draft import Draft
from roundelay.sim.swarm.fault_kinds import PARTITIONS, kinds

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
