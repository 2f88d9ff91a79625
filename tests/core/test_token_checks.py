"""What no correct peer sends is dropped, counted by reason, and changes nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import Pdu
from roundelay.core.positive_ack import PaAck
from roundelay.core.token import pdu as p
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from tests.core.ring import BOOT, announcement, invitation
from tests.core.test_token_normal import picture

GROUP = (0, 1, 2)
V = (1, 0)
FAR = (1 << 63) - 1
"""Behind this nothing can be counted."""


def fresh(me: int = 1, **changes: Any) -> TokenSite:
    site = TokenSite(me, GROUP, TokenConfig(**changes), Random(me))
    site.take()
    return site


def invited() -> TokenSite:
    """A slave in phase I of list (1, 0)."""
    site = fresh()
    site.receive(invitation(V), 0, 1)
    site.take()
    return site


def recovering() -> TokenSite:
    """A slave in phase II of list (1, 0), which starts at 10."""
    site = invited()
    site.receive(announcement(site, V, GROUP, 10, 0, (0, 2)), 0, 2)
    site.take()
    return site


def originating() -> TokenSite:
    """The originator of list (1, 1), in phase I."""
    site = fresh()
    site.reform(1)
    site.take()
    return site


def announcing() -> TokenSite:
    """The originator of list (1, 1), in phase II, with site 0 in its list but not site 2."""
    site = fresh(attempts=0)
    site.reform(1)
    site.receive(vote(), 0, 2)
    while site.phase == "O1":
        site.on_timer(site.deadline)
    assert site.phase == "O2"
    site.take()
    return site


def vote(**changes: Any) -> p.Vote1:
    fields: dict[str, Any] = {
        "v": (1, 1), "yes": True, "tl": (0, 0), "members": GROUP, "nts": 0, "exp": 0,
        "amnesia": False, "wiped": False, "boot": BOOT, "max_joined": (1, 1),
    }  # fmt: skip
    return p.Vote1(**(fields | changes))


def lines(*stamps: int, **changes: Any) -> tuple[p.Entry, ...]:
    """Entries with these stamps."""
    fields: dict[str, Any] = {"s": 0, "by": 0, "next": 1, "kind": p.DATA}
    fields |= changes
    return tuple(p.Entry(p.Ack((0, 2), ts, n=ts, **fields), Bundle.of(b"x"), ts) for ts in stamps)


def recovered(
    entries: tuple[p.Entry, ...], first: int = 0, counters: tuple[tuple[int, int], ...] = ()
) -> p.RecoverData:
    return p.RecoverData(V, entries, 5, first, counters, first)


def new_tl(members: tuple[int, ...], first: int = 0, boots: int | None = None) -> p.NewTl:
    boot = (BOOT,) * (len(members) if boots is None else boots)
    return p.NewTl(V, members, 0, first, (0, 0), boot)


CASES: list[tuple[Any, Any, int, str]] = [
    (fresh, PaAck(0, 0, 1), 0, "not a PDU of the token protocol"),
    (fresh, invitation((1, 2)), 0, "invitation of a foreign site"),
    (fresh, invitation((1, 9)), 9, "invitation of a foreign site"),
    (originating, vote(), 9, "vote of a foreign site"),
    (originating, vote(members=()), 0, "vote with an impossible list"),
    (originating, vote(members=(0, 0, 1)), 0, "vote with an impossible list"),
    (originating, vote(members=(1, 0)), 0, "vote with an impossible list"),
    (originating, vote(members=(0, 1, 7)), 0, "vote with an impossible list"),
    (originating, vote(exp=5), 0, "vote with an impossible list"),
    (originating, vote(members=(0, 1), exp=2), 0, "vote with an impossible list"),
    (invited, new_tl(()), 0, "announcement of an impossible list"),
    (invited, new_tl((1, 0)), 0, "announcement of an impossible list"),
    (invited, new_tl((0, 1, 8)), 0, "announcement of an impossible list"),
    (invited, new_tl((0, 1), first=2), 0, "announcement of an impossible list"),
    (invited, new_tl((0, 1), boots=1), 0, "announcement of an impossible list"),
    (invited, replace(new_tl(GROUP), floor=FAR), 0, "announcement of an impossible list"),
    (
        invited,
        replace(new_tl(GROUP), history=(7, 3, FAR)),
        0,
        "announcement of an impossible list",
    ),
    (originating, vote(floor=FAR), 0, "PDU with an impossible number"),
    (originating, vote(history=(7, 3, FAR)), 0, "PDU with an impossible number"),
    (originating, vote(entered=(p.Entered(9, (0, 0), 1),)), 0, "vote with an impossible list"),
    (
        originating,
        vote(entered=(p.Entered(2, (0xFFFFFFFE, 0), 1),)),
        0,
        "PDU of an impossible list",
    ),
    (
        originating,
        vote(tl=p.NO_LIST, members=(), exp=-1, entered=(p.Entered(2, (5, 9), 1),)),
        0,
        "PDU of an impossible list",
    ),
    (invited, new_tl((0, 2)), 0, "announcement of a list without us"),
    (invited, new_tl(GROUP), 2, "announcement of a list without us"),
    (announcing, p.Vote2((1, 1), p.YES), 2, "vote of a foreign site"),
    (recovering, recovered(lines(0, 2)), 0, "recovery with impossible entries"),
    (recovering, recovered(lines(0, by=9)), 0, "recovery with impossible entries"),
    (recovering, recovered(lines(0, next=9)), 0, "recovery with impossible entries"),
    (recovering, recovered(lines(0, s=9)), 0, "recovery with impossible entries"),
    (recovering, recovered((), first=3), 0, "recovery behind a gap it does not describe"),
    (recovering, recovered(lines(4), first=3), 0, "recovery behind a gap it does not describe"),
    (
        recovering,
        recovered(lines(3), first=3, counters=((9, 1),)),
        0,
        "recovery behind a gap it does not describe",
    ),
]


@pytest.mark.parametrize(
    "make, pdu, source, reason", CASES, ids=[f"{case[3]} {k}" for k, case in enumerate(CASES)]
)
def test_malformed_input_is_dropped_and_counted(
    make: Any, pdu: Pdu, source: int, reason: str
) -> None:
    site = make()
    before = picture(site)
    site.receive(pdu, source, 3)
    assert site.drops == {reason: 1}
    assert not site.take()
    after = picture(site)
    del before["drops"], after["drops"]
    assert after == before


def test_a_no_needs_no_list() -> None:
    """Only version and refusal count in it."""
    site = originating()
    site.receive(vote(yes=False, members=(), exp=99, max_joined=(6, 2)), 0, 2)
    assert site.drops == {}
    assert (site.phase, site.reformation.seen_version) == ("OUT", 6)


def test_a_vote_of_a_site_without_a_list_needs_none() -> None:
    site = originating()
    site.receive(vote(tl=p.NO_LIST, members=(), exp=-1), 0, 2)
    assert site.drops == {}
    assert sorted(site.reformation.votes) == [0, 1]


def test_an_announcement_that_an_earlier_run_voted_for_is_dropped() -> None:
    """A site that lost its memory is not drawn into a list by a copy from before."""
    site = invited()
    site.receive(new_tl(GROUP), 0, 2)  # with a boot number that is not ours
    assert site.phase == "S1"
    assert site.drops == {"announcement of a list that an earlier run voted for": 1}
    assert not site.take()


IDS = st.integers(-2, 4)
STAMPS = st.integers(-2, 12) | st.sampled_from([2**63, 2**64 - 1])
VERSIONS = st.tuples(st.integers(-1, 3), st.integers(-1, 3))
BUNDLES = st.just(NOTHING) | st.just(Bundle.of(b"x"))
ACKS = st.builds(p.Ack, VERSIONS, STAMPS, st.sampled_from([0, 1, 7]), IDS, STAMPS, IDS, IDS)
MESSAGES = st.builds(p.B, VERSIONS, IDS, STAMPS, BUNDLES)
MEMBERS = st.lists(IDS, max_size=4).map(tuple)
ENTRIES = st.lists(st.builds(p.Entry, ACKS, BUNDLES, STAMPS), max_size=3).map(tuple)
PDUS = st.one_of(
    MESSAGES,
    ACKS,
    st.builds(p.Confirm, VERSIONS, STAMPS, IDS, STAMPS),
    st.builds(p.RetxReq, VERSIONS, st.sampled_from([1, 2, 3]), STAMPS, STAMPS, IDS, STAMPS),
    st.builds(p.RetxAck, ACKS),
    st.builds(p.RetxMsg, MESSAGES),
    st.builds(p.TlHint, VERSIONS),
    st.builds(p.Invite, VERSIONS, IDS),
    st.builds(
        p.Vote1, VERSIONS, st.booleans(), VERSIONS, MEMBERS, st.integers(0, 5), IDS,
        st.booleans(), st.booleans(), IDS, VERSIONS,
    ),
    st.builds(p.Vote2, VERSIONS, st.sampled_from([0, 1, 2])),
    st.builds(p.NewToken, VERSIONS),
    st.builds(p.Abort, VERSIONS),
    st.builds(p.RecoverReq, VERSIONS, st.integers(0, 12)),
)  # fmt: skip


@settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(st.tuples(PDUS, IDS), max_size=25))
def test_no_input_makes_an_engine_raise(arrivals: list[tuple[Any, int]]) -> None:
    """Not even from peers that are out of their minds; announcements and recoveries excepted,
    whose entries a list is built on: those must come from the site that was elected."""
    for make in (fresh, invited, originating):
        site = make()
        for now, (pdu, source) in enumerate(arrivals, 10):
            site.receive(pdu, source, now)
            site.take()
        site.on_timer(10**10)
        caps = site.caps()
        assert all(held <= caps[name] for name, held in site.usage().items())


# -- members, versions and numbers that cannot be ------------------------------------------------


def unchanged(site: TokenSite) -> dict[str, str]:
    """What a PDU that is refused leaves as it was: all but the count of refusals."""
    return {name: value for name, value in picture(site).items() if name != "drops"}


def running() -> TokenSite:
    """A site of a list in force."""
    site = fresh(boot="preformed")
    site.take()
    return site


@pytest.mark.parametrize("version", [(0xFFFFFFFE, 0), (1 << 30, 2), (5, 60_000)])
def test_a_list_version_that_cannot_be_leaves_room_for_those_that_can(version: p.Version) -> None:
    """One INVITE of version 0xFFFFFFFE left no version for any list after it."""
    site = running()
    before = unchanged(site)
    for pdu in (
        p.Invite(version, BOOT), p.TlHint(version), p.Abort(version), p.NewToken(version),
        p.Vote2(version, p.NO), p.RecoverReq(version, 0), p.B(version, 0, 0, Bundle.of(b"x")),
        p.Ack(version, 0, p.DATA, 0, 0, 0, 1), p.Confirm(version, 0, 0, 0),
        p.RetxReq(version, p.WANT_ACK, 0, 0, 0, 0), vote(max_joined=version, yes=False),
    ):  # fmt: skip
        site.receive(pdu, version[1] if version[1] in GROUP else 0, 5)
    assert unchanged(site) == before
    assert site.reformation.seen_version < 10
    site.reform(6)
    assert site.reformation.attempt is not None
    assert site.reformation.attempt[0] == 1


@pytest.mark.parametrize(
    "pdu",
    [
        p.Ack((0, 0), 0, p.DATA, 0, 0, 60_000, 1),
        p.Ack((0, 0), 0, p.DATA, 0, 0, 0, 60_000),
        p.Ack((0, 0), 0, p.DATA, 60_000, 0, 0, 1),
        p.Ack((0, 0), (1 << 63) - 1, p.DATA, 0, 0, 0, 1),
        p.AckRun((0, 0), 0, 60_000, 1, ((0, 0),)),
        p.AckRun((0, 0), 0, 0, 1, ((60_000, 0),)),
        p.AckRun((0, 0), 0, 0, 1, ()),
        p.B((0, 0), 60_000, 0, Bundle.of(b"x")),
        p.B((0, 0), 0, 1 << 63, Bundle.of(b"x")),
        p.Confirm((0, 0), 0, 60_000, 0),
        p.RetxReq((0, 0), 9, 0, 0, 0, 0),
        p.RetxAck(p.Ack((0, 0), 0, p.DATA, 0, 0, 60_000, 1)),
        p.RetxMsg(p.B((0, 0), 60_000, 0, Bundle.of(b"x"))),
        p.RetxBulk(lines(0, by=60_000)),
    ],
)
def test_sites_and_numbers_that_cannot_be_change_nothing(pdu: Pdu) -> None:
    site = running()
    before = unchanged(site)
    site.receive(pdu, 0, 5)
    assert unchanged(site) == before
    assert sum(site.drops.values()) == 1
