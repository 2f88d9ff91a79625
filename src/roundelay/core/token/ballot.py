"""Who must be among the voters for a new list, and what the list is built on (CM-R3).

One site, several lives: a process that replaced another, or one that woke up from long ago.

Each run of a site has a boot number.  A list is made of boot numbers as much as of sites (NEW_TL
has them), so a list knows which life of each member it is made of:

- PDUs of the list, its recovery and its token are taken from those lives alone.  A driver says by
  whose life a PDU was sent (`receive(…, life=)`, 0 where it does not know).
- Votes name the invitation they answer by the boot number of its originator, for two lives of one
  site may well choose the same version for different lists.

A life that was left out does not count for the majority, as little as a site that lost its disk,
and for the same reason: what its site has promised since it does not know.  It need not know that
it was left out; voters know in which list they last saw each site, and with which boot number.
The same rule finds a site whose disk was replaced by an old copy of it.

Deviations from the paper: see `reformation`.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from msgspec.structs import replace

from roundelay.core.engine import UNKNOWN_LIFE, Delivery
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.pdu import AT_START, NO_LIST, Entered, History, NewTl, Version, Vote1

Seen = dict[int, tuple[Version, int]]
"""By site: the last list that is known to have it, and the boot number it had there."""


class OtherLife(Delivery, frozen=True, gc=False):
    """A message of this site that another life of it sent: no receipt for one of ours."""


def note(seen: Seen, tl: Version, members: tuple[int, ...], boots: tuple[int, ...]) -> None:
    """List `tl` has these lives as members."""
    if len(boots) == len(members):
        for site, boot in zip(members, boots, strict=True):
            if boot != UNKNOWN_LIFE:
                seen[site] = (tl, boot)


def entered(seen: Seen) -> tuple[Entered, ...]:
    """What is known, as a vote carries it."""
    return tuple(Entered(site, tl, boot) for site, (tl, boot) in sorted(seen.items()))


def forgetful(votes: dict[int, Vote1]) -> set[int]:
    """Voters whose site was in a later list than they know of, in another life."""
    latest: Seen = {}
    for vote in votes.values():
        for entry in vote.entered:
            if entry.tl > latest.get(entry.site, ((-1, -1), UNKNOWN_LIFE))[0]:
                latest[entry.site] = (entry.tl, entry.boot)
    return {
        site
        for site, vote in votes.items()
        if site in latest and vote.tl < latest[site][0] and vote.boot != latest[site][1]
    }


class Ballot:
    """The votes at the end of phase I: majority, resiliency; basis, election, history.

    The new list is built on list `old`, and starts at `start_ts`.
    """

    __slots__ = ("config", "group", "old", "start_ts", "votes")

    def __init__(
        self, votes: dict[int, Vote1], group: tuple[int, ...], config: TokenConfig
    ) -> None:
        self.group = group
        self.config = config
        self.votes = self.believed(votes)
        self.old, self.start_ts = self.basis()

    def believed(self, votes: dict[int, Vote1]) -> dict[int, Vote1]:
        """The votes, but who was replaced, or has an old disk, counts as if it had none.

        Where all sites of the group vote they count: nobody is left who could know of another list.
        """
        lost = forgetful(votes) if len(votes) < len(self.group) else set()
        return votes | {site: replace(votes[site], wiped=True, amnesia=True) for site in lost}

    def basis(self) -> tuple[Version, int]:
        """CM-R3.2: the newest list among the voters, and the largest nts among its members."""
        votes = self.votes.values()
        old = max(vote.tl for vote in votes)
        return old, max(vote.nts for vote in votes if vote.tl == old)

    # -- the tests -----------------------------------------------------------------------------

    def majority(self) -> bool:
        """CM-R3.1: more than half of the group, of whom at least half of the group remember.

        Of the sites that forgot their promises not one may be needed to meet any other majority:
        that is half of the group, one less where it is even than makes a list (`docs/token.md`).

        They count where everybody votes and nobody has a list.  A list that was ever authorized is
        on the disk of all its members, a majority, hence more than L: so there was none; and since
        everybody joins this attempt, none of an earlier version can be authorized any more.  (A
        member that starts for the first time while others form the first list cannot tell that it
        has not lost a disk.)
        """
        votes, sites = self.votes, len(self.group)
        if len(votes) == sites and all(vote.tl == NO_LIST for vote in votes.values()):
            return True
        knowing = sum(1 for vote in votes.values() if not vote.wiped)
        return 2 * len(votes) > sites <= 2 * knowing

    def resilient(self) -> bool:
        """CM-R3.3: one of the L + 1 sites that would stamp next in the old list joins the new one.

        Had anything at or above `start_ts` been committed, all of those would have processed it;
        one of them has not, and is frozen now, so nothing ever will be.
        """
        if self.old == NO_LIST:
            return True  # a cold boot: nobody has a list to lose
        return self.remembered() or self.complete()

    def remembered(self) -> bool:
        """CM-R3.3 proper: witnesses, all of whom know what they have processed."""
        asked = self.asked_for()
        if self.config.free_heirs(len(self.group)):
            # `to_source`: whoever it was that got the token from the expected site, the two have
            # processed what was committed; so the expected site is a witness, or all others are.
            expected, *others = asked
            return self.witnessed([expected]) or self.witnessed(others)
        return any(self.witnessed([site]) for site in asked)

    def asked_for(self) -> tuple[int, ...]:
        """The sites that would have processed `start_ts` if anything from there on were committed:
        the expected one first, then its L successors; with `to_source` any could be one of them.
        """
        ring = self.ring()
        votes = self.votes.values()
        expected = next(v.exp for v in votes if v.tl == self.old and v.nts == self.start_ts)
        at = ring.index(expected)
        free = self.config.free_heirs(len(self.group))
        count = len(ring) if free else min(self.config.resilience + 1, len(ring))
        return tuple(ring[(at + step) % len(ring)] for step in range(count))

    def ring(self) -> tuple[int, ...]:
        """The members of the old list, in ring order."""
        return next(vote.members for vote in self.votes.values() if vote.tl == self.old)

    def complete(self) -> bool:
        """All members of the old list vote: whatever is known at all is known here."""
        votes, old = self.votes, self.old
        return all(
            site in votes and not (votes[site].wiped and votes[site].tl != old)
            for site in self.ring()
        )

    def witnessed(self, sites: Iterable[int]) -> bool:
        """All of `sites` vote, and know what they have processed."""
        return all(site in self.votes and self.witness(self.votes[site]) for site in sites)

    def witness(self, vote: Vote1) -> bool:
        """CM-R3.3, `strict`: a site that may have forgotten what it processed proves nothing."""
        if not self.config.strict:
            return True
        # A member of the old list may have forgotten entries; another site proves that the old
        # list was never authorized, unless it may have forgotten that it was a member.
        return not (vote.amnesia if vote.tl == self.old else vote.wiped)

    # -- the new list --------------------------------------------------------------------------

    def elect(self) -> int:
        """CM-R3: a site with the largest nts of the old list, one that has not restarted if any."""
        return min(
            (vote.amnesia, site)
            for site, vote in self.votes.items()
            if vote.tl == self.old and vote.nts == self.start_ts
        )[1]

    def new_list(self, version: Version, rng: Random) -> NewTl:
        """CM-R4: the list of all voters, as it is announced."""
        votes = self.votes
        elected = self.elect()
        members = tuple(sorted(votes))
        boots = tuple(votes[site].boot for site in members)
        past = votes[elected].history
        history = self.history_after(past, rng)
        # What recorders among the voters have of the old list's history.
        recorded = (v.floor for v in votes.values() if past[0] and v.history[0] == past[0])
        floor = max(recorded, default=0)
        return NewTl(version, members, self.start_ts, elected, self.old, boots, history, floor)

    def history_after(self, past: History, rng: Random) -> History:
        """The history that the new list goes on in: `past`, that of the old list, unless something
        that was committed may have been forgotten by everybody; then a new one begins."""
        if past[0] and (self.old == NO_LIST or self.remembered()):
            return past
        fresh = rng.getrandbits(63) or 1
        return (fresh, past[0], AT_START) if past[0] else (fresh, 0, 0)
