"""The explorer without any reduction: every step by itself, every PDU kept, every slot compared.

Far too slow for anything but the smallest scopes.  It is there to check `explore.reductions`, whose
reductions rest on arguments: both must find the same things that can be delivered together.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import Any, Final

from roundelay.core.engine import NEVER
from roundelay.core.token.site import DUES, TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.explore.engines import SLOTS
from roundelay.sim.explore.network import Pool
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.site_states import Member, Outcome, Registry, affordable, purse

# Time stands still, attempts are never repeated, and nobody looks at the last row.
_IGNORED: Final = frozenset((
    "config", "group", "me", "rng", "out", "handlers", "log.config", "log.writes_stamped",
    "stamping.free_heirs", "commit.level", "token_list.successor",
    "timers.heard", "timers.progress", "own.send_last", "deadline",
    "own.send_silent", "own.send_total", "stamping.pass_silent", "stamping.pass_total",
    "reformation.token_tries", "reformation.tries", "reformation.failures",
    "drops", "reformation.blocked", "token_list.start_seq", "log.storage_max", "log.retained",
    "token_list.lives", "reformation.seen", "own.lists",
))  # fmt: skip
_DUE: Final = tuple(f"timers.{due}" for due in DUES)
_COMPARED: Final = tuple(name for name in SLOTS if name not in _IGNORED and name not in _DUE)
_due = attrgetter(*_DUE)
_compared = attrgetter(*_COMPARED)


def everything(site: TokenSite) -> tuple[Any, ...]:
    """All there is to `site`; of a timer, whether it is armed."""
    values: list[Any] = [due < NEVER for due in _due(site)]
    for name, value in zip(_COMPARED, _compared(site), strict=True):
        if name == "requests.pending":
            value = tuple(sorted(value, key=repr))
        elif name == "ordering.qb":
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
