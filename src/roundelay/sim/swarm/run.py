"""Running a plan, of whatever family."""

from __future__ import annotations

from typing import Any

from roundelay.sim.kernel.ports import EngineFactory
from roundelay.sim.swarm.fault_runner import Breach, Outcome, Setting
from roundelay.sim.swarm.plan import Plan

__all__ = ["Breach", "Outcome", "Setting", "engines", "run_plan"]


def engines(plan: Plan, site_class: type[Any] | None = None) -> EngineFactory:
    """Makes the engines of `plan`; `site_class` may be a mutant."""
    return plan.family.factory(plan.sites, plan.settings(), site_class)


def run_plan(plan: Plan, setting: Setting) -> Outcome:
    """Run `plan` to its end."""
    return plan.family.driver(plan, setting).run()
