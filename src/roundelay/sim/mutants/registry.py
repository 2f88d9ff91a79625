"""All mutants, of every protocol, by their names."""

from __future__ import annotations

from typing import Final

from roundelay.core.errors import ConfigError
from roundelay.sim.mutants.autorm import AUTORM_MUTANTS
from roundelay.sim.mutants.cluster import CLUSTER_MUTANTS
from roundelay.sim.mutants.grsb import GRSB_MUTANTS
from roundelay.sim.mutants.mutant import Mutant
from roundelay.sim.mutants.positive_ack import POSITIVE_ACK_MUTANTS
from roundelay.sim.mutants.token import TOKEN_MUTANTS
from roundelay.sim.mutants.wide import WIDE_MUTANTS

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant
    for mutant in (
        *TOKEN_MUTANTS,
        *POSITIVE_ACK_MUTANTS,
        *CLUSTER_MUTANTS,
        *GRSB_MUTANTS,
        *WIDE_MUTANTS,
        *AUTORM_MUTANTS,
    )
}

FAMILIES: Final = tuple(dict.fromkeys(mutant.family for mutant in MUTANTS.values()))


def mutant_named(name: str, protocol: str | None = None) -> Mutant:
    """Return the mutant of that name; ConfigError if there is none, or not of `protocol`."""
    mutant = MUTANTS.get(name)
    if mutant is None:
        names = [one.name for one in MUTANTS.values() if protocol in (None, one.protocol)]
        raise ConfigError("mutant", name, "one of " + ", ".join(sorted(names)))
    if protocol not in (None, mutant.protocol):
        raise ConfigError("mutant", name, f"only with the protocol {mutant.protocol}")
    return mutant
