"""The hierarchy under random faults, and that its checker would notice a broken rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from roundelay.cli.main import run as run_command
from roundelay.core.grsb.user import User
from roundelay.core.wide.globe import GlobalRetransmitter
from roundelay.core.wide.local import LocalUser
from roundelay.core.wide.subnet import Flood
from roundelay.core.wide.trunk import Trunk
from roundelay.sim.plan import Plan
from roundelay.sim.wide_draft import KINDS, OUTCOMES
from tests.sim.swarming import notice, outcome, promises_kept, simulate_command, swarm_command

SEEDS = 10
PATIENCE = 12
"""Seeds within which a broken rule has to show, from where it is known to."""


def test_networks_keep_their_promises_whatever_fails() -> None:
    injected, committed = promises_kept("wide", range(SEEDS))
    assert committed > 40 * SEEDS
    assert set(injected) <= {*KINDS, *OUTCOMES.values(), "disk:torn-tail"}
    assert all(injected[what] > 0 for what in OUTCOMES.values())
    assert len(injected) > len(set(KINDS)) // 2


def test_the_way_over_bytes_changes_nothing() -> None:
    plan = Plan.from_seed(2, "wide")
    ways = [outcome(structs.replace(plan, wire=wire)) for wire in (False, True)]
    assert ways[0] == ways[1]


def test_the_same_seed_is_the_same_run() -> None:
    plan = Plan.from_seed(0, "wide")
    assert plan == Plan.from_seed(0, "wide")
    assert outcome(plan) == outcome(Plan.from_json(plan.to_json()))


# -- broken rules ----------------------------------------------------------------------------


def does_not_wait_for_the_last_network(patch: Any) -> None:
    """HG-3: the GPR waits for all networks but one."""
    patch.setattr(
        GlobalRetransmitter,
        "everywhere",
        property(lambda self: sorted(one.safe for one in self.branches.values())[1]),
    )


def never_asks_the_gpr(patch: Any) -> None:
    """HG-4: what an LCR missed it misses."""
    release = Trunk._release

    def deaf(self: Trunk, now: int) -> None:
        release(self, now)
        self.reader.stop()

    patch.setattr(Trunk, "_release", deaf)


def does_not_know_origins(patch: Any) -> None:
    """HG-1: now and then the GCR forgets what an origin has sent."""
    on_up = GlobalRetransmitter.on_up

    def forgetful(self: GlobalRetransmitter, up: Any, source: int, now: int) -> None:
        if self.host.rng.random() < 0.05:
            self.sequencer.counters.by_sender.pop(up.origin, None)
        on_up(self, up, source, now)

    patch.setattr(GlobalRetransmitter, "on_up", forgetful)


def delivers_as_it_comes(patch: Any) -> None:
    """HG-11: not in the order of positions."""

    def advance(self: Flood, now: int) -> None:
        for at in list(self.held):
            message = self.held.pop(at)
            self.next = max(self.next, message.end)
            self.take(message, now)

    patch.setattr(Flood, "_advance", advance)


def takes_back(patch: Any) -> None:
    """A network that begins anew makes its users forget, as a flat group would."""
    patch.setattr(LocalUser, "begins", User.begins)


BROKEN: tuple[tuple[Callable[[Any], None], int], ...] = (
    (does_not_wait_for_the_last_network, 3),
    (never_asks_the_gpr, 5),
    (does_not_know_origins, 0),
    (delivers_as_it_comes, 1),
    (takes_back, 265),
)


@pytest.mark.parametrize(("broken", "first"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_a_broken_rule_is_noticed(broken: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    plans = (Plan.from_seed(seed, "wide") for seed in range(first, first + PATIENCE))
    notice(structs.replace(plan, wire=False) for plan in plans)


# -- the commands ------------------------------------------------------------------------------


def test_the_swarm_command_runs_the_hierarchy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert swarm_command(capsys, tmp_path / "run", "wide", 2) > 50


def test_the_simulate_command_runs_the_hierarchy(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate_command(
        capsys, "wide", "--networks", "3", "--sites", "30", "--recorders", "2",
        "--away", "0.4", "--messages", "200",
    )  # fmt: skip
    assert (found["networks"], found["recorders"]) == (3, 2)
    assert found["away"] > 0
    assert found["nodes_behind"] > 0
    assert found["replayed"] > 100
    for wrong in (["--networks", "9", "--sites", "12"], ["--away", "1"], ["--layout", "demo"]):
        assert run_command(["simulate", "wide", *wrong]) == 2
    assert run_command(["simulate", "grsb", "--networks", "2"]) == 2


def test_a_graph_of_200_nodes_can_be_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate_command(
        capsys, "wide", "--networks", "2", "--sites", "210", "--subnet", "100",
        "--messages", "6", "--rate", "1",
    )  # fmt: skip
    assert found["nodes_behind"] == 200
