"""The token protocol without any reduction: every step by itself, every PDU kept, every slot
compared.

Far too slow for anything but the smallest scopes.  It is there to check `explore.token.reductions`,
whose reductions rest on arguments: both must find the same things that can be delivered together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from roundelay.core.engine import NEVER
from roundelay.core.token.site import Timers, TokenSite
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.search import Model
from roundelay.sim.explore.snapshot import comparable
from roundelay.sim.explore.token.fingerprint import SLOTS
from roundelay.sim.explore.token.network import WholePool
from roundelay.sim.explore.token.reductions import union
from roundelay.sim.explore.token.site_states import (
    Deliveries,
    Input,
    Local,
    Member,
    Memory,
    Move,
    Registry,
    affordable,
    budget_of,
)

# Time stands still, attempts are never repeated, and nobody looks at the last rows.
IGNORED: Final = frozenset(
    [
        "config",
        "group",
        "me",
        "rng",
        "out",
        "handlers",
        "log.config",
        "log.writes_stamped",
        "stamping.free_heirs",
        "commit.level",
        "token_list.successor",
        "timers.heard",
        "timers.progress",
        "own.send_last",
        "deadline",
        "own.send_silent",
        "own.send_total",
        "stamping.pass_silent",
        "stamping.pass_total",
        "reformation.token_tries",
        "reformation.tries",
        "reformation.failures",
        "drops",
        "reformation.blocked",
        "token_list.start_seq",
        "log.storage_max",
        "log.retained",
        "token_list.lives",
        "reformation.seen",
        "own.lists",
    ]
)
DUES: Final = tuple(name for name in Timers.__slots__ if name.endswith("_due"))
DUE: Final = tuple(f"timers.{due}" for due in DUES)
COMPARED: Final = tuple(name for name in SLOTS if name not in IGNORED and name not in DUE)
_due = attrgetter(*DUE)
_compared = attrgetter(*COMPARED)

State = tuple[tuple[int, ...], int, int]
"""Local states, what was sent, cost so far."""


class UnreducedMember(Member):
    """One site, every step of which is tried."""

    timers = DUES

    def fingerprint(self, engine: TokenSite) -> tuple[Any, ...]:
        """All there is to `engine`; of a timer, whether it is armed."""
        values: list[Any] = [due < NEVER for due in _due(engine)]
        for name, value in zip(COMPARED, _compared(engine), strict=True):
            if name == "requests.pending":
                value = tuple(sorted(value, key=repr))
            elif name == "ordering.qb":
                value = tuple(value.items())  # the order of arrival counts
            values.append(comparable(value))
        return tuple(values)

    def delivered_with(self, engine: TokenSite, bit: int) -> int:
        return bit

    def may_submit(self, engine: TokenSite) -> bool:
        return True

    def gone(self, memory: Memory, how: Input, cost: int) -> list[Move]:
        """It stays down until it restarts, by a step of its own."""
        return [Move(self.intern(None, memory), 0, cost, how)]


class UnreducedModel(Model[State, str, str]):
    """Every step by itself."""

    def __init__(self, scope: Scope) -> None:
        sites = tuple(range(scope.sites))
        self.pool = WholePool(sites)
        registry = Registry()
        self.members = [UnreducedMember(site, scope, self.pool, registry) for site in sites]
        self.budget = budget_of(scope)

    def begin(self) -> State:
        moves = [member.begin() for member in self.members]
        return tuple(move.to for move in moves), union(move.sends for move in moves), 0

    def locals(self, state: State) -> list[Local]:
        return [member.locals[n] for member, n in zip(self.members, state[0], strict=True)]

    def steps(self, state: State) -> Iterator[tuple[str, State, str | None]]:
        numbers, sent, paid = state
        for site, local in enumerate(self.locals(state)):
            inbox = sent & self.pool.addressed[site]
            self.members[site].learn(local, inbox)
            for move in local.moves(inbox) + local.replies_to(inbox):
                cost = paid + move.cost
                if affordable(cost, self.budget):
                    after = (*numbers[:site], move.to, *numbers[site + 1 :])
                    yield "", (after, sent | move.sends, cost), move.broken or None

    def check(self, state: State) -> None:
        return None

    def explain(
        self, states: Sequence[State], steps: Sequence[str], finding: str
    ) -> tuple[str, list[str]]:
        return finding, []

    def delivered(self, state: State) -> tuple[Deliveries, ...]:
        """What each site has delivered."""
        return tuple(local.fact.delivered for local in self.locals(state))
