"""Drafts of GRSB runs: roles that crash, lines that are cut, users that are away for long."""

from __future__ import annotations

from typing import Any, Final

from roundelay.core.engine import MS
from roundelay.core.grsb.config import DEMO, FAILSAFE, SEPARATE
from roundelay.core.token.config import PREFORMED
from roundelay.sim.families.token.draft import Draft
from roundelay.sim.swarm.fault_kinds import LINK_KINDS, PARTITIONS, kinds

MESSAGE_SIZES: Final = (12, 64, 200, 1000)

CUT: Final = "line:cut"
DEAF: Final = "line:deaf"
AWAY: Final = "away"

TARGETS: Final = kinds(
    "submit submitack bcast daack alive recovered pollok replaydata replayend takeover grant",
    "target:",
)

KINDS: Final = (
    *LINK_KINDS,
    "clog",
    *TARGETS,
    *PARTITIONS,
    *kinds("memory disk nothing mid-batch cr da pr", "crash:"),
    *kinds("pause pause:cr pause:da pause:pr storm:restart clock:rate clock:jump"),
    *(CUT, DEAF, AWAY),
)
"""What a GRSB group has to survive."""

TAKE_OVER: Final = "take-over"
GIVEN_UP: Final = "recorder:given-up"
LONG_AWAY: Final = "away:thousand"
ONE_LINE: Final = ("line:single", "line:only-b", "line:dual")
OUTCOMES: Final = (TAKE_OVER, GIVEN_UP, LONG_AWAY, *ONE_LINE)
"""What that led to, counted beside it: another reign, a recorder nobody waited for any more, a
user that came back a thousand messages later, line A in place of two, line B, and two again."""


class GrsbDraft(Draft):
    """Draws a plan of GRSB."""

    def fields(self) -> dict[str, Any]:
        rng = self.rng
        layout = rng.choice((DEMO, SEPARATE, FAILSAFE, FAILSAFE, FAILSAFE))
        fewest = {DEMO: 1, SEPARATE: 1, FAILSAFE: 2}[layout]
        recorders = fewest + rng.choice((0, 0, 1, 2))
        taken = recorders if layout == DEMO else recorders + 2 * fewest
        sites = max(3, taken + rng.choice((1, 2, 3, 5)))
        self.one_way_ns = rng.choice((MS // 20, MS // 4, MS, 5 * MS))
        faults = self.faults(KINDS)
        config = self.grsb() | {"layout": layout, "recorders": recorders}
        config["selective"] = recorders > 1 and rng.random() < 0.3
        links = self.links(faults)
        strikes = self.strikes(faults, sites)
        heal_ns = strikes[-1].at + self.unit_ns * rng.randint(1, 3)
        messages = rng.choice((60, 120, 250, 400, 400, 4000))
        if AWAY in faults and messages == 400:
            messages = 4000  # so that whoever is away misses thousands
        return self.steady(
            MESSAGE_SIZES,
            sites=sites,
            boot=PREFORMED,
            config=config,
            medium="lines",
            medium_args=(self.one_way_ns // 4, self.one_way_ns),
            messages=messages,
            links=links,
            strikes=strikes,
            heal_ns=heal_ns,
            liveness_ns=20 * self.unit_ns + 4 * messages * self.turn_ns,
        )

    def grsb(self) -> dict[str, Any]:
        """Times in units of the round trip, buffers large and small."""
        rng = self.rng
        trip = 2 * self.one_way_ns
        bcast = int(trip * rng.uniform(1.5, 6))
        attempts = rng.choice((3, 4, 8))
        alive = int(bcast * rng.uniform(2, 10))
        takeover = int(max(alive * rng.uniform(3, 6), 2 * attempts * bcast))
        window = rng.choice((1, 1, 1, 4))
        buffer = rng.choice((8, 32, 128, 1024))
        rec = int(trip * rng.uniform(1.2, 5))
        poll = int(alive * rng.uniform(0.5, 3))
        slow = bcast // 4
        config = {
            "submit_ns": int(bcast * rng.uniform(1, 4)),
            "bcast_ns": bcast,
            "window": window,
            "attempts": attempts,
            "alive_ns": alive,
            "alive_timeout_ns": int(alive * rng.uniform(2.5, 5)),
            "takeover_ns": takeover,
            "da_buffer": buffer,
            "overwrite_group": max(1, buffer // rng.choice((2, 4, 16))),
            "history": buffer + window + rng.choice((0, 10, 1000)),
            "rec_ns": rec,
            "rec_max_ns": rec * rng.choice((4, 16)),
            "rec_burst": rng.choice((2, 8, 32)),
            "repair_gap_ns": rec // rng.choice((4, 20)),
            "max_delay_ns": 8 * bcast,
            "base_delay_ns": slow,
            "slow_hold_ns": 4 * alive,
            "gap_limit": rng.choice((1, 4)),
            "gap_window_ns": 2 * alive,
            "backlog_limit": rng.choice((1, 2, 16)),
            "credit": rng.choice((1, 8, 32)),
            "serve_ns": int(trip * rng.choice((0.1, 1, 3))),
            "poll_ns": poll,
            "probe_ns": alive * rng.choice((2, 10)),
            "heard_max": rng.choice((32, 64, 256)),
            "own_limit": rng.choice((16, 256, 4096)),
            "bundle": rng.random() < 0.5,
        }
        self.unit_ns = 2 * takeover + attempts * bcast + config["rec_max_ns"]
        self.turn_ns = trip + bcast
        return config
