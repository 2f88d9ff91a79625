"""One site, several lives: a process that replaced another, or one that woke up from long ago.

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
"""

from __future__ import annotations

from msgspec.structs import replace

from roundelay.core.engine import Delivery
from roundelay.core.token.pdu import Entered, Version, Vote1

UNKNOWN = 0
"""The boot number of a life of which nothing is known."""

Seen = dict[int, tuple[Version, int]]
"""By site: the last list that is known to have it, and the boot number it had there."""


class OtherLife(Delivery, frozen=True, gc=False):
    """A message of this site that another life of it sent: no receipt for one of ours."""


def note(seen: Seen, tl: Version, members: tuple[int, ...], boots: tuple[int, ...]) -> None:
    """List `tl` has these lives as members."""
    if len(boots) == len(members):
        for site, boot in zip(members, boots, strict=True):
            if boot != UNKNOWN:
                seen[site] = (tl, boot)


def entered(seen: Seen) -> tuple[Entered, ...]:
    """What is known, as a vote carries it."""
    return tuple(Entered(site, tl, boot) for site, (tl, boot) in sorted(seen.items()))


def forgetful(votes: dict[int, Vote1]) -> set[int]:
    """Voters whose site was in a later list than they know of, in another life."""
    latest: Seen = {}
    for vote in votes.values():
        for one in vote.entered:
            if one.tl > latest.get(one.site, ((-1, -1), UNKNOWN))[0]:
                latest[one.site] = (one.tl, one.boot)
    return {
        site
        for site, vote in votes.items()
        if site in latest and vote.tl < latest[site][0] and vote.boot != latest[site][1]
    }


def judged(votes: dict[int, Vote1], everybody: int) -> dict[int, Vote1]:
    """The votes, with those of the forgetful as if their disks were lost.

    Where all sites of the group vote they count: nobody is left who could know of another list.
    """
    if len(votes) == everybody:
        return votes
    lost = forgetful(votes)
    return {
        site: replace(vote, wiped=True, amnesia=True) if site in lost else vote
        for site, vote in votes.items()
    }
