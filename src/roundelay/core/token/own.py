"""Own messages: from `submit` until their commit.

A source has one message out at a time, and repeats it until it has processed the acknowledgement.
`kept` has numbers base, base + 1, …: the message that is out, and those that are stamped and may
come back without a stamp; `waiting` has none yet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from roundelay.core.bundle import MESSAGES_MAX, Bundle, gather
from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.errors import (
    ClusterBroken,
    InvariantBroken,
    PayloadTooLarge,
    QueueFull,
    UsageError,
)
from roundelay.core.notices import OwnIndeterminate
from roundelay.core.token.part import Part
from roundelay.core.token.pdu import DATA, Ack, B, Version
from roundelay.core.token.phases import BROKEN, NORMAL

LISTS_KEPT: Final = 1024
"""Lists of this life that are remembered; nobody commits what was stamped so many lists ago."""


@dataclass(slots=True, eq=False)
class OwnMessages(Part):
    """What this site has to say."""

    kept: deque[Bundle] = field(default_factory=deque)
    base: int = 0
    lists: dict[Version, None] = field(default_factory=dict)
    """Lists that this life was in, the latest ones."""
    waiting: deque[Bundle] = field(default_factory=deque)
    waiting_bytes: int = 0
    outstanding: int = -1  # number on its way to a stamp
    current: B | None = None
    send_last: int = 0
    send_silent: int = 0
    send_total: int = 0
    send_wait: int = field(init=False)  # t_b of the message that is out

    def __post_init__(self) -> None:
        self.send_wait = self.site.config.resend_ns

    def submit(self, bundle: Bundle, now: int) -> None:
        """CM-N2: queue a message and send it unless one is outstanding."""
        site = self.site
        config, size, waiting = site.config, len(bundle.data), self.waiting
        if site.phase is BROKEN:
            raise ClusterBroken("two histories of this group have met: nothing is sent here")
        if not 0 < len(bundle.sizes) <= MESSAGES_MAX:
            raise UsageError(f"a bundle of {len(bundle)} messages: submit 1 to {MESSAGES_MAX}")
        if size > config.max_payload:
            raise PayloadTooLarge(
                f"a message of {size} bytes is above max_payload = {config.max_payload}: split it"
            )
        if len(self.kept) + len(waiting) >= config.own_limit:
            raise QueueFull(
                f"{config.own_limit} messages wait for their commit (own_limit): "
                "submit again when some have been delivered"
            )
        if waiting and self.waiting_bytes + size > config.own_bytes:
            raise QueueFull(
                f"{self.waiting_bytes} bytes wait to be sent (own_bytes): "
                "submit again when some have been delivered"
            )
        waiting.append(bundle)
        self.waiting_bytes += size
        if site.phase == NORMAL and self.outstanding < 0:
            site.ordering.work(now)

    # -- transmitting ------------------------------------------------------------------------

    def send_next(self, now: int) -> None:
        """CM-N3: at most one message is out; CM-N5: after a list change the unstamped ones again.

        The number of the message is the M counter: it moves on when the acknowledgement is
        processed, never before.
        """
        site = self.site
        me, timers = site.me, site.timers
        number = site.log.next_num[me]
        index = number - self.base
        if index < len(self.kept):
            bundle = self.kept[index]
        elif self.waiting:
            bundle = gather(self.waiting, site.config.max_payload, site.config.bundle)
            self.waiting_bytes -= len(bundle.data)
            self.kept.append(bundle)
        else:
            self.stop()
            timers.send_due = NEVER
            return
        self.outstanding = number
        self.current = B(site.token_list.version, me, number, bundle)
        site.send(EVERYONE, self.current)
        site.ordering.qb[(me, number)] = bundle
        self.send_last = now
        self.send_silent = self.send_total = 0
        self.send_wait = self._first_wait()
        off = site.config.resend_jitter_ns
        if off:
            self.send_wait += site.rng.randint(-off, off)
        timers.send_due = site.arm(now + self.send_wait)

    def stop(self) -> None:
        """No message is out."""
        self.outstanding = -1
        self.current = None

    def _first_wait(self) -> int:
        """t_b, above t_tok: else each lost transfer would make all waiting sources repeat."""
        most = self.site.config.resend_ns
        return min(most, 2 * self.site.stamping.patience(most))

    def on_send_timer(self, now: int) -> None:
        """CM-N4: repeat the message, but not while the list is heard to make progress."""
        site = self.site
        config, timers = site.config, site.timers
        if self.outstanding < 0:
            timers.send_due = NEVER
            return
        if timers.progress > self.send_last:
            self.send_silent = 0
            if config.impatient:
                self.send_wait = self._first_wait()
        restarted = max(self.send_last, timers.progress) + self.send_wait
        if now < restarted:
            timers.send_due = restarted
            return
        if self.send_wait >= config.resend_ns or not config.adapt_ns:
            self.send_silent += 1
        self.send_total += 1
        if self.send_silent > config.attempts or self.send_total > config.attempts_hard:
            site.reformation.start(now)
            return
        assert self.current is not None
        site.send(EVERYONE, self.current)
        self.send_last = now
        if config.impatient:
            self.send_wait = min(2 * self.send_wait, config.resend_ns << config.backoff)
        timers.send_due = now + self.send_wait

    # -- stamps and commits ------------------------------------------------------------------

    def let_go(self, ack: Ack) -> bool:
        """CM-N5: own messages are kept until they are committed.  Whether this is one of them.

        What another life of this site sent is none of ours, whatever its number; it was stamped in
        a list that this life was not in.  Numbers alone do not tell: one whose stamp came to
        nothing is given again.
        """
        if ack.tl not in self.lists:
            return False
        if self.kept:
            self.kept.popleft()
            self.base += 1
        else:
            self.base = max(self.base, ack.n + 1)
        return True

    def note_list(self, version: Version) -> None:
        """This life commits to list `version`."""
        self.lists[version] = None
        if len(self.lists) > LISTS_KEPT:
            del self.lists[next(iter(self.lists))]

    def begin_list(self) -> None:
        """A list begins: own messages that have no stamp get the numbers that come next.

        Those that have one keep it, and come first in `kept`.  Where another life of this site has
        stamped messages behind them, `base` is above their numbers: it is such that the first one
        without a stamp has the next number.
        """
        self.stop()
        log, me = self.site.log, self.site.me
        ours = 0
        for ts in range(log.cnts, log.nts):
            ack = log.entries[ts].ack
            ours += ack.kind == DATA and ack.s == me and ack.tl in self.lists
        self.base = log.next_num[me] - (ours if self.kept else 0)

    def skip(self) -> None:
        """CM-R18: the log goes on behind a gap; messages stamped inside it are committed, but where
        we cannot see it."""
        number = self.site.log.next_num[self.site.me]
        if self.kept and self.base < number:
            lost = min(number - self.base, len(self.kept))
            self.site.notify(OwnIndeterminate(self.base, self.base + lost))
            for _ in range(lost):
                self.kept.popleft()
        self.base = max(self.base, number)

    def check_invariants(self) -> None:
        """What is out is among what is kept, and is the next one in the log (CM-N3)."""
        if self.outstanding >= 0:
            number = self.site.log.next_num[self.site.me]
            if self.outstanding != number:
                raise InvariantBroken(f"message {self.outstanding} is out, {number} is the next")
            if not self.base <= number < self.base + len(self.kept):
                raise InvariantBroken(
                    f"message {number} is out, {len(self.kept)} are kept from {self.base} on"
                )
        if self.waiting_bytes < 0 or (self.waiting_bytes and not self.waiting):
            raise InvariantBroken(f"{self.waiting_bytes} bytes wait in {len(self.waiting)} bundles")
