"""Clusters under random faults: 40 seeds of each protocol."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from roundelay.core.events import MARK
from roundelay.core.families import CLUSTERS
from roundelay.runs.swarm import judge_of
from roundelay.sim.families.cluster import FAILURE_KINDS, KINDS, REOPEN, ClusterDriver
from roundelay.sim.network import links
from roundelay.sim.swarm.fault_kinds import FAULT_KINDS, LINK_KINDS
from roundelay.sim.swarm.fault_runner import Outcome, RunSetting, run_plan
from roundelay.sim.swarm.plan import Plan
from roundelay.trace.checkers.verdict import Judge
from roundelay.wire.codec import GroupCodec
from tests.sim.gossip import Rows

SEEDS = 40


def checked(plan: Plan, **options: Any) -> tuple[Outcome, list[tuple[str, str]]]:
    """The outcome of a plan, and all that was found wrong: (rule, what)."""
    checkers: list[Judge] = []

    def watch(members: tuple[int, ...]) -> list[Judge]:
        checkers.append(judge_of(plan, members))
        return checkers[-1:]

    setting = RunSetting(
        observers=tuple(watch(tuple(range(plan.sites)))),
        codec=GroupCodec("swarm"),
        successors=watch,
        **options,
    )
    outcome = run_plan(plan, setting)
    found = [(breach.invariant, breach.detail) for breach in outcome.breaches]
    found += [(v.invariant, v.detail) for checker in checkers for v in checker.violations]
    if outcome.undetected:
        found.append(("codec", f"{outcome.undetected} damaged PDUs were taken for sound"))
    return outcome, found


@pytest.mark.parametrize("first", [0])  # `make seeds` goes on from there
@pytest.mark.parametrize("protocol", CLUSTERS)
def test_a_cluster_keeps_its_promises_and_falls_silent(protocol: str, first: int) -> None:
    """I1, I4, I6–I8 at loss up to 30 %; then everything is delivered, then nothing is sent."""
    injected: Counter[str] = Counter()
    committed = 0
    for seed in range(first, first + SEEDS // 2):
        plan = Plan.from_seed(seed, protocol)
        outcome, found = checked(plan)
        assert not found, f"{plan.rerun}: {found[0]}"
        assert outcome.settled, plan.rerun
        assert outcome.submitted >= plan.messages
        injected.update(outcome.faults)
        committed += outcome.committed
    assert committed >= 150 * SEEDS // 2
    assert set(injected) <= {*KINDS, *FAILURE_KINDS, "fail"}
    assert len(injected) >= 15


# -- plans -----------------------------------------------------------------------------------


@cache
def plans(protocol: str) -> list[Plan]:
    return [Plan.from_seed(seed, protocol) for seed in range(300)]


@pytest.mark.parametrize("protocol", CLUSTERS)
def test_cluster_plans_differ_in_everything(protocol: str) -> None:
    made = plans(protocol)
    assert {plan.sites for plan in made} == {2, 3, 4, 5, 6, 7}
    assert {plan.config["window"] for plan in made} == {1, 2, 8}
    assert {plan.config["policy"] for plan in made} == {"deferred", "eager"}
    assert {plan.config["boot"] for plan in made} == {"static", "dynamic"}
    assert {plan.config["bundle"] for plan in made} == {True, False}
    assert {plan.wire for plan in made} == {True, False}
    assert any(plan.rate == 0 for plan in made)
    assert sum(plan.messages for plan in made) >= 200 * len(made)
    assert 20 <= sum(plan.fails >= 0 for plan in made) <= 70
    losses = {spec.args[0] for plan in made for spec in plan.links if spec.link == "Lossy"}
    assert max(losses) == 0.3
    for plan in made:
        assert plan.settings() is not None


@pytest.mark.parametrize("protocol", CLUSTERS)
def test_every_fault_a_channel_allows_is_planned(protocol: str) -> None:
    planned: Counter[str] = Counter()
    for plan in plans(protocol):
        planned.update({strike.kind for strike in plan.strikes} - {""})
        planned.update(getattr(links, spec.link).kind for spec in plan.links)
    assert set(planned) == {*KINDS, *FAILURE_KINDS, "fail"}
    assert set(planned) <= set(FAULT_KINDS)
    assert min(planned.values()) >= 20
    for kind in set(planned) - set(LINK_KINDS):
        assert hasattr(ClusterDriver, f"strike_{kind.partition(':')[0].replace('-', '_')}")


@pytest.mark.parametrize("protocol", CLUSTERS)
def test_whatever_breaks_the_order_of_a_channel_goes_through_an_adapted_medium(
    protocol: str,
) -> None:
    disorder = {"Duplicated", "Replayed", "Reordered"}
    if protocol == "to-channel":
        disorder |= {"Delayed"}
    for plan in plans(protocol):
        adapted = bool(plan.medium_args[-1])
        assert adapted or disorder.isdisjoint(spec.link for spec in plan.links)
        assert adapted or plan.medium != "datagram"
        if protocol == "to-channel":
            assert plan.medium == "bus"
            assert plan.medium_args[2] == 1  # own copies
            assert adapted or not any(strike.kind == "clog" for strike in plan.strikes)


def test_selective_plans_address_some_members_never() -> None:
    made = plans("spo")
    assert {plan.spread for plan in made} >= {0, 1, 2, 3}
    assert any(plan.never for plan in made)
    assert any(set(plan.sources or range(plan.sites)) & set(plan.never) for plan in made)
    strangers = [plan for plan in made if set(plan.never) - set(plan.sources or range(plan.sites))]
    assert len(strangers) >= 20  # somebody has no part in it at all: SPO-T7
    for plan in made:
        to = plan.destinations()
        assert to is not None
        for source in range(plan.sites):
            for number in range(5):
                assert set(to(source, number)).isdisjoint(plan.never)
                assert to(source, number)


# -- a member fails --------------------------------------------------------------------------


def failing(protocol: str) -> Plan:
    """The first plan of a protocol in which a member stops for good."""
    return next(plan for plan in plans(protocol) if plan.fails >= 0)


@pytest.mark.parametrize("protocol", CLUSTERS)
def test_survivors_suspect_give_up_and_reopen_without_the_failed_member(protocol: str) -> None:
    plan = failing(protocol)
    rows = Rows()
    _, found = checked(plan, recorder=rows)
    assert not found
    notices = [(row[1], row[5].kind, row[5].info) for row in rows.kept if row[2] == 5]  # type: ignore[attr-defined]
    gone: list[int] = []
    for site in range(plan.sites):
        kinds = [kind for where, kind, _ in notices if where == site]
        if site == plan.fails:
            continue
        if "undelivered" not in kinds:
            gone.append(site)  # one more that failed
        elif "broken" in kinds:
            assert (site, "suspect", (plan.fails,)) in notices
            assert kinds.index("suspect") < kinds.index("broken") < kinds.index("undelivered")
    assert len(gone) <= 1
    assert "broken" in {kind for _, kind, _ in notices}
    assert [row[5] for row in rows.of(MARK)] == [REOPEN, "heal", "end"]
