"""`to_source`: the source of a message gets the token with its stamp (groups of 4 at L = 1)."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from roundelay.core.errors import ConfigError
from roundelay.core.token.ballot import Ballot
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.pdu import Ack, AckRun, Confirm
from roundelay.core.token.stamping import ROUNDS
from tests.core.ring import MS, Ring
from tests.core.test_token_reform import vote


def fast(sites: int = 4, **changes: Any) -> Ring:
    return Ring(sites, TokenConfig.fast(**changes))


def stamps(ring: Ring) -> list[Ack]:
    return [sent.pdu for sent in ring.sent if isinstance(sent.pdu, Ack)]


def test_a_source_has_committed_its_message_when_it_hears_the_stamp() -> None:
    ring = fast()
    (holder,) = ring.holders
    source = ring[holder].token_list.successor[ring[holder].token_list.successor[holder]]
    ring.lose(Confirm)
    ring.submit(source, "a")
    ring.run(0)
    assert ring.log(source) == ["a"]
    assert ring.holders == [source]
    assert [ack.next for ack in stamps(ring)] == [source]
    ring.heal()
    ring.run(100 * MS)
    assert all(ring.log(site) == ["a"] for site in ring.group)
    ring.check()


@pytest.mark.parametrize("sites, changes", [(5, {}), (5, {"resilience": 2}), (4, {"to_source": 0})])
def test_elsewhere_the_token_goes_around_the_ring(sites: int, changes: dict[str, Any]) -> None:
    ring = fast(sites, **changes)
    for turn in range(2 * sites):
        ring.submit(turn % 2, f"{turn}")
        ring.run(0)
    assert all(ack.next == (ack.by + 1) % sites for ack in stamps(ring))
    assert len(ring.log(sites - 1)) == 2 * sites


def test_a_site_that_says_nothing_gets_the_token_all_the_same() -> None:
    """Otherwise nobody could forget anything, and nobody would notice that it is dead."""
    ring = fast()
    for turn in range(20 * ROUNDS * 4):
        ring.submit(turn % 2, f"{turn}")
        ring.run(0)
    holders = [ack.by for ack in stamps(ring)]
    assert {holders.count(silent) > 10 for silent in (2, 3)} == {True}
    for site in ring.group:
        assert ring[site].nts - ring[site].log.pruned <= (ROUNDS + 2) * 4
    ring.check()


def test_several_messages_stamped_at_once_take_the_token_along_the_ring() -> None:
    ring = fast()
    for turn in range(5):
        for site in ring.group:
            ring.submit(site, f"{site}.{turn}")
    ring.run(0)
    runs = [sent.pdu for sent in ring.sent if isinstance(sent.pdu, AckRun)]
    assert runs
    assert all(run.next == (run.by + 1) % 4 for run in runs)


def passes(exp: int, present: dict[int, dict[str, Any]], sites: int = 4) -> bool:
    """Does a list of `present` pass the resiliency test on the old list of all with `exp`?"""
    members = tuple(range(sites))
    votes = {site: vote((9, 0), members=members, exp=exp, **said) for site, said in present.items()}
    return Ballot(votes, members, fast(sites).config).resilient()


def test_cm_r3_3_the_expected_site_is_a_witness_or_all_others_are() -> None:
    for exp in range(4):
        for count in range(1, 5):
            for present in combinations(range(4), count):
                others = set(range(4)) - {exp}
                needed = exp in present or others <= set(present)
                assert passes(exp, {site: {} for site in present}) == needed


def test_cm_r3_3_a_restarted_site_is_no_witness_here_either() -> None:
    forgot = {"amnesia": True}
    assert not passes(0, {1: {}, 2: forgot, 3: {}})
    assert not passes(0, {0: forgot, 1: {}, 2: {}})
    assert passes(0, {0: forgot, 1: {}, 2: {}, 3: {}})


def test_a_committed_message_survives_its_token_site_whoever_got_the_token() -> None:
    """The site behind the token site in the ring has seen nothing; the source has."""
    for source in (2, 3):
        ring = fast()
        assert ring.holders == [0]
        for deaf in {1, 2, 3} - {source}:
            ring.lose(Ack, dst=deaf)
        ring.lose(Confirm)
        ring.submit(source, "a")
        ring.run(0)
        assert ring.log(source) == ["a"]
        ring.crash(0)
        ring.heal()
        ring.run(5000 * MS)
        ring.submit(1, "b")
        ring.run(5000 * MS)
        assert all(ring.log(site) == ["a", "b"] for site in (1, 2, 3))
        ring.check()


def test_to_source_and_kr_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="to_source"):
        TokenConfig.fast(kw=1, kr=2).check(4)
