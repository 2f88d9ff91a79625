"""Every state of a small group, on the engines that ship.

    >>> from roundelay.sim.explore.families import explore
    >>> from roundelay.sim.explore.scope import Scope
    >>> result = explore(Scope(sites=2, resilience=0, timestamps=1, crashes=0, attempts=1))
    >>> result.complete, result.violations
    (True, ())

The search is the same for all protocols.  What may happen in a group, and what must not, is said
by a `Model`, of which there is one per family (`families.py`): where a group begins, what may
happen next, where that leads, what is wrong there.  A state is anything that can be hashed.  A
model makes states equal that differ in nothing that matters later, and leaves out steps that bring
about nothing of their own: its *reductions*.

The search is breadth first, so a violation is found after as few steps as can be.  Of each state
only the number of the one before it is kept; the steps along the way to a violation are asked of
the model once more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Generic, TypeVar

from msgspec import Struct

from roundelay.core.errors import InvariantBroken

TICK: Final = 1000
"""States between two calls of a progress function."""


Progress = Callable[[int, int, int], None]
"""Is told how far the search is: states, depth, and states still to be looked at."""


class Violation(Struct, frozen=True):
    """A promise that can be broken, and how; no way there is shorter."""

    invariant: str
    """I1 … I8, a rule (CM-T3, TR-15), or `engine`: it noticed by itself that something is wrong."""
    detail: str
    depth: int
    """Steps of the model."""
    steps: tuple[str, ...]


class Result(Struct, frozen=True):
    """What a search found."""

    states: int
    depth: int
    """Steps of the longest way that had to be looked at."""
    complete: bool
    """Nothing within the scope was left out."""
    violations: tuple[Violation, ...]


State = TypeVar("State", bound=Hashable)
Step = TypeVar("Step")
Finding = TypeVar("Finding")


class Model(ABC, Generic[State, Step, Finding]):
    """What may happen in a group, and what must not."""

    @abstractmethod
    def begin(self) -> State:
        """Return the first state."""

    @abstractmethod
    def steps(self, state: State) -> Iterable[tuple[Step, State, Finding | None]]:
        """Return what may happen next, where it leads, and what is wrong with the step itself."""

    @abstractmethod
    def check(self, state: State) -> Finding | None:
        """Return what is wrong in `state`, if anything is."""

    @abstractmethod
    def explain(
        self, states: Sequence[State], steps: Sequence[Step], finding: Finding
    ) -> tuple[str, Sequence[str]]:
        """Return what is violated ("I1: …"), and in words what leads there.

        `states` are those on the way, from the first one; step i begins in state i.
        """


@dataclass(eq=False)
class Search(Generic[State, Step, Finding]):
    """One search; `states` has those that were met, in the order in which they were."""

    model: Model[State, Step, Finding]
    max_states: int
    progress: Progress | None = None
    states: list[State] = field(default_factory=list)
    _met: set[State] = field(default_factory=set)
    _parents: array[int] = field(default_factory=lambda: array("q"))

    def run(self) -> Result:
        """Go on until there is nothing new, something is wrong, or there are too many states."""
        states, model = self.states, self.model
        self._meet(model.begin(), -1)
        depth, next_level = 0, 1
        for number, state in enumerate(states):  # which grows meanwhile
            if number == next_level:
                depth, next_level = depth + 1, len(states)
            if self.progress is not None and number % TICK == 0:
                self.progress(len(states), depth, len(states) - number)
            finding = model.check(state)
            if finding is not None:
                return self._violated(number, [], finding, depth)
            if len(states) > self.max_states:
                return Result(len(states), depth, False, ())
            for step, after, finding in model.steps(state):
                if finding is not None:
                    return self._violated(number, [step], finding, depth + 1)
                if after not in self._met:
                    self._meet(after, number)
        return Result(len(states), depth, True, ())

    def _meet(self, state: State, parent: int) -> None:
        self._met.add(state)
        self.states.append(state)
        self._parents.append(parent)

    def _violated(self, number: int, last_step: list[Step], finding: Finding, depth: int) -> Result:
        """Return the result of a search that ends in state `number`, or with a step from there."""
        states: list[State] = []
        while number >= 0:
            states.append(self.states[number])
            number = self._parents[number]
        states.reverse()
        steps = [self._step_between(*pair) for pair in pairwise(states)] + last_step
        violation, lines = self.model.explain(states, steps, finding)
        invariant, _, detail = violation.partition(": ")
        violations = (Violation(invariant, detail, depth, tuple(lines)),)
        return Result(len(self.states), depth, False, violations)

    def _step_between(self, before: State, after: State) -> Step:
        for step, state, _ in self.model.steps(before):
            if state == after:
                return step
        raise InvariantBroken("the explorer cannot find its way back")
