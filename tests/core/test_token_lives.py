"""Two lives of one site: who a list is made of, whose votes count, whose messages are ours."""

from __future__ import annotations

from random import Random

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery
from roundelay.core.token.ballot import Ballot, OtherLife, forgetful
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.pdu import (
    DATA,
    YES,
    Ack,
    B,
    Entered,
    Entry,
    NewTl,
    RecoverData,
    Vote1,
    Vote2,
)
from roundelay.core.token.phases import NORMAL, O1, O2, S1
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Joined, Listed, Stamped
from tests.core.ring import BOOT, announcement, invitation, restarted
from tests.core.sends import sends_of

ALL = (0, 1, 2)
U = (0, 0)
OTHER = BOOT + 1


def listed(me: int = 1, resilience: int = 0) -> TokenSite:
    """A site in list (1, 0), whose other members have boot number BOOT."""
    site = TokenSite(me, ALL, TokenConfig(resilience=resilience), Random(me))
    site.receive(invitation((1, 0)), 0, 1, life=BOOT)
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 2, life=BOOT)
    assert (site.phase, site.tl) == (NORMAL, (1, 0))
    site.take()
    return site


def vote(site: int, tl: tuple[int, int], boot: int, *entered: Entered) -> Vote1:
    return Vote1((9, 0), True, tl, ALL, 0, 0, False, False, boot, (9, 0), entered=entered)


def test_a_list_takes_messages_and_stamps_from_the_lives_it_is_made_of_alone() -> None:
    site = listed()
    message = B((1, 0), 2, 0, Bundle.of(b"twin"))
    site.receive(message, 2, 3, life=OTHER)
    site.receive(Ack((1, 0), 0, DATA, 2, 0, 0, 1), 0, 3, life=OTHER)
    assert not site.ordering.qb
    assert site.nts == 0
    assert sum(site.drops.values()) == 2
    site.receive(message, 2, 4, life=BOOT)
    assert list(site.ordering.qb) == [(2, 0)]
    site.receive(B((1, 0), 0, 0, Bundle.of(b"a driver that does not know")), 0, 4)
    assert len(site.ordering.qb) == 2


def test_votes_for_another_life_of_the_originator_do_not_count() -> None:
    site = TokenSite(0, ALL, TokenConfig(), Random(0))
    site.reform(1)
    v = site.reformation.attempt
    assert v is not None
    site.receive(Vote1(v, True, U, ALL, 0, 0, False, False, BOOT, v, inviter=site.boot + 1), 1, 2)
    assert set(site.reformation.votes) == {0}
    for other in (1, 2):
        site.receive(
            Vote1(v, True, U, ALL, 0, 0, False, False, BOOT, v, inviter=site.boot), other, 3
        )
    assert site.phase == O2
    site.receive(Vote2(v, YES, site.boot + 1), 1, 4)
    site.receive(Vote2(v, YES, site.boot), 2, 4)
    assert site.reformation.yes_votes == {0, 2}


def test_a_list_announced_by_another_life_of_the_originator_is_not_joined() -> None:
    site = TokenSite(1, ALL, TokenConfig(), Random(1))
    site.receive(invitation((1, 0)), 0, 1)
    site.receive(NewTl((1, 0), ALL, 0, 0, U, (OTHER, site.boot, BOOT)), 0, 2)
    assert (site.phase, site.tl) == (S1, U)


def test_recovery_comes_from_the_life_that_voted() -> None:
    site = TokenSite(1, ALL, TokenConfig(), Random(1))
    site.receive(invitation((1, 0)), 0, 1)
    site.receive(announcement(site, (1, 0), ALL, 1, 2), 0, 2)
    entry = Entry(Ack(U, 0, DATA, 2, 0, 0, 1), Bundle.of(b"x"), 0)
    site.receive(RecoverData((1, 0), (entry,), 0, 0, (), 0), 2, 3, life=OTHER)
    assert site.tl == U
    site.receive(RecoverData((1, 0), (entry,), 0, 0, (), 0), 2, 3, life=BOOT)
    assert site.tl == (1, 0)


def test_who_knows_less_of_its_lists_than_others_know_of_it_has_no_say() -> None:
    """Site 2 was in list (5, 1) with boot number 8; it votes as if that had never been."""
    knows = Entered(2, (5, 1), 8)
    votes = {1: vote(1, (5, 1), BOOT, knows), 2: vote(2, (3, 0), 9)}
    assert forgetful(votes) == {2}
    believed = Ballot(votes, (0, 1, 2), TokenConfig()).votes
    assert [believed[site].wiped for site in (1, 2)] == [False, True]
    # Neither one that restarted with its disk, nor one that did not hear of the list in time.
    assert not forgetful(votes | {2: vote(2, (5, 1), 9)})
    assert not forgetful(votes | {2: vote(2, (3, 0), 8)})
    # Where everybody votes nobody else can have another list.
    everybody = votes | {0: vote(0, (3, 0), BOOT)}
    assert not Ballot(everybody, (0, 1, 2), TokenConfig()).votes[2].wiped


