"""The token protocol as the search sees it: its steps are turns (`reductions.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.search import Model
from roundelay.sim.explore.token.counterexample import replayed, steps_to
from roundelay.sim.explore.token.reductions import Finding, Group, State, Turn
from roundelay.sim.explore.token.relevance import JOINED

if TYPE_CHECKING:
    from roundelay.sim.mutants.mutant import Mutant

_LOCAL: Final = 24  # bits for the number of a local state
_SENT: Final = 32  # bits for the number of a set of PDUs
_COST: Final = 40


class TokenModel(Model[int, tuple[Turn, ...], Finding]):
    """Any PDU may be lost, doubled, overtaken or replayed late, any timer may fire at any time, any
    site may submit, start a reformation or crash at any moment; I1, I3 and I4 are checked.

    A state of the group is packed into one integer: an eighth of the memory.
    """

    def __init__(self, scope: Scope, mutant: Mutant | None = None) -> None:
        self.group = Group(scope, JOINED if mutant is None else mutant.memory)

    def begin(self) -> int:
        return pack(self.group.begin())

    def steps(self, state: int) -> Iterator[tuple[tuple[Turn, ...], int, Finding | None]]:
        for turns, after in self.group.turns(self.unpacked(state)):
            yield turns, pack(after), None

    def check(self, state: int) -> Finding | None:
        return self.group.finding(self.unpacked(state))

    def explain(
        self, states: Sequence[int], steps: Sequence[tuple[Turn, ...]], finding: Finding
    ) -> tuple[str, list[str]]:
        unpacked = [self.unpacked(state) for state in states]
        return replayed(self.group, steps_to(self.group, unpacked, steps, finding))

    def unpacked(self, packed: int) -> State:
        """Return the state that was packed."""
        sites = len(self.group.sites)
        cost = packed & ((1 << _COST) - 1)
        packed >>= _COST
        locals_, sent = [0] * sites, [0] * sites
        for site in range(sites - 1, -1, -1):
            sent[site] = packed & ((1 << _SENT) - 1)
            packed >>= _SENT
            locals_[site] = packed & ((1 << _LOCAL) - 1)
            packed >>= _LOCAL
        return State(tuple(locals_), tuple(sent), cost)


def pack(state: State) -> int:
    packed = 0
    for number, sent in zip(state.locals, state.sent, strict=True):
        packed = (packed << _LOCAL | number) << _SENT | sent
    return packed << _COST | state.cost
