"""The token protocol as the search sees it: its steps are turns (`reductions.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.search import Model
from roundelay.sim.explore.token.counterexample import replayed, steps_to
from roundelay.sim.explore.token.reductions import Finding, Group, State, Turn
from roundelay.sim.explore.token.relevance import JOINED

if TYPE_CHECKING:
    from roundelay.sim.mutants.mutant import Mutant


class TokenModel(Model[bytes, tuple[Turn, ...], Finding]):
    """Any PDU may be lost, doubled, overtaken or replayed late, any timer may fire at any time, any
    site may submit, start a reformation or crash at any moment; I1, I3 and I4 are checked.

    A state of the group is packed into a few bytes: a sixth of the memory.
    """

    def __init__(self, scope: Scope, mutant: Mutant | None = None) -> None:
        self.group = Group(scope, JOINED if mutant is None else mutant.memory)
        # Numbers of local states and of what was sent, by site; the cost.
        self._layout = Struct(f"={2 * scope.sites}IQ")

    def begin(self) -> bytes:
        return self.packed(self.group.begin())

    def steps(self, state: bytes) -> Iterator[tuple[tuple[Turn, ...], bytes, Finding | None]]:
        for turns, after in self.group.turns(self.unpacked(state)):
            yield turns, self.packed(after), None

    def check(self, state: bytes) -> Finding | None:
        return self.group.finding(self.unpacked(state))

    def explain(
        self, states: Sequence[bytes], steps: Sequence[tuple[Turn, ...]], finding: Finding
    ) -> tuple[str, list[str]]:
        unpacked = [self.unpacked(state) for state in states]
        return replayed(self.group, steps_to(self.group, unpacked, steps, finding))

    def packed(self, state: State) -> bytes:
        return self._layout.pack(*state.locals, *state.sent, state.cost)

    def unpacked(self, packed: bytes) -> State:
        """Return the state that was packed."""
        *numbers, cost = self._layout.unpack(packed)
        sites = self.group.scope.sites
        return State(tuple(numbers[:sites]), tuple(numbers[sites:]), cost)