def test_a_site_with_an_old_disk_and_one_other_are_no_majority() -> None:
    site = listed()
    site.reform(3)
    v = site.reformation.attempt
    assert v is not None
    assert {one.site for one in site.reformation.votes[1].entered} == {0, 1, 2}
    site.receive(Vote1(v, True, U, ALL, 0, 0, True, False, OTHER, v, inviter=site.boot), 2, 4)
    assert site.phase == O1
    while site.phase == O1:
        site.on_timer(site.deadline)
    assert site.reformation.blocked is not None
    assert site.reformation.blocked[0] == "majority"


def test_messages_of_another_life_are_not_ours_whatever_their_numbers() -> None:
    """A twin that is admitted again has to take over what its replacement has said meanwhile."""
    site = listed()
    site.submit(Bundle.of(b"mine"), 3)
    site.take()
    assert (site.own.base, len(site.own.kept)) == (0, 1)
    site.receive(invitation((4, 0)), 0, 4)
    site.receive(announcement(site, (4, 0), ALL, 2, 0, (3, 0)), 0, 5)
    theirs = tuple(
        Entry(Ack((3, 0), ts, DATA, 1, ts, 0, 1), Bundle.of(b"twin %d" % ts), ts) for ts in (0, 1)
    )
    site.receive(RecoverData((4, 0), theirs, 1, 0, (), 0), 0, 6)
    out = site.take()
    assert [(delivery.number, type(delivery)) for delivery in out.deliveries] == [(0, OtherLife)]
    # Ours has no place under its old number: it is sent with the next one that is free.
    assert (site.own.base, [bundle.data for bundle in site.own.kept]) == (2, [b"mine"])


def test_what_a_life_sends_is_its_own_under_a_number_that_an_earlier_one_had_in_vain() -> None:
    """A stamped message of the life before came to nothing, and its number was given again: the
    new one was taken for that of the other, and every receipt was one message late from then on."""
    vain = Entry(Ack((1, 0), 0, DATA, 1, 0, 0, 1), Bundle.of(b"in vain"), 0)
    site = restarted(1, 3, Joined((1, 0)), Listed((1, 0), ALL, 0, 0, ()), Stamped(vain))
    assert (site.nts, site.cnts) == (1, 0)
    site.receive(invitation((4, 0)), 0, 5, life=BOOT)
    site.receive(announcement(site, (4, 0), ALL, 0, 0, (3, 0)), 0, 6, life=BOOT)
    assert (site.tl, site.nts) == ((4, 0), 0)
    site.submit(Bundle.of(b"ours"), 7)
    site.receive(Ack((4, 0), 0, DATA, 1, 0, 0, 1), 0, 8, life=BOOT)
    (delivery,) = site.take().deliveries
    assert (delivery.number, delivery.bundle.data) == (0, b"ours")
    assert type(delivery) is Delivery


def test_ours_and_those_of_another_life_behind_them_are_told_apart() -> None:
    """Both came in one batch: ours was taken for the other's, since its number is lower."""
    site = listed(resilience=1)
    site.submit(Bundle.of(b"first"), 3)
    site.receive(Ack((1, 0), 0, DATA, 1, 0, 0, 2), 0, 4, life=BOOT)
    site.submit(Bundle.of(b"second"), 4)
    site.take()
    site.receive(invitation((4, 0)), 0, 5)
    site.receive(announcement(site, (4, 0), ALL, 2, 0, (3, 0)), 0, 6)
    both = (
        Entry(Ack((1, 0), 0, DATA, 1, 0, 0, 2), Bundle.of(b"first"), 0),
        Entry(Ack((3, 0), 1, DATA, 1, 1, 2, 1), Bundle.of(b"twin"), 1),
    )
    site.receive(RecoverData((4, 0), both, 0, 0, (), 0), 0, 7)
    assert (site.tl, site.phase) == ((4, 0), NORMAL)
    out = site.take()
    assert not [notice for notice in out.notices if notice.kind == "indeterminate"]
    sent = [pdu for _, pdu in sends_of(out) if isinstance(pdu, B)]
    assert [(pdu.n, pdu.bundle.data) for pdu in sent] == [(2, b"second")]
    site.commit.commit_upto(2)
    found = [(one.bundle.data, type(one)) for one in site.take().deliveries]
    assert found == [(b"first", Delivery), (b"twin", OtherLife)]
    assert (site.own.base, [bundle.data for bundle in site.own.kept]) == (2, [b"second"])
