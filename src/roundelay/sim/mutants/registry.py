"""All mutants, of every protocol, by their names."""

from __future__ import annotations

from typing import Final

from roundelay.core.errors import ConfigError
from roundelay.sim.mutants import autorm, cluster, grsb, positive_ack, token, wide
from roundelay.sim.mutants.mutant import Mutant

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant
    for family in (token, positive_ack, cluster, grsb, wide, autorm)
    for mutant in family.broken.mutants
}

FAMILIES: Final = tuple(dict.fromkeys(mutant.family for mutant in MUTANTS.values()))


def mutant_named(name: str, protocol: str | None = None) -> Mutant:
    """Return the mutant of that name; ConfigError if there is none, or not of `protocol`."""
    mutant = MUTANTS.get(name)
    if mutant is None:
        names = [mutant.name for mutant in MUTANTS.values() if protocol in (None, mutant.protocol)]
        raise ConfigError("mutant", name, "one of " + ", ".join(sorted(names)))
    if protocol not in (None, mutant.protocol):
        raise ConfigError("mutant", name, f"only with the protocol {mutant.protocol}")
    return mutant
