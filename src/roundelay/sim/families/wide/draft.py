"""Drafts of runs of the hierarchy: networks that are cut off, roles of all levels that crash."""

from __future__ import annotations

from typing import Any, Final

from roundelay.core.engine import MS
from roundelay.core.token.config import PREFORMED
from roundelay.core.wide.config import ALL_ACTIVE, SEQUENCED
from roundelay.sim.families.grsb.draft import AWAY, MESSAGE_SIZES, GrsbDraft
from roundelay.sim.families.wide.group import WideGroup
from roundelay.sim.swarm.fault_kinds import LINK_KINDS, PARTITIONS, kinds

CUT: Final = "net:cut"
OFF: Final = "net:off"

ROLES: Final = "gcr gda gpr lcr lda lpr lb ls"

TARGETS: Final = (
    *kinds("up ackgcr gbcast acklcr galive lsup lsdown response lsack lsask lsdata", "target:"),
    *kinds("submit bcast daack replaydata recovered takeover grant", "target:"),
)

KINDS: Final = (
    *LINK_KINDS,
    "clog",
    *TARGETS,
    *PARTITIONS,
    *kinds(f"memory disk nothing mid-batch {ROLES}", "crash:"),
    "pause",
    *kinds(ROLES, "pause:"),
    *kinds("storm:restart clock:rate clock:jump"),
    *(CUT, CUT, CUT, OFF, OFF, AWAY, AWAY),
)
"""What a hierarchy has to survive; what is there more often happens more often."""


OUTCOMES: Final = {"reign": "take-over", "inactive": "net:given-up", "active": "net:back"}
"""What that led to, by notice, counted beside it: another reign on some level, a network that the
GCR waited for no more, and one that it told things again."""


class WideDraft(GrsbDraft):
    """Draws a plan of the hierarchy."""

    def fields(self) -> dict[str, Any]:
        rng = self.rng
        many = rng.choice((2, 2, 3, 3, 4))
        standby = rng.random() < 0.4
        recorders = rng.choice((1, 1, 2))
        sizes = tuple(rng.choice((2, 3, 4, 4, 5, 6, 7)) for _ in range(many))
        subnets = tuple(rng.choice((0, 0, 1, 3, 6)) for _ in range(many))
        self.one_way_ns = rng.choice((MS // 20, MS // 4, MS, 5 * MS))
        faults = sorted(set(self.faults(KINDS)), key=KINDS.index)
        # The times of both levels are those of the slower one.
        near, self.one_way_ns = self.one_way_ns, self.one_way_ns * rng.choice((1, 2, 5))
        link = near * rng.choice((1, 2))
        config = self.grsb()
        attempts = config["attempts"]
        trunk = int(2 * self.one_way_ns * rng.uniform(1.5, 5))
        repair = rng.random() < 0.6
        config |= {
            "networks": sizes,
            "subnets": subnets,
            "recorders": recorders,
            "standby": standby,
            "apart": standby or many < 3 or rng.random() < 0.6,
            "lines": rng.choice((1, 2)),
            "layout_seed": rng.randrange(1 << 30),
            "trunk_ns": trunk,
            "link_ns": link,
            "ack_mode": rng.choice((SEQUENCED, SEQUENCED, ALL_ACTIVE)),
            "gpr_free": rng.random() < 0.5,
            "ready_max": rng.choice((1, 4, 64)),
            "ls_repair": repair,
            "ls_held": rng.choice((2, 64)),
            "ls_keep": rng.choice((1, 16, 256)),
        }
        sites = WideGroup(**config).sites
        links = self.links(faults)
        self.unit_ns += attempts * trunk
        strikes = self.strikes(faults, sites)
        heal_ns = strikes[-1].at + self.unit_ns * rng.randint(1, 3)
        messages = rng.choice((30, 60, 60, 100, 200))
        far = self.one_way_ns
        deepest = max(subnets) + 3
        self.turn_ns += 4 * trunk + (deepest * link * 8 if any(subnets) else 0)
        return self.steady(
            MESSAGE_SIZES,
            sites=sites,
            boot=PREFORMED,
            config=config,
            medium="wide",
            medium_args=(near // 4, near, far // 2, far, link // 2, link),
            messages=messages,
            links=links,
            strikes=strikes,
            heal_ns=heal_ns,
            liveness_ns=40 * self.unit_ns + 8 * messages * self.turn_ns,
        )
