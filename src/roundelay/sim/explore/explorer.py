"""Every run of a small group, on the engine that ships.

    >>> found = explore(2, 0, timestamps=1, crashes=0, attempts=1)
    >>> found.complete, found.violations
    (True, ())

In a scope (`Scope`) any PDU may be lost, doubled, overtaken or replayed late, any timer may fire at
any time, any site may submit, start a reformation or crash at any moment: everything that can come
of it is looked at, and I1, I3 and I4 are checked in all of it.  `docs/explorer.md` says what is
explored, what is bounded, and why the reductions lose nothing.

The search is breadth first over *turns* (`explore.reductions`), so a violation is found with as few
turns as can be; its steps are then carried out once more by new engines (`explore_trace.py`).
"""

from __future__ import annotations

from array import array
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.explore.counterexample import retold, steps_to
from roundelay.sim.explore.reductions import Finding, Group, State
from roundelay.sim.explore.relevance import JOINED
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.site_states import Outcome

if TYPE_CHECKING:
    from roundelay.sim.mutants.mutant import Mutant

MAX_STATES: Final = 20_000_000
TICK: Final = 1000
"""States between two calls of a progress function."""


class Progress(Protocol):
    """Is told how far the search is."""

    def __call__(self, states: int, depth: int, frontier: int, /) -> None: ...


class Violation(Struct, frozen=True):
    """A promise that can be broken, and how; no way has fewer turns."""

    invariant: str
    """I1, I3, I4, CM-T3, or `engine`: it noticed by itself that something cannot be."""
    detail: str
    depth: int
    """Turns."""
    steps: tuple[str, ...]


class Result(Struct, frozen=True):
    """What a search found."""

    states: int
    depth: int
    """Turns of the longest way that had to be looked at."""
    complete: bool
    """Nothing within the scope was left out."""
    violations: tuple[Violation, ...]


def explore(
    sites: int,
    resilience: int,
    timestamps: int,
    crashes: int,
    *,
    mutant: Mutant | None = None,
    max_states: int = MAX_STATES,
    progress: Progress | None = None,
    **bounds: Any,
) -> Result:
    """Look at every run of `sites` sites with resilience L, in which `timestamps` are given out.

    `bounds` are further fields of `Scope` (`attempts`, `messages`, …); with a mutant, those that
    are not given are the mutant's own.  The search ends with the first violation, or beyond
    `max_states`.
    """
    usual = mutant.scope if mutant is not None and isinstance(mutant.scope, Scope) else Scope()
    try:
        scope = msgspec.structs.replace(
            usual, sites=sites, resilience=resilience, timestamps=timestamps, crashes=crashes,
            **bounds,
        ).check()  # fmt: skip
    except TypeError as error:
        raise ConfigError("bounds", ", ".join(bounds), f"fields of Scope ({error})") from error
    return Search(scope, mutant, max_states, progress).run()


class Search:
    """One search."""

    def __init__(
        self,
        scope: Scope,
        mutant: Mutant | None = None,
        max_states: int = MAX_STATES,
        progress: Progress | None = None,
    ) -> None:
        self.max_states = max_states
        self.progress = progress
        site_class: type[TokenSite] = TokenSite
        stable_class: type[Stable] = Stable
        memory = JOINED
        if mutant is not None:
            site_class = mutant.site_class or TokenSite
            stable_class = mutant.stable_class or Stable
            memory = mutant.memory
        self.group = Group(scope, site_class, stable_class, memory)
        self.states: list[int] = []  # in the order they were met, packed
        self.parents = array("q")
        self.seen: set[int] = set()

    def run(self) -> Result:
        """Turn by turn, until there is nothing new."""
        self._meet(self.group.begin(), -1)
        depth = number = 0
        level = len(self.states)  # where the states of the next depth begin
        while number < len(self.states):
            if number == level:
                depth, level = depth + 1, len(self.states)
            if self.progress is not None and number % TICK == 0:
                self.progress(len(self.states), depth, len(self.states) - number)
            state = self._unpacked(self.states[number])
            finding = self.group.finding(state)
            if finding is not None:
                return Result(len(self.states), depth, False, (self._told(number, finding, depth),))
            if len(self.states) > self.max_states:
                return Result(len(self.states), depth, False, ())
            for _, after in self.group.turns(state):
                self._meet(after, number)
            number += 1
        return Result(len(self.states), depth, True, ())

    def outcomes(self) -> set[Outcome]:
        """What the sites can have delivered at the same time, in all states met so far."""
        found: set[Outcome] = set()
        for packed in self.states:
            facts = [one.facts for one in self.group.silently(self._unpacked(packed))]
            found.update(product(*[{fact.said for fact in some} for some in facts]))
        return found

    def _meet(self, state: State, parent: int) -> None:
        packed = _packed(state)
        if packed not in self.seen:
            self.seen.add(packed)
            self.states.append(packed)
            self.parents.append(parent)

    def _unpacked(self, packed: int) -> State:
        return _unpacked(packed, len(self.group.sites))

    def _told(self, number: int, finding: Finding, depth: int) -> Violation:
        way: list[State] = []
        while number >= 0:
            way.append(self._unpacked(self.states[number]))
            number = self.parents[number]
        wrong, lines = retold(self.group, steps_to(self.group, way[::-1], finding))
        invariant, _, detail = wrong.partition(": ")
        return Violation(invariant, detail, depth, tuple(lines))


_LOCAL: Final = 24  # bits for the number of a local state
_SENT: Final = 32  # bits for the number of a set of PDUs
_COST: Final = 40


def _packed(state: State) -> int:
    """`state` as one integer: an eighth of the memory."""
    packed = 0
    for number, sent in zip(state.locals, state.sent, strict=True):
        packed = (packed << _LOCAL | number) << _SENT | sent
    return packed << _COST | state.cost


def _unpacked(packed: int, sites: int) -> State:
    cost = packed & ((1 << _COST) - 1)
    packed >>= _COST
    locals_, sent = [0] * sites, [0] * sites
    for site in range(sites - 1, -1, -1):
        sent[site] = packed & ((1 << _SENT) - 1)
        packed >>= _SENT
        locals_[site] = packed & ((1 << _LOCAL) - 1)
        packed >>= _LOCAL
    return State(tuple(locals_), tuple(sent), cost)
