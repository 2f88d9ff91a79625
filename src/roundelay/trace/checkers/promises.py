"""I5 and I7: what becomes of a site's own messages.

A message is *open* from its submission until its own site delivers it, is told that it stands in
a gap of positions to be had elsewhere, or is given it back.  A site that stays up must see every
open message closed, or hear `indeterminate` for it; after healing, in time.  A crash ends the
site's life, and the messages of that life may go either way.

An `indeterminate` notice names own numbers, and nobody outside knows the number of a message that
was never delivered.  So the notice excuses what was open when it came; once the site sees an own
message with a number behind the range, only what was submitted before that one stays excused.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from roundelay.trace.checkers.verdict import Report


class Submission(Struct, frozen=True, gc=False):
    """A submitted message: the `ordinal`-th of its site, counted by us, in that site's `life`.

    `index` is what the driver calls it.
    """

    site: int
    life: int
    ordinal: int
    index: int
    time: int

    def __str__(self) -> str:
        return f"message {self.index} of site {self.site}"


class Delivered(Struct, frozen=True, gc=False):
    """A bundle that a site has delivered, by the fingerprints of its messages."""

    time: int
    site: int
    seq: int
    source: int
    number: int
    fingerprints: tuple[int, ...]


class OpenMessages(Struct):
    """The open messages of one site."""

    life: int = 0
    submitted: int = 0
    open: dict[int, Submission] = {}  # by fingerprint
    excused_before: int = 0  # ordinals below were open at the last `indeterminate`
    excused_number: int = -1  # where its range ended

    def end_life(self) -> None:
        self.life += 1
        self.open.clear()
        self.excused_before, self.excused_number = 0, -1

    def seen_behind_excuse(self, ordinal: int) -> None:
        """Own message `ordinal` came with a number behind the range: the rest is due again."""
        for fingerprint in [f for f, sub in self.open.items() if sub.ordinal < ordinal]:
            del self.open[fingerprint]
        self.excused_before, self.excused_number = 0, -1


class Promises:
    """The open messages of all sites."""

    def __init__(self, sites: Iterable[int], report: Report, liveness_ns: int | None) -> None:
        self.report = report
        self.liveness_ns = liveness_ns
        self.healed_at: int | None = None
        self.own = {site: OpenMessages() for site in sites}

    def submit(self, time: int, site: int, index: int, fingerprint: int) -> Submission:
        own = self.own[site]
        submission = Submission(site, own.life, own.submitted, index, time)
        own.submitted += 1
        own.open[fingerprint] = submission
        return submission

    def confirm(self, bundle: Delivered) -> None:
        """The site's own messages were delivered to it."""
        own, time, site = self.own[bundle.site], bundle.time, bundle.site
        for fingerprint in bundle.fingerprints:
            submission = own.open.pop(fingerprint, None)
            if submission is None:
                continue  # of an earlier life, or a complaint about it was made elsewhere
            if 0 <= own.excused_number <= bundle.number:
                own.seen_behind_excuse(submission.ordinal)
            if self._overdue(submission, time):
                self.report("I7", site, time, f"{submission} {self._late(submission, time)}")

    def give_back(self, site: int, fingerprints: Iterable[int]) -> None:
        """The site was handed its own messages back: they will not be delivered."""
        for fingerprint in fingerprints:
            self.own[site].open.pop(fingerprint, None)

    def indeterminate(self, site: int, hi: int) -> None:
        """The fate of own numbers up to `hi` - 1 is unknown to `site`, and it was told so."""
        own = self.own[site]
        own.excused_before, own.excused_number = own.submitted, hi

    def finish(self, time: int, up: Iterable[int]) -> None:
        """Complain about what is still open."""
        for site in sorted(up):
            own = self.own[site]
            due = [sub for sub in own.open.values() if sub.ordinal >= own.excused_before]
            if not due:
                continue
            first = due[0]
            more = f", nor were {len(due) - 1} more" if len(due) > 1 else ""
            if self._overdue(first, time):
                late = f"{first} was not committed{more}; it {self._late(first, time)}"
                self.report("I7", site, time, late, source=site, from_ns=first.time)
            else:
                detail = f"{first} was neither delivered to its site nor declared indeterminate"
                self.report("I5", site, time, detail + more, source=site, from_ns=first.time)

    def _since(self, submission: Submission) -> int:
        return max(submission.time, self.healed_at or 0)

    def _overdue(self, submission: Submission, time: int) -> bool:
        if self.liveness_ns is None or self.healed_at is None:
            return False
        return time - self._since(submission) > self.liveness_ns

    def _late(self, submission: Submission, time: int) -> str:
        waited = time - self._since(submission)
        allowed = self.liveness_ns or 0
        return (
            f"waited {waited / 1e6:.1f} ms after healing and submission, "
            f"{allowed / 1e6:.1f} ms are allowed"
        )
