"""Drafts of runs under the `fast` profile: what live groups do, under the same faults.

Switches are as live groups have them; times are drawn, in units of the round trip, and so are the
bounds, some of them small enough to be reached.  More messages come than one PDU a message could
carry, so that they gather into bundles.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from roundelay.core.token.config import TokenConfig
from roundelay.sim.families.cluster.draft import ClusterDraft
from roundelay.sim.families.token.draft import Draft

ANY: Final = "any"
FAST: Final = "fast"
PROFILES: Final = (ANY, FAST)
"""Which plans a swarm draws: of any configuration, or of the `fast` profile."""


class FastDraft(Draft):
    """Draws a plan of a token group."""

    def __init__(self, seed: int, protocol: str) -> None:
        super().__init__(seed, protocol)
        self.rng = Random(f"{seed}/{protocol}/fast/plan")

    def fields(self) -> dict[str, Any]:
        fields = super().fields()
        more = self.rng.choice((1, 1, 3, 8))
        fields["messages"] *= more
        fields["rate"] *= more
        return fields

    def token(self, sites: int) -> dict[str, Any]:
        rng = self.rng
        trip = 2 * self.one_way_ns
        attempts = rng.choice((3, 4, 8))
        backoff = rng.choice((0, 1, 3, 4))
        # With fewer repetitions each may take longer: the group notices a failure as soon.
        short = 1 if backoff < 3 else 2
        passing = int(trip * rng.uniform(1.2, 8)) // short
        resend = passing + int(trip * rng.uniform(0.5, 6)) // short
        request = int(trip * rng.uniform(1.1, 6)) // short
        retx = int(trip * rng.uniform(1.2, 4))
        least = min(passing, resend, request)
        config: dict[str, Any] = {
            "resilience": rng.randint(0, (sites + 1) // 2 - 1),
            "kw": rng.choice((1, 2, 64, 64)),
            "hold_ns": max(1, passing // 4),
            "pass_ns": passing,
            "resend_ns": resend,
            "request_ns": request,
            "request_delay_ns": rng.choice((0, trip // 4, trip)),
            "retx_ns": retx,
            "attempts": attempts,
            "attempts_hard": attempts * rng.choice((2, 4)),
            "idle_ns": (resend << backoff) + int(trip * rng.uniform(2, 20)),
            "eager": True,
            "backoff": backoff,
            "adapt_ns": rng.choice((0, 1, min(trip // 4, least), least)),
            "batch": True,
            "bulk": rng.random() < 0.8,
            "bundle": True,
            "history": rng.choice((0, 32, 4096)),
            "history_bytes": rng.choice((0, 3_000, 30_000, 1 << 25)),
            "own_limit": rng.choice((16, 4096)),
            "own_bytes": rng.choice((500, 10_000, 1 << 22)),
            "qb_limit": rng.choice((4, 64, 256)),
            "window": rng.choice((16, 4096)),
            "request_burst": rng.choice((1, 8, 64)),
            "recover_batch": rng.choice((1, 8, 255)),
            "max_payload": rng.choice((200, 1200, 60_000)),
        }
        self.set_times(TokenConfig(**config).check(sites))
        return config


class FastClusterDraft(ClusterDraft):
    """Draws a plan of a cluster: messages gather while window or flow control hold data back."""

    def __init__(self, seed: int, protocol: str) -> None:
        super().__init__(seed, protocol)
        self.rng = Random(f"{seed}/{protocol}/fast/plan")

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
