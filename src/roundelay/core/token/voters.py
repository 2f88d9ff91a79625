"""Who must be among the voters for a new list, and what the list is built on (CM-R3).

Deviations from the paper: see `reform`.
"""

from __future__ import annotations

from roundelay.core.token.normal import NormalPhase
from roundelay.core.token.pdu import AT_START, NO_LIST, History, Vote1


class Voters(NormalPhase):
    """The tests at the end of phase I: majority, resiliency; basis, election, history."""

    __slots__ = ()

    def basis(self, votes: dict[int, Vote1]) -> tuple[tuple[int, int], int]:
        """CM-R3.2: the newest list among the voters, and the largest nts among its members."""
        old = max(vote.tl for vote in votes.values())
        return old, max(vote.nts for vote in votes.values() if vote.tl == old)

    def majority(self, votes: dict[int, Vote1]) -> bool:
        """CM-R3.1: more than half of the group, of whom at least half of the group remember.

        Of the sites that forgot their promises not one may be needed to meet any other majority:
        that is half of the group, one less where it is even than makes a list (`docs/token.md`).

        They count where everybody votes and nobody has a list.  A list that was ever authorized is
        on the disk of all its members, a majority, hence more than L: so there was none; and since
        everybody joins this attempt, none of an earlier version can be authorized any more.  (A
        member that starts for the first time while others form the first list cannot tell that it
        has not lost a disk.)
        """
        if len(votes) == len(self.group) and all(vote.tl == NO_LIST for vote in votes.values()):
            return True
        knowing = sum(1 for vote in votes.values() if not vote.wiped)
        return 2 * len(votes) > len(self.group) <= 2 * knowing

    def resilient(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> bool:
        """CM-R3.3: one of the L + 1 sites that would stamp next in the old list joins the new one.

        Had anything at or above `start_ts` been committed, all of those would have processed it;
        one of them has not, and is frozen now, so nothing ever will be.
        """
        if old == NO_LIST:
            return True  # a cold boot: nobody has a list to lose
        if self.remembered(votes, old, start_ts):
            return True
        return self.complete(self.ring_of(votes, old), votes, old)

    def remembered(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> bool:
        """CM-R3.3 proper: witnesses, all of whom know what they have processed."""
        asked = self.asked_for(votes, old, start_ts)
        if self.config.free_heirs(len(self.group)):
            # `to_source`: whoever it was that got the token from the expected site, the two have
            # processed what was committed; so the expected site is a witness, or all others are.
            expected, *others = asked
            return self.witnessed([expected], votes, old) or self.witnessed(others, votes, old)
        return any(self.witnessed([site], votes, old) for site in asked)

    def asked_for(
        self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int
    ) -> tuple[int, ...]:
        """The sites that would have processed `start_ts` if anything from there on were committed:
        the expected one first, then its L successors; with `to_source` any could be one of them.
        """
        ring = self.ring_of(votes, old)
        expected = next(v.exp for v in votes.values() if v.tl == old and v.nts == start_ts)
        at = ring.index(expected)
        count = self.resilience + 1
        if self.config.free_heirs(len(self.group)):
            count = len(ring)
        return tuple(ring[(at + step) % len(ring)] for step in range(min(count, len(ring))))

    def ring_of(self, votes: dict[int, Vote1], old: tuple[int, int]) -> tuple[int, ...]:
        return next(vote.members for vote in votes.values() if vote.tl == old)

    def past_of(
        self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int, elected: int
    ) -> History:
        """The history that the new list goes on in: that of the old list, unless something that
        was committed may have been forgotten by everybody; then a new one begins."""
        past = votes[elected].history
        if past[0] and (old == NO_LIST or self.remembered(votes, old, start_ts)):
            return past
        fresh = self.rng.getrandbits(63) or 1
        return (fresh, past[0], AT_START) if past[0] else (fresh, 0, 0)

    def floor_of(self, votes: dict[int, Vote1], elected: int) -> int:
        """What recorders among the voters have of the old list's history."""
        known = votes[elected].history[0]
        return max((v.floor for v in votes.values() if known and v.history[0] == known), default=0)

    def complete(
        self, ring: tuple[int, ...], votes: dict[int, Vote1], old: tuple[int, int]
    ) -> bool:
        """All members of the old list vote: whatever is known at all is known here."""
        return all(
            site in votes and not (votes[site].wiped and votes[site].tl != old) for site in ring
        )

    def witnessed(self, sites: list[int], votes: dict[int, Vote1], old: tuple[int, int]) -> bool:
        """All of `sites` vote, and know what they have processed."""
        return all(site in votes and self.witness(votes[site], old) for site in sites)

    def witness(self, vote: Vote1, old: tuple[int, int]) -> bool:
        """CM-R3.3, `strict`: a site that may have forgotten what it processed proves nothing."""
        if not self.config.strict:
            return True
        # A member of the old list may have forgotten entries; another site proves that the old
        # list was never authorized, unless it may have forgotten that it was a member.
        return not (vote.amnesia if vote.tl == old else vote.wiped)

    def elect(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> int:
        """CM-R3: a site with the largest nts of the old list, one that has not restarted if any."""
        candidates = [
            (vote.amnesia, site)
            for site, vote in votes.items()
            if vote.tl == old and vote.nts == start_ts
        ]
        return min(candidates)[1]
