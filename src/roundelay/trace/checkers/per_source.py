"""I1, I2, I4 and I8 in groups without a common order: each message by itself, or in the order of
its source.

A message is *owed* to a site that it is destined to and that has been up ever since the message
was submitted, as long as its source lives and has not given the site up (`suspect`).  What is
owed must have been delivered in the end if anybody delivered it.

A message that is owed to nobody any more is kept for a while, so that one who gets it late, or a
second time, is recognised; after `horizon` further messages it is forgotten, and would then be
taken for one that was never submitted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from msgspec import Struct

from roundelay.trace.checkers.promises import Delivered, Promises, Submission
from roundelay.trace.checkers.verdict import Report

Destinations = Callable[[Submission], Collection[int]]
"""Which sites a message is meant for."""


class UndeliveredMessage(Struct):
    """A message and whom it has reached; sets of sites are the bits of a number."""

    submission: Submission
    destined: int
    due: int
    done: int = 0
    retired: bool = False
    next: UndeliveredMessage | None = None  # an equal one, submitted meanwhile


@dataclass(eq=False)
class PerSource:
    """Checks a group of order `fifo` (each source's messages in its order) or `none`."""

    sites: Collection[int]
    report: Report
    promises: Promises
    fifo: bool
    destinations: Destinations | None
    horizon: int

    def __post_init__(self) -> None:
        self.bits = {site: 1 << i for i, site in enumerate(sorted(self.sites))}
        self.everyone = (1 << len(self.bits)) - 1
        self.up = self.everyone
        self.given_up = dict.fromkeys(self.bits, 0)  # source → sites it does not wait for
        self.messages: dict[int, UndeliveredMessage] = {}  # by fingerprint
        self.retired: deque[int] = deque()
        self.last: dict[tuple[int, int, int], int] = {}  # (site, source, life) → ordinal
        self.top = 0  # messages delivered by somebody

    # -- events ----------------------------------------------------------------------------

    def submitted(self, time: int, site: int, index: int, fingerprints: tuple[int, ...]) -> None:
        owed_to = self.up & ~self.given_up[site]
        for i, fingerprint in enumerate(fingerprints):
            submission = self.promises.submit(time, site, index + i, fingerprint)
            destined = self.everyone
            if self.destinations is not None:
                destined = self._mask(self.destinations(submission))
                if not destined & self.bits[site]:
                    del self.promises.own[site].open[fingerprint]  # not for itself
            message = UndeliveredMessage(submission, destined, destined & owed_to)
            equal = self.messages.get(fingerprint)
            if equal is None or equal.retired:
                self.messages[fingerprint] = message
                continue
            while equal.next is not None:
                equal = equal.next
            equal.next = message

    def delivered(self, bundle: Delivered) -> None:
        time, site = bundle.time, bundle.site
        bit = self.bits[site]
        for fingerprint in bundle.fingerprints:
            about = {"source": bundle.source, "number": bundle.number, "fp": fingerprint}
            owed = self.messages.get(fingerprint)
            if owed is None:
                came = f"number {bundle.number} of source {bundle.source}"
                self.report("I4", site, time, f"nobody submitted what came as {came}", **about)
                continue
            while owed.done & bit and owed.next is not None:
                owed = owed.next
            submission = owed.submission
            about["from_ns"] = submission.time
            if submission.site != bundle.source:
                detail = f"{submission} is said to come from site {bundle.source}"
                self.report("I4", site, time, detail, **about)
            if not owed.destined & bit:
                self.report("I8", site, time, f"{submission} is not destined to this site", **about)
            if owed.done & bit:
                self.report("I4", site, time, f"{submission} is delivered a second time", **about)
                continue
            if self.fifo and self._overtaken(site, submission):
                detail = f"{submission} comes after a later one of the same site"
                self.report("I1", site, time, detail, **about)
            if not owed.done:
                self.top += 1
            owed.done |= bit
            owed.due &= ~bit
            if not owed.due:
                self._retire(fingerprint, owed)
        if bundle.source == site:
            self.promises.confirm(bundle)

    def suspected(self, site: int, member: int) -> None:
        """`site` no longer waits for `member`.

        A source says so once per silence, and the end of the silence shows in no notice.  So
        nothing of that source is owed to the member until the network heals.
        """
        bit = self.bits.get(member, 0)
        self.given_up[site] |= bit
        self._release(lambda owed: bit if owed.submission.site == site else 0)

    def healed(self) -> None:
        """No fault stands between a source and a receiver any more."""
        self.given_up = dict.fromkeys(self.bits, 0)

    def crashed(self, time: int, site: int, kept_memory: bool) -> None:
        bit = self.bits[site]
        self.up &= ~bit
        if kept_memory:
            return
        # Whatever was owed to the site may have been lost with it; and what it has sent itself
        # is owed to nobody any more, since nobody is left to repeat it.
        everyone = self.everyone
        self._release(lambda owed: everyone if owed.submission.site == site else bit)

    def restarted(self, time: int, site: int, afresh: bool) -> None:
        bit = self.bits[site]
        self.up |= bit
        if afresh:  # it does not know what it had
            for _, owed in self._every():
                owed.done &= ~bit
            for key in [key for key in self.last if key[0] == site]:
                del self.last[key]

    def finished(self, time: int, up: Collection[int], settled: bool) -> None:
        if not settled:
            return
        mask = self._mask(up)
        invariant = "I2" if self.destinations is None else "I8"
        for _, owed in self._every():
            missing, submission = owed.due & mask, owed.submission
            if missing and owed.done:
                about = {"source": submission.site, "from_ns": submission.time}
                for site in self._sites(missing):
                    detail = f"{submission} was delivered elsewhere, but never here"
                    self.report(invariant, site, time, detail, **about)
        self.promises.finish(time, up)

    def everywhere(self, up: Collection[int]) -> int:
        """How many of the delivered messages are owed to none of the sites `up`."""
        mask = self._mask(up)
        return self.top - sum(1 for _, owed in self._every() if owed.done and owed.due & mask)

    # -- helpers ---------------------------------------------------------------------------

    def _every(self) -> Iterator[tuple[int, UndeliveredMessage]]:
        """All messages with their fingerprints, equal ones too."""
        for fingerprint, first in list(self.messages.items()):
            message: UndeliveredMessage | None = first
            while message is not None:
                yield fingerprint, message
                message = message.next

    def _overtaken(self, site: int, submission: Submission) -> bool:
        """Whether the site has a later message of the same source already."""
        key = (site, submission.site, submission.life)
        last = self.last.setdefault(key, submission.ordinal)
        self.last[key] = max(last, submission.ordinal)
        return submission.ordinal < last

    def _release(self, released: Callable[[UndeliveredMessage], int]) -> None:
        """Messages are no longer owed to the sites that `released` says."""
        for fingerprint, owed in self._every():
            if owed.due:
                owed.due &= ~released(owed)
                if not owed.due:
                    self._retire(fingerprint, owed)

    def _retire(self, fingerprint: int, owed: UndeliveredMessage) -> None:
        if owed.retired:
            return
        owed.retired = True
        first = self.messages[fingerprint]
        while first.retired and first.next is not None:
            first = first.next
        self.messages[fingerprint] = first
        if not first.retired:
            return
        self.retired.append(fingerprint)
        if len(self.retired) > self.horizon:
            oldest = self.retired.popleft()
            if oldest in self.messages and self.messages[oldest].retired:
                del self.messages[oldest]

    def _mask(self, sites: Collection[int]) -> int:
        mask = 0
        for site in sites:
            mask |= self.bits.get(site, 0)
        return mask

    def _sites(self, mask: int) -> list[int]:
        return [site for site, bit in self.bits.items() if mask & bit]
