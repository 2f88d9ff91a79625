"""I1, I2 and I4 in groups of total order: one sequence, of which every site has a stretch.

Every message that was delivered anywhere has a position, fixed by whoever delivered it first.
That first delivery is checked against the submissions; all others are compared with it.  So a
message is looked up once, and the other sites cost a comparison of numbers.

Of the sequence itself the last `horizon` positions are kept, as three arrays of numbers.  A site
further behind than that (it restarted with nothing after a long run) cannot be compared; such
messages are counted in `Judge.uncompared`, and violations found later mention them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct, field

from roundelay.trace.checkers.promises import Delivered, Promises, Submission
from roundelay.trace.checkers.verdict import LIMIT, Judge, span
from roundelay.trace.checkers.views import ViewChecker

HORIZON: Final = 1 << 19
"""Positions kept by default: 20 bytes each."""

UNKNOWN: Final = 0
"""In place of a fingerprint: nobody has delivered this position."""


class Standing(Struct):
    """Where one site stands in the sequence."""

    next: int = 0
    up: bool = True
    jump: tuple[int, int, int] | None = None
    """A step over positions that no notice has covered yet: (time, from, to)."""
    announced: list[tuple[int, int]] = []  # gaps ahead of `next`
    skipped: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=LIMIT))
    """Stretches behind `next` that were left out, and complained about."""

    def makes_up_for(self, lo: int, hi: int) -> bool:
        """Whether lo…hi-1 were left out; they are not any more."""
        for stretch in self.skipped:
            if stretch[0] <= lo and hi <= stretch[1]:
                self.skipped.remove(stretch)
                rest = ((stretch[0], lo), (hi, stretch[1]))
                self.skipped.extend(part for part in rest if part[0] < part[1])
                return True
        return False


@dataclass(eq=False)
class TotalOrder:
    """Checks a group whose messages have dense positions 0, 1, 2, … the same at every site."""

    sites: Collection[int]
    judge: Judge
    promises: Promises
    views: ViewChecker
    horizon: int

    def __post_init__(self) -> None:
        self.report = self.judge.report
        self.standing = {site: Standing() for site in self.sites}
        self.waiting: dict[int, Submission] = {}  # submitted, without a position yet
        self.alike: dict[int, list[Submission]] = {}  # behind an equal one in `waiting`
        self.base = 0  # position of the first item of the arrays
        self.top = 0  # positions below were delivered by somebody
        self.fingerprints = array("q")
        self.sources = array("i")
        self.numbers = array("q")
        self.last_ordinal: dict[tuple[int, int], int] = {}  # by (source, life)
        self.last_number: dict[int, int] = {}  # by source
        self.jumped: set[int] = set()  # sites with a `jump`

    # -- events ----------------------------------------------------------------------------

    def submitted(self, time: int, site: int, index: int, fingerprints: tuple[int, ...]) -> None:
        for i, fingerprint in enumerate(fingerprints):
            submission = self.promises.submit(time, site, index + i, fingerprint)
            if self.waiting.setdefault(fingerprint, submission) is not submission:
                self.alike.setdefault(fingerprint, []).append(submission)

    def delivered(self, bundle: Delivered) -> None:
        time, site, seq, fingerprints = bundle.time, bundle.site, bundle.seq, bundle.fingerprints
        if self.jumped:
            self._check_jumps(time)
        standing = self.standing[site]
        end = seq + len(fingerprints)
        if seq == standing.next:
            standing.next = end
        elif seq < standing.next:
            jump = standing.jump
            if jump is not None and jump[1] <= seq < jump[2]:
                detail = f"delivers position {seq} after position {jump[2]}"
                self.report("I1", site, time, detail, **_about(bundle, seq), from_ns=jump[0])
                standing.jump = None
                self.jumped.discard(site)
            elif not standing.makes_up_for(seq, end):
                detail = f"delivers position {seq} again; it had come to {standing.next}"
                self.report("I4", site, time, detail, **_about(bundle, seq))
            standing.next = max(standing.next, end)
        else:
            standing.jump = (time, standing.next, seq)
            self.jumped.add(site)
            standing.next = end
        if standing.announced:
            self._step_over(standing)

        seen = self.top - seq  # how many of these messages have a position already
        if seen < len(fingerprints):
            if seen > 0:
                self._compare(bundle, seq, fingerprints[:seen])
                self._extend(bundle, self.top, fingerprints[seen:])
            else:
                self._extend(bundle, seq, fingerprints)
        else:
            self._compare(bundle, seq, fingerprints)
        if bundle.source == site:
            self.promises.confirm(bundle)

    def gap(self, time: int, site: int, lo: int, hi: int) -> None:
        """`site` was told that the positions lo…hi-1 must come from elsewhere."""
        standing = self.standing[site]
        jump = standing.jump
        if jump is not None and jump[0] == time and lo <= jump[1] and jump[2] <= hi:
            standing.jump = None
            self.jumped.discard(site)
        elif hi > standing.next:
            standing.announced.append((lo, hi))
            self._step_over(standing)
        own = self.promises.own[site]
        if own.open:
            if lo < self.base:  # nobody knows any more whose messages those were
                own.excused_before = own.submitted
            start, stop = max(lo - self.base, 0), max(hi - self.base, 0)
            for fingerprint in self.fingerprints[start:stop]:
                own.open.pop(fingerprint, None)

    def crashed(self, time: int, site: int, kept_memory: bool) -> None:
        standing = self.standing[site]
        standing.up = False
        if standing.jump is not None and standing.jump[0] == time:
            standing.jump = None  # the crash swallowed the notice
            self.jumped.discard(site)

    def restarted(self, time: int, site: int, afresh: bool) -> None:
        standing = self.standing[site]
        self.views.restarted(time, site, afresh)
        if afresh:
            standing = self.standing[site] = Standing()
            self.jumped.discard(site)
        standing.up = True

    def finished(self, time: int, up: Collection[int], settled: bool) -> None:
        self._check_jumps(time + 1)
        self.views.settle_before(time + 1)
        if not settled:
            return
        # A gap may have taken a site beyond what anybody has delivered yet.
        end = max([self.top, *(standing.next for standing in self.standing.values())])
        for site in sorted(up):
            standing = self.standing[site]
            if standing.next < end:
                missing = span(standing.next, end)
                who = self._whose(standing.next)
                detail = f"never delivered position {missing}, which others did; {who}"
                self.report("I2", site, time, detail, seq=standing.next)
        self.promises.finish(time, up)

    def everywhere(self, up: Collection[int]) -> int:
        """How many messages every site of `up` has delivered or been told to get elsewhere."""
        return min((self.standing[site].next for site in up), default=0)

    # -- the sequence ----------------------------------------------------------------------

    def _extend(self, bundle: Delivered, seq: int, fingerprints: tuple[int, ...]) -> None:
        """These messages of `bundle` get their positions now, from `seq` on."""
        time, site, source, number = bundle.time, bundle.site, bundle.source, bundle.number
        if seq > self.top:
            self._fill(seq - self.top)
        if 0 <= number <= self.last_number.get(source, -1):
            detail = f"number {number} of source {source} comes after {self.last_number[source]}"
            self.report("I4", site, time, f"position {seq}: {detail}", **_about(bundle, seq))
        self.last_number[source] = number
        for i, fingerprint in enumerate(fingerprints):
            submission = self._submission_of(fingerprint, source)
            if submission is None:
                self._stranger(bundle, seq + i, fingerprint)
                continue
            if submission.site != source:
                detail = f"position {seq + i} is said to come from site {source}; it is"
                about = _about(bundle, seq + i, fingerprint, submission)
                self.report("I4", site, time, f"{detail} {submission}", **about)
            life = (submission.site, submission.life)
            if submission.ordinal < self.last_ordinal.get(life, -1):
                detail = f"{submission} comes after a later one of the same site"
                about = _about(bundle, seq + i, fingerprint, submission)
                self.report("I1", site, time, f"position {seq + i}: {detail}", **about)
            else:
                self.last_ordinal[life] = submission.ordinal
        count = len(fingerprints)
        self.fingerprints.extend(fingerprints)
        self.sources.extend([source] * count)
        self.numbers.extend([number] * count)
        self.top = seq + count
        if source != site:
            self._skipped_by_source(source, seq, fingerprints)
        self.views.first_delivered(time, site, self.top - 1)
        if len(self.fingerprints) >= 2 * self.horizon:
            self._forget(self.horizon)

    def _compare(self, bundle: Delivered, seq: int, fingerprints: tuple[int, ...]) -> None:
        """These messages of `bundle` have positions: are they the right ones?"""
        start = seq - self.base
        if len(fingerprints) == 1 and start >= 0:  # the usual case, twice as fast
            if self.fingerprints[start] == fingerprints[0]:
                return
        elif start < 0:
            old = min(-start, len(fingerprints))
            self.judge.uncompared += old
            fingerprints = fingerprints[old:]
            start += old
        here = array("q", fingerprints)
        there = self.fingerprints[start : start + len(here)]
        if here == there:
            return
        for i, (mine, theirs) in enumerate(zip(here, there, strict=True)):
            if mine == theirs:
                continue
            position = self.base + start + i
            if theirs == UNKNOWN:  # others were told of a gap: this is the first to have it
                self.fingerprints[start + i] = mine
                self.sources[start + i] = bundle.source
                self.numbers[start + i] = bundle.number
                if self._submission_of(mine, bundle.source) is None:
                    self._stranger(bundle, position, mine)
                if bundle.source != bundle.site:
                    self._skipped_by_source(bundle.source, position, (mine,))
                continue
            self._differs(bundle, position, mine)

    def _differs(self, bundle: Delivered, position: int, mine: int) -> None:
        time, site, number, source = bundle.time, bundle.site, bundle.number, bundle.source
        was = self._whose(position)
        detail = f"position {position} is number {number} of source {source} here; {was}"
        about = _about(bundle, position, mine)
        self.report("I1", site, time, detail, **about)
        others = [s for s, st in self.standing.items() if s != site and st.up]
        if not any(self.standing[other].next > position for other in others):
            detail = f"position {position} was replaced: no other site that is up has the first"
            self.report("I2", site, time, detail, **about)
        if mine not in self.waiting and self._position_of(mine) is None:
            detail = f"position {position}: nobody submitted what came as number {number} of"
            self.report("I4", site, time, f"{detail} source {source}", **about)

    def _submission_of(self, fingerprint: int, source: int) -> Submission | None:
        """The submission that got its position; of equal messages the first of the source."""
        submission = self.waiting.pop(fingerprint, None)
        others = self.alike.pop(fingerprint, None)
        if submission is None or others is None:
            return submission
        every = [submission, *others]
        chosen = next((candidate for candidate in every if candidate.site == source), submission)
        every.remove(chosen)
        self.waiting[fingerprint], *others = every
        if others:
            self.alike[fingerprint] = others
        return chosen

    def _stranger(self, bundle: Delivered, position: int, fingerprint: int) -> None:
        """A message that nobody waits for got a position: either a second one, or none is due."""
        before = self._position_of(fingerprint)
        what = f"number {bundle.number} of source {bundle.source}"
        if before is not None:
            detail = f"{what} was delivered at position {before} already"
        else:
            detail = f"nobody submitted {what} with this content"
            if self.base:
                detail += f", or it stood before position {self.base}"
        about = _about(bundle, position, fingerprint)
        self.report("I4", bundle.site, bundle.time, f"position {position}: {detail}", **about)

    def _skipped_by_source(self, source: int, seq: int, fingerprints: tuple[int, ...]) -> None:
        """A gap may have taken the source over its own messages before others deliver them."""
        standing = self.standing.get(source)
        if standing is not None and standing.next > seq:
            own = self.promises.own[source].open
            for fingerprint in fingerprints[: standing.next - seq]:
                own.pop(fingerprint, None)

    def _fill(self, count: int) -> None:
        """Nobody has delivered the next `count` positions, but somebody went past them."""
        if count > self.horizon:
            self._forget(0)
            self.base = self.top = self.top + count
            return
        self.fingerprints.extend([UNKNOWN] * count)
        self.sources.extend([-1] * count)
        self.numbers.extend([-1] * count)
        self.top += count

    def _forget(self, kept: int) -> None:
        surplus = len(self.fingerprints) - kept
        del self.fingerprints[:surplus], self.sources[:surplus], self.numbers[:surplus]
        self.base += surplus

    def _position_of(self, fingerprint: int) -> int | None:
        """Where that message stands, as far back as we know.  Slow: for complaints only."""
        try:
            return self.base + self.fingerprints.index(fingerprint)
        except ValueError:
            return None

    def _whose(self, position: int) -> str:
        i = position - self.base
        if not 0 <= i < len(self.fingerprints) or self.fingerprints[i] == UNKNOWN:
            return "elsewhere it is not known any more"
        return f"elsewhere it is number {self.numbers[i]} of source {self.sources[i]}"

    # -- gaps ------------------------------------------------------------------------------

    def _check_jumps(self, time: int) -> None:
        """A step over positions must have been explained within its own instant."""
        for site in list(self.jumped):
            jump = self.standing[site].jump
            if jump is not None and jump[0] < time:
                when, lo, hi = jump
                detail = f"goes from position {lo} to {hi} without a word about what lies between"
                self.report("I1", site, when, detail, seq=lo)
                self.standing[site].skipped.append((lo, hi))
                self.standing[site].jump = None
                self.jumped.discard(site)

    def _step_over(self, standing: Standing) -> None:
        """Announced gaps that the site has come to are behind it now."""
        ahead = []
        for lo, hi in standing.announced:
            if lo <= standing.next:
                standing.next = max(standing.next, hi)
            else:
                ahead.append((lo, hi))
        standing.announced = ahead


def _about(
    bundle: Delivered, seq: int, fp: int | None = None, submission: Submission | None = None
) -> dict[str, Any]:
    """What a complaint says of a message besides its words."""
    about = {"seq": seq, "source": bundle.source, "number": bundle.number, "fp": fp}
    return about if submission is None else about | {"from_ns": submission.time}
