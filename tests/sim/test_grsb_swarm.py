"""GRSB under random faults, and that its checker would notice a broken rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from roundelay.cli.main import run as run_command
from roundelay.core.grsb.acknowledger import Acknowledger
from roundelay.core.grsb.base import Counters
from roundelay.core.grsb.listener import Listener
from roundelay.core.grsb.pdu import LINE_A, State
from roundelay.core.grsb.retransmitter import Retransmitter
from roundelay.core.grsb.stable import Accepted, GrsbStable, Promised
from roundelay.core.grsb.takeover import Candidate
from roundelay.core.grsb.units import Units
from roundelay.core.grsb.user import User
from roundelay.core.grsb.ways import Ways
from roundelay.runs.swarm import SwarmParams, run_seed
from roundelay.sim.grsb_draft import KINDS, LONG_AWAY, OUTCOMES, TAKE_OVER
from roundelay.sim.plan import Plan
from tests.sim.swarming import notice, outcome, promises_kept, simulate_command, swarm_command

SEEDS = 40
PATIENCE = 120
"""Seeds within which a broken rule has to show."""


@pytest.mark.parametrize("first", [0])  # `make seeds` goes on from there
def test_groups_keep_their_promises_whatever_fails(first: int) -> None:
    injected, committed = promises_kept("grsb", range(first, first + SEEDS // 2))
    assert committed > 40 * SEEDS // 2
    assert set(injected) <= {*KINDS, *OUTCOMES, "disk:torn-tail"}
    assert len(injected) > len(KINDS) // 2
    assert injected[TAKE_OVER] > SEEDS // 4
    assert injected[LONG_AWAY] > 0


def test_the_way_over_bytes_changes_nothing() -> None:
    for seed in range(4):
        plan = Plan.from_seed(seed, "grsb")
        ways = [outcome(structs.replace(plan, wire=wire)) for wire in (False, True)]
        assert ways[0] == ways[1]


def test_the_same_seed_is_the_same_run() -> None:
    plan = Plan.from_seed(7, "grsb")
    assert plan == Plan.from_seed(7, "grsb")
    assert plan == Plan.from_json(plan.to_json())
    assert outcome(plan) == outcome(plan)


def test_what_a_recorder_gave_a_user_of_a_reign_that_it_had_not_heard_of_is_not_taken_back() -> (
    None
):
    """A user that hears recorders but not the new retransmitter took what it had been given for
    messages of the old reign that had vanished, and delivered them again."""
    result = run_seed(800179, SwarmParams(first=800179, beyond=800180, protocol="grsb"))
    assert not result.findings


def test_who_wants_nothing_of_what_it_says_itself_still_says_enough() -> None:
    """The driver counted what is delivered: a lone user that filters its own messages out spoke for
    ever while the other was off, which was taken for a group that does not settle."""
    result = run_seed(700945, SwarmParams(first=700945, beyond=700946, protocol="grsb"))
    assert not result.findings


def test_a_seed_that_once_tripped_over_a_stretch_that_was_gone() -> None:
    # Whoever takes a stretch may stop the reading: what was kept behind it is gone then.
    result = run_seed(114, SwarmParams(first=114, beyond=115, protocol="grsb"))
    assert result.findings == ()


# -- broken rules ----------------------------------------------------------------------------


def keeps_what_it_heard(patch: Any) -> None:
    """GR-27 without dropping: what was heard in an old epoch counts in the new one."""
    patch.setattr(Listener, "enter", lambda self, epoch: setattr(self, "epoch", epoch))


def forgets_the_senders(patch: Any) -> None:
    """GR-27: the table of senders does not travel with the state."""
    empty = Counters().pages
    patch.setattr(Counters, "pages", lambda self, *marks: empty(*marks))


def overwrites(patch: Any) -> None:
    """GR-11: as if the recorders had everything at once."""
    patch.setattr(Acknowledger, "_secure", lambda self: setattr(self, "safe", self.expected))


def confirms_too_early(patch: Any) -> None:
    """GR-5: when it is broadcast, not when it is acknowledged."""
    broadcast = Retransmitter._broadcast

    def early(self: Retransmitter, message: Any) -> None:
        self._confirm(message)
        broadcast(self, message)

    patch.setattr(Retransmitter, "_broadcast", early)


def fetches_nothing(patch: Any) -> None:
    """GR-27: takes the marks and not the messages."""
    take = Candidate._take

    def hasty(self: Candidate, site: int, da: int, now: int) -> None:
        state: State = self.whole[site]
        self.whole[site] = structs.replace(state, safe=state.top)
        take(self, site, da, now)

    patch.setattr(Candidate, "_take", hasty)


def does_not_wait(patch: Any) -> None:
    """GR-15: releases what was only heard."""
    ready = Listener.ready
    patch.setattr(Listener, "ready", lambda self, fast=False: ready(self, True))


def forgets_promises(patch: Any) -> None:
    """GR-27: a council member that restarts does not know what it promised."""
    fold = GrsbStable.apply

    def apply(self: GrsbStable, record: Any) -> None:
        if not isinstance(record, Promised | Accepted):
            fold(self, record)

    patch.setattr(GrsbStable, "apply", apply)


def loses_open_units(patch: Any) -> None:
    """GR-19: a user that restarts does not go back to where its open units began."""
    patch.setattr(Units, "resume", lambda self, position: position)


def delivers_everything(patch: Any) -> None:
    """GR-16: whatever was asked for, all that comes by is delivered."""
    handle = User._handle

    def all_of_it(self: User, message: Any, stage: str) -> None:
        wanted, self.wanted = self.wanted, type(self.wanted)()
        handle(self, message, stage)
        self.wanted = wanted

    patch.setattr(User, "_handle", all_of_it)


def needs_line_a(patch: Any) -> None:
    """GR-24: what is for one site alone goes over line A, whatever is heard there."""
    patch.setattr(Ways, "to", lambda self, site, tries=0: LINE_A)


BROKEN: tuple[Callable[[Any], None], ...] = (
    keeps_what_it_heard, forgets_the_senders, overwrites, confirms_too_early, fetches_nothing,
    does_not_wait, forgets_promises, loses_open_units, delivers_everything,
    needs_line_a,
)  # fmt: skip


SHOWS_AT = {"keeps_what_it_heard": 58, "needs_line_a": 33, "does_not_wait": 2}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_rule_is_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    # Rare ones, and those that make long runs longer: begin where it shows, and go round.
    first = SHOWS_AT.get(broken.__name__, 0)
    seeds = (*range(first, PATIENCE), *range(first))
    notice(Plan.from_seed(seed, "grsb") for seed in seeds)


# -- the command -------------------------------------------------------------------------------


def test_the_swarm_command_runs_grsb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert swarm_command(capsys, tmp_path / "run", "grsb", 3) > 100


def test_the_simulate_command_runs_grsb(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate_command(
        capsys, "grsb", "--sites", "12", "--recorders", "2", "--away", "0.5",
        "--layout", "failsafe", "--messages", "300",
    )  # fmt: skip
    assert (found["recorders"], found["users"], found["away"]) == (2, 6, 3)
    assert found["replayed"] >= 3 * 200
    for wrong in (["--sites", "4"], ["--away", "1"], ["--layout", "odd"]):
        assert run_command(["simulate", "grsb", "--layout", "failsafe", *wrong]) == 2
    assert run_command(["simulate", "token", "--away", "0.1"]) == 2
