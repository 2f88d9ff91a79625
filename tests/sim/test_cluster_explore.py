"""The explorer of clusters: small scopes in full, mutants, and that its reduction loses nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from roundelay.cli.main import run
from roundelay.core.cluster.po import PoSite
from roundelay.core.engine import PREACKNOWLEDGED
from roundelay.core.errors import ConfigError
from roundelay.core.families import CLUSTERS
from roundelay.sim.explore.cluster.member_states import LEFT_OUT, Delivered, Local
from roundelay.sim.explore.cluster.model import ClusterModel, State
from roundelay.sim.explore.families import explore
from roundelay.sim.explore.scope import ClusterScope
from roundelay.sim.explore.search import Search
from roundelay.sim.mutants.cluster import broken
from roundelay.sim.mutants.mutant import Patch

MAX_STATES = 1_000_000


def scope(protocol: str, sites: int, messages: int, losses: int, **more: Any) -> ClusterScope:
    return ClusterScope(protocol=protocol, sites=sites, messages=messages, losses=losses, **more)


@pytest.mark.parametrize(
    "small",
    [
        scope("po", 2, 2, 2),
        scope("po", 2, 2, 1, early=1),
        scope("po", 3, 1, 0),
        scope("to", 2, 2, 2),
        scope("to", 2, 2, 1, window=2),
        scope("spo", 2, 2, 0),
        scope("spo", 2, 1, 2, early=1),
        scope("to-channel", 2, 1, 2, deliver_at=PREACKNOWLEDGED),
        scope("to-channel", 3, 1, 0),
        scope("to-channel", 2, 2, 1, fails=1, deliver_at=PREACKNOWLEDGED),
    ],
    ids=lambda one: one.command().removeprefix("roundelay explore --protocol "),
)
def test_every_run_of_a_small_cluster_keeps_the_promises_and_ends(small: ClusterScope) -> None:
    found = explore(small)
    assert found.complete
    assert found.violations == ()
    assert found.states > 100


EXPLORED = [mutant for mutant in broken.mutants if mutant.scope is not None]


@pytest.mark.parametrize("mutant", EXPLORED, ids=lambda mutant: mutant.name)
def test_a_rule_taken_back_is_noticed_and_the_shipped_engine_is_clean_there(mutant: Any) -> None:
    found = explore(mutant.scope, mutant=mutant)
    (one,) = found.violations
    assert mutant.expected(one.invariant, one.detail)
    assert one.steps
    assert not found.complete
    assert explore(mutant.scope).violations == ()


def test_every_protocol_has_a_mutant() -> None:
    assert {mutant.protocol for mutant in EXPLORED} == set(CLUSTERS)


class UnreducedModel(ClusterModel):
    """Nothing is put off."""

    def ahead(self, state: State, locals_: list[Local], submit: bool) -> Sequence[int]:
        return self.group


def outcomes(
    model: ClusterModel, states: list[State]
) -> set[tuple[tuple[tuple[Delivered, ...], ...], int]]:
    """What each member has delivered when nothing is under way, and losses left."""
    return {
        (tuple(model.local(state, k).delivered for k in model.group), state[model.losses])
        for state in states
        if not model.under_way(state)
    }


@pytest.mark.parametrize(
    "small",
    [
        scope("po", 2, 2, 1),
        scope("spo", 2, 1, 1),
        scope("to", 2, 2, 0, early=1),
        scope("to-channel", 2, 2, 0),
        scope("to-channel", 2, 1, 1),
    ],
    ids=lambda one: one.command().removeprefix("roundelay explore --protocol "),
)
def test_what_is_put_off_changes_nothing_in_what_can_come_of_it(small: ClusterScope) -> None:
    model, unreduced_model = ClusterModel(small), UnreducedModel(small)
    search, unreduced = Search(model, MAX_STATES), Search(unreduced_model, MAX_STATES)
    assert search.run().complete
    assert unreduced.run().complete
    assert outcomes(model, search.states) == outcomes(unreduced_model, unreduced.states)
    assert len(search.states) < len(unreduced.states)


def test_a_search_that_is_cut_short_says_so() -> None:
    found = explore(scope("po", 3, 1, 1), max_states=200)
    assert not found.complete
    assert found.violations == ()


def believes_too_much(shipped: Any, self: PoSite, pdu: Any) -> None:
    """One acknowledgement is taken for everybody's."""
    shipped(self, pdu)
    for row in self.al:
        row[:] = [max(row)] * self.n


def gives_up(self: PoSite, now: int) -> None:
    """The first poll is the last."""
    self.stop("impatience")


def stumbles(self: PoSite, now: int) -> None:
    """A programming error."""
    raise KeyError(now)


@pytest.mark.parametrize(
    "name, function, rule",
    [
        ("note_vector", believes_too_much, "I8"),
        ("poll", gives_up, "TR-15"),
        ("on_ack_timer", stumbles, "engine"),
    ],
)
def test_other_ways_to_go_wrong_are_noticed_as_well(name: str, function: Any, rule: str) -> None:
    mutant = structs.replace(EXPLORED[0], patches=(Patch.of(PoSite, name, function),))
    (one,) = explore(scope("po", 2, 1, 1), mutant).violations
    assert one.invariant == rule


def test_whatever_is_left_out_of_a_comparison_exists() -> None:
    slots = {name for kind in PoSite.__mro__ for name in getattr(kind, "__slots__", ())}
    assert {name for names in LEFT_OUT for name in names.split()} <= slots


@pytest.mark.parametrize(
    "field, value", [("protocol", "token"), ("sites", 1), ("messages", 10), ("losses", -1)]
)
def test_a_scope_that_makes_no_sense_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        explore(ClusterScope(**{field: value}))


# -- the command -----------------------------------------------------------------------------


def called(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = run([str(word) for word in ("explore", *words)])
    done = capsys.readouterr()
    return status, done.out, done.err


@pytest.mark.parametrize("protocol", CLUSTERS)
def test_the_command_says_what_it_found(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--protocol", protocol, "--sites", 2, "--messages", 1, "--losses", 1)
    status, out, _ = called(capsys, *words, "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["protocol"], found["complete"], found["violations"]) == (protocol, True, [])
    assert found["states"] > found["depth"] > 5
    status, out, _ = called(capsys, *words)
    assert status == 0
    assert "no violation" in out


def test_the_command_tells_how_a_mutant_goes_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = called(capsys, "--mutant", "fresh-vectors", "--json")
    (one,) = json.loads(out)["violations"]
    assert status == 1
    assert one["invariant"] == "I1"
    status, out, _ = called(capsys, "--mutant", "fresh-vectors")
    assert status == 1
    assert all(step in out for step in one["steps"])
    assert "fresh-vectors" in called(capsys, "--list-mutants")[1]


@pytest.mark.parametrize(
    "words, complaint",
    [
        (("--protocol", "po", "--crashes", 1), "crashes = 1"),
        (("--losses", 1), "losses = 1"),
        (("--protocol", "spo", "--mutant", "fresh-vectors"), "one of treq-is-the-last"),
        (("--protocol", "po", "--mutant", "no-majority"), "mutant = no-majority"),
        (("--protocol", "po", "--sites", 6), "sites = 6"),
    ],
)
def test_bounds_of_other_protocols_are_refused(
    words: tuple[object, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = called(capsys, *words)
    assert status == 2
    assert complaint in err
    assert err.count("\n") == 1
