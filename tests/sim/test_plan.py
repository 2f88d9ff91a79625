"""Plans: one integer decides everything, and nothing that is promised is missing."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from roundelay.core.engine import Delivery
from roundelay.core.errors import ConfigError
from roundelay.sim.families.registry import PROTOCOLS
from roundelay.sim.families.token import Driver
from roundelay.sim.network import links
from roundelay.sim.swarm.fault_kinds import CLUSTER_TARGETS, FAULT_KINDS, LINK_KINDS
from roundelay.sim.swarm.fault_runner import RunSetting, run_plan
from roundelay.sim.swarm.plan import Plan
from tests.sim.gossip import Rows


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_plan_follows_from_its_seed_and_survives_json(protocol: str) -> None:
    for seed in range(50):
        plan = Plan.from_seed(seed, protocol)
        assert plan == Plan.from_seed(seed, protocol)
        assert msgspec.json.decode(plan.to_json(), type=Plan) == plan
    assert Plan.from_seed(1, protocol) != Plan.from_seed(2, protocol)


def test_a_plan_says_how_to_run_it_again() -> None:
    assert Plan.from_seed(7).rerun == "roundelay swarm --seeds 7:8 --protocol token"


def test_a_plan_says_what_order_is_promised() -> None:
    orders = {protocol: set[str]() for protocol in PROTOCOLS}
    for protocol, seen in orders.items():
        seen.update(Plan.from_seed(seed, protocol).order for seed in range(60))
    assert orders == {
        "token": {"total"},
        "positive-ack": {"fifo", "none"},
        "to": {"total", "fifo"},  # what is handed over early has the order of its source
        "to-channel": {"total", "fifo"},
        "po": {"fifo"},
        "spo": {"fifo"},
    }


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match="token or positive-ack"):
        Plan.from_seed(0, "carrier-pigeon")


def test_every_kind_of_fault_is_planned_and_can_be_carried_out() -> None:
    planned: Counter[str] = Counter()
    for seed in range(300):
        plan = Plan.from_seed(seed)
        planned.update({strike.kind for strike in plan.strikes})
        planned.update(getattr(links, spec.link).kind for spec in plan.links)
    kinds = set(FAULT_KINDS) - {*CLUSTER_TARGETS, "fail"}
    assert set(planned) - {""} == kinds
    assert min(planned[kind] for kind in kinds) >= 30
    for kind in kinds - set(LINK_KINDS):
        assert hasattr(Driver, f"strike_{kind.partition(':')[0].replace('-', '_')}")


def test_plans_differ_in_everything() -> None:
    plans = [Plan.from_seed(seed) for seed in range(300)]
    assert {plan.sites for plan in plans} == {3, 4, 5, 6, 7}
    assert {plan.resilience for plan in plans} == {0, 1, 2, 3}
    assert {plan.medium for plan in plans} == {"bus", "mesh", "datagram"}
    assert {plan.boot for plan in plans} == {"preformed", "cold"}
    assert {plan.wire for plan in plans} == {plan.beyond for plan in plans} == {True, False}
    assert any(plan.config["kw"] > 1 for plan in plans)
    assert any(plan.config["kr"] > 1 for plan in plans)
    assert all(plan.messages >= 220 for plan in plans)


class Logs:
    """Delivered messages of each site."""

    def __init__(self) -> None:
        self.logs: dict[int, list[tuple[int, bytes]]] = {}

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        log = self.logs.setdefault(site, [])
        log.extend((delivery.seq + i, data) for i, data in enumerate(delivery.bundle))

    def restarted(self, time: int, site: int, keeps: str) -> None:
        if keeps == "nothing":
            self.logs[site] = []


@pytest.mark.parametrize("protocol", ["token", "positive-ack"])
def test_plans_run_settle_and_agree(protocol: str) -> None:
    injected: Counter[str] = Counter()
    for seed in range(25):
        plan = Plan.from_seed(seed, protocol)
        logs = Logs()
        outcome = run_plan(plan, RunSetting(observers=(logs,)))
        assert outcome.settled, plan.rerun
        assert not outcome.breaches
        # One message more per site after healing, where there is room for it.
        assert plan.messages <= outcome.submitted <= plan.messages + plan.sites
        assert outcome.committed <= outcome.submitted
        injected.update(outcome.faults)
        if protocol == "token":
            agreed: dict[int, bytes] = {}
            for log in logs.logs.values():
                for seq, data in log:
                    assert agreed.setdefault(seq, data) == data, plan.rerun
    assert len(injected) >= 15
    assert set(injected) <= set(FAULT_KINDS)


def test_a_run_is_repeated_exactly() -> None:
    def run() -> tuple[object, list[object]]:
        rows = Rows()
        outcome = run_plan(Plan.from_seed(3), RunSetting(recorder=rows, trace_receives=True))
        return outcome, list(rows.kept)

    assert run() == run()


def test_the_budget_of_crashes_is_kept() -> None:
    for seed in range(40):
        plan = Plan.from_seed(seed)
        driver = Driver(plan, RunSetting())
        worst = [0]

        class Guard:
            def crashed(self, time: int, site: int, keeps: str, driver=driver, worst=worst) -> None:  # type: ignore[no-untyped-def]
                if driver.books.wiped():
                    worst[0] = max(worst[0], len(driver.books.weak))

        driver.world.observe(Guard())
        driver.run()
        # Once somebody has lost its disk, no more than L sites may have lost their memory.
        assert worst[0] <= max(0, plan.resilience), plan.rerun
