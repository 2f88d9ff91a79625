"""I3 from outside: token lists as the sites announce them, against what the sites commit.

A `view` notice says that a list is in force at a site: (version, members, first token site,
position at which the list starts).  Positions below the start were settled by earlier lists, so
whoever is *first* to deliver a position at or above the start of a list must have that list or a
newer one in force.  Repeating what another site has committed before is no commit of one's own: a
site that catches up does so before its new list is in force.

The order of a batch's deliveries and notices means nothing, hence a delivery is attributed to the
list in force at the end of its instant.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from roundelay.trace.checkers.verdict import Report

Version = tuple[int, ...]

NO_VIEW: Final[Version] = (-1, -1)
"""In force at a site that has announced none: older than any."""

NO_CEILING: Final = 1 << 62
KEPT: Final = 256
"""Lists remembered; one that old has no say any more."""


class ViewChecker:
    """Checks the lists of a group of total order."""

    def __init__(self, sites: Collection[int], report: Report) -> None:
        self.sites = frozenset(sites)
        self.report = report
        self.newest: dict[int, Version] = dict.fromkeys(sites, NO_VIEW)
        # From here on a site's view forbids it to be the first.
        self.ceiling: dict[int, int] = dict.fromkeys(sites, NO_CEILING)
        self.lists: dict[Version, tuple[tuple[int, ...], int, int]] = {}
        self.committed: dict[Version, int] = {}  # last position first delivered under a list
        # Positions first delivered in the current instant: site → (time, last position).
        self.instant: dict[int, tuple[int, int]] = {}
        self.returned: dict[int, int] = {}  # when a site last restarted
        self.elsewhere = 0  # below it, all was committed by a life that is not judged here

    def first_delivered(self, time: int, site: int, position: int) -> None:
        """`site` delivered `position`, which nobody had delivered before."""
        if self.returned.get(site) == time or position < self.elsewhere:
            return
        before = self.instant.get(site)
        if before is not None and before[0] != time:
            self._settle(site, before)
        self.instant[site] = (time, position)

    def viewed(
        self, time: int, site: int, version: Version, members: tuple[int, ...], start: int
    ) -> None:
        """`site` announced the list `version`."""
        self.settle_before(time)
        name = _name(version)
        newest = self.newest[site]
        if version <= newest:
            detail = f"list {name} is in force after list {_name(newest)}"
            self.report("I3", site, time, detail, seq=start)
        else:
            self.newest[site] = version
        distinct = set(members)
        if len(distinct) != len(members) or not distinct <= self.sites or site not in distinct:
            detail = f"list {name} with members {members} cannot be"
            self.report("I3", site, time, detail, seq=start)
        if 2 * len(distinct & self.sites) <= len(self.sites):
            detail = f"list {name} has {len(distinct)} of {len(self.sites)} sites: no majority"
            self.report("I3", site, time, detail, seq=start)
        known = self.lists.get(version)
        if known is None:
            self._add(time, site, version, members, start)
        elif known[:2] != (members, start):
            detail = (
                f"list {name} is {members} from position {start} here, but "
                f"{known[0]} from position {known[1]} at site {known[2]}"
            )
            self.report("I3", site, time, detail, seq=start)
        self._lower_ceilings()

    def restarted(self, time: int, site: int, afresh: bool) -> None:
        """`site` is back; `afresh`: it has no list, and no memory of one.

        What it delivers in the instant of its restart comes from its disk: committed before the
        crash, perhaps under a list whose notice the crash swallowed.
        """
        before = self.instant.pop(site, None)
        if before is not None:
            self._settle(site, before)
        self.returned[site] = time
        if afresh:
            self.newest[site] = NO_VIEW
            self._lower_ceilings()

    def settle_before(self, time: int) -> None:
        """Attribute the first deliveries of all instants before `time`."""
        for site, (then, position) in list(self.instant.items()):
            if then < time:
                self._settle(site, (then, position))
                del self.instant[site]

    def _settle(self, site: int, what: tuple[int, int]) -> None:
        time, position = what
        version = self.newest[site]
        if position > self.committed.get(version, -1):
            self.committed[version] = position
        if position >= self.ceiling[site]:
            newer = min(v for v in self.lists if v > version and self.lists[v][1] <= position)
            detail = (
                f"commits position {position} under list {_name(version)}, but list "
                f"{_name(newer)} starts at position {self.lists[newer][1]}"
            )
            self.report("I3", site, time, detail, seq=position)

    def _add(
        self, time: int, site: int, version: Version, members: tuple[int, ...], start: int
    ) -> None:
        self.lists[version] = (members, start, site)
        for older, position in self.committed.items():
            if older < version and position >= start:
                detail = (
                    f"list {_name(version)} starts at position {start}, but position {position} "
                    f"was committed under list {_name(older)}"
                )
                self.report("I3", site, time, detail, seq=start)
        if len(self.lists) > KEPT:
            oldest = min(self.lists)
            del self.lists[oldest]
            self.committed.pop(oldest, None)

    def _lower_ceilings(self) -> None:
        for site, version in self.newest.items():
            starts = [start for v, (_, start, _) in self.lists.items() if v > version]
            self.ceiling[site] = min(starts, default=NO_CEILING)


def _name(version: Version) -> str:
    return "none" if version == NO_VIEW else ".".join(map(str, version))
