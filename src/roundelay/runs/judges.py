"""Who judges a random run: the checker of each protocol, made for a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from roundelay.core.autorm.config import GROUP
from roundelay.core.families import AUTORM, GRSB, WIDE
from roundelay.sim.families.wide.group import WideGroup
from roundelay.sim.swarm.plan import Plan
from roundelay.trace.checkers.autorm import AutoRmChecker
from roundelay.trace.checkers.checkers import Checker
from roundelay.trace.checkers.journal import JournalChecker
from roundelay.trace.checkers.verdict import Judge


def _of_nodes(plan: Plan, members: tuple[int, ...]) -> Judge:
    config = plan.config
    return AutoRmChecker(
        per_group=config.get("serial_scope") == GROUP,
        failover=bool(config.get("someone_failover")),
    )


def _of_networks(plan: Plan, members: tuple[int, ...]) -> Judge:
    group = plan.settings()
    assert isinstance(group, WideGroup)
    return JournalChecker(wide=True, excused=group.excused(plan.sites))


def _of_a_group(plan: Plan, members: tuple[int, ...]) -> Judge:
    to = plan.destinations(members)
    return Checker(
        members,
        order=plan.order,
        liveness_ns=plan.liveness_ns,
        destinations=None if to is None else to.of,
    )


JUDGES: Final[dict[str, Callable[[Plan, tuple[int, ...]], Judge]]] = {
    AUTORM: _of_nodes,
    GRSB: lambda plan, members: JournalChecker(),
    WIDE: _of_networks,
}
"""By protocol; the others promise an order of their members' messages (`Checker`)."""


def judge_of(plan: Plan, members: tuple[int, ...] | None = None) -> Judge:
    """Return the checker of a run of `plan`, or of the `members` that a cluster goes on with."""
    judge = JUDGES.get(plan.protocol, _of_a_group)
    return judge(plan, tuple(range(plan.sites)) if members is None else members)
