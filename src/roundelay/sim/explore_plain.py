"""The explorer without any reduction: every step by itself, every PDU kept, every slot compared.

Far too slow for anything but the smallest scopes.  It is there to check `explore_turns`, whose
reductions rest on arguments: both must find the same things that can be delivered together.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from roundelay.core.engine import NEVER
from roundelay.core.token.site import TIMERS, TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.explore_local import Member, Outcome, Registry, affordable, purse
from roundelay.sim.explore_pool import Pool
from roundelay.sim.explore_scope import Scope

# Time stands still, attempts are never repeated, and nobody looks at the last row.
_IGNORED: Final = frozenset((
    "config", "group", "me", "rng", "out", "resilience", "history", "successor",
    "heard", "progress", "send_last", "deadline",
    "send_silent", "send_total", "pass_silent", "pass_total", "token_tries", "tries", "failures",
    "drops", "blocked", "start_seq", "storage_max", "retained", "lives", "seen",
    "mine",
))  # fmt: skip
_DUE: Final = tuple(due for due, _ in TIMERS)
_COMPARED: Final = tuple(
    name
    for kind in TokenSite.__mro__
    for name in getattr(kind, "__slots__", ())
    if name not in _IGNORED and name not in _DUE
)


def everything(site: TokenSite) -> tuple[Any, ...]:
    """All there is to `site`; of a timer, whether it is armed."""
    values: list[Any] = [getattr(site, due) < NEVER for due in _DUE]
    for name in _COMPARED:
        value = getattr(site, name)
        if name == "requests":
            value = tuple(sorted(value, key=repr))
        elif name == "qb":
            value = tuple(value.items())  # the order of arrival counts
        elif isinstance(value, dict):
            value = tuple(sorted(value.items()))
        elif isinstance(value, deque):
            value = tuple(value)
        elif isinstance(value, set):
            value = tuple(sorted(value))
        values.append(value)
    return tuple(values)


class PlainSearch:
    """Breadth first, one step at a time; stops at `max_states`."""

    def __init__(
        self,
        scope: Scope,
        site_class: type[TokenSite] = TokenSite,
        stable_class: type[Stable] = Stable,
        max_states: int = 1_000_000,
    ) -> None:
        self.scope = scope
        sites = tuple(range(scope.sites))
        self.pool = Pool(sites, plain=True)
        registry = Registry()
        self.members = [
            Member(site, scope, self.pool, registry, site_class, stable_class, everything)
            for site in sites
        ]
        self.max_states = max_states
        self.states = 0
        self.complete = False
        self.broken = ""
        self.outcomes: set[Outcome] = set()

    def run(self) -> PlainSearch:
        """Look at every state."""
        members, limit = self.members, purse(self.scope)
        moves = [member.begin() for member in members]
        everybody = 0
        for move in moves:
            everybody |= move.sends
        first = (tuple(move.to for move in moves), everybody, 0)
        seen = {first}
        front = deque([first])
        while front and len(seen) < self.max_states and not self.broken:
            locals_, sent, paid = front.popleft()
            here = [member.locals[n] for member, n in zip(members, locals_, strict=True)]
            self.outcomes.add(tuple(local.fact.said for local in here))
            for site, local in enumerate(here):
                inbox = sent & self.pool.addressed[site]
                members[site].learn(local, inbox)
                possible = [move for needed, move in local.effective if needed & inbox]
                possible += [move for needed, move in local.replies if needed & inbox == needed]
                possible += local.inner or []
                for move in possible:
                    cost = paid + move.cost
                    if move.cost and not affordable(cost, limit):
                        continue
                    if move.broken:
                        self.broken = move.broken
                    then = (*locals_[:site], move.to, *locals_[site + 1 :])
                    state = (then, sent | move.sends, cost)
                    if state not in seen:
                        seen.add(state)
                        front.append(state)
        self.states = len(seen)
        self.complete = not front
        return self
