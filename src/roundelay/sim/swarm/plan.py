"""Plans: one integer decides everything about a random run.

A plan has a safety phase, in which it strikes with faults, and a liveness phase: at `heal_ns` all
faults end, all sites are up, and whatever is pending has to commit.  The drafts of the families
draw plans; what a plan may not do is decided by their drivers when it runs: how many sites may be
down depends on which of them have recovered by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.families import TOKEN
from roundelay.core.limits import one_of
from roundelay.sim.families.registry import SIMULATED_FAMILIES, SWARMED, SimFamily
from roundelay.sim.kernel.load import Destinations
from roundelay.sim.kernel.ports import EngineFactory
from roundelay.sim.swarm.fault_kinds import LinkSpec, Strike

ANY: Final = "any"
FAST: Final = "fast"
PROFILES: Final = (ANY, FAST)
"""Which plans a swarm draws: of any configuration, or of the `fast` profile."""


def rerun(seed: int, protocol: str, profile: str) -> str:
    """The line that runs the plan of `seed` again."""
    only = f"--seeds {seed}:{seed + 1} --protocol {protocol}"
    return f"roundelay swarm {only}" + ("" if profile == ANY else f" --profile {profile}")


class Plan(Struct, frozen=True, kw_only=True):
    """One random run, complete."""

    seed: int
    protocol: str
    sites: int
    boot: str
    config: dict[str, Any]  # fields of the protocol's configuration that are not the default
    medium: str
    medium_args: tuple[int, ...]
    wire: bool
    messages: int
    rate: float  # messages per second; 0: every source always has some waiting
    size: int
    links: tuple[LinkSpec, ...]
    strikes: tuple[Strike, ...]
    beyond: bool = False  # more than L sites may be down at once: safety only until they are back
    heal_ns: int
    liveness_ns: int  # within which everything pending must commit after healing (I7)
    # Clusters only.
    spread: int = 0  # SPO: members each message goes to; 0: a random number of them
    never: tuple[int, ...] = ()  # SPO: members that nothing is ever sent to
    sources: tuple[int, ...] = ()  # sites that submit; none: all of them
    fails: int = -1  # the member that stops for good, if any
    profile: str = ANY

    @classmethod
    def from_seed(cls, seed: int, protocol: str = TOKEN, profile: str = ANY) -> Plan:
        """The plan of `seed`."""
        one_of("protocol", protocol, SWARMED)
        one_of("profile", profile, PROFILES)
        family = SIMULATED_FAMILIES[protocol]
        draft = family.fast_draft if profile == FAST else family.draft
        if draft is None:
            raise ConfigError("profile", profile, f"{ANY} with {protocol}")
        drawn = draft(seed, protocol).fields()
        return cls(seed=seed, protocol=protocol, profile=profile, **drawn)

    @property
    def rerun(self) -> str:
        """The line that runs this plan again."""
        return rerun(self.seed, self.protocol, self.profile)

    @property
    def family(self) -> SimFamily:
        """The record of the protocol."""
        return SIMULATED_FAMILIES[self.protocol]

    @property
    def resilience(self) -> int:
        """L; only the token protocol has one."""
        return int(self.config.get("resilience", 0))

    @property
    def order(self) -> str:
        """What the protocol promises about order: `total`, `fifo` or `none`."""
        return self.family.order(self.config)

    def destinations(self, members: Sequence[int] | None = None) -> Destinations | None:
        """Who gets which message, if not everybody; `members` are those of a reopened cluster."""
        if not self.family.core.selective:
            return None
        group = tuple(range(self.sites) if members is None else members)
        spread = len(group) if self.spread == self.sites else self.spread
        return Destinations(group, spread, seed=self.seed, never=self.never)

    def to_json(self) -> bytes:
        """The contents of params.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    def settings(self) -> Any:
        """The configuration of the engines, checked."""
        return self.family.config(**self.config).check(self.sites)

    def engines(self) -> EngineFactory:
        """Makes the engines."""
        return self.family.factory(self.sites, self.settings())
