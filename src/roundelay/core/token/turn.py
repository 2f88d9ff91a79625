"""The turn of a token site: stamping, passing the token on, and showing that it was accepted.

With `eager` a turn is decided once per batch of arrivals, by a timer that is due at once: all
messages that wait by then are stamped, by one PDU if there are several (ACK_RUN, up to K_w), and
the last one takes the token along.  So the token makes one step where it would make as many as
there are messages, and costs a PDU where it would cost as many.

Deviations from the paper
- With `eager` the token moves with the last waiting message, be it the K_w-th or not (CM-N14):
  an idle group is that of K_w = 1.  `tests/core/test_token_fast.py`.
- The confirmation of an idle token site waits T (CM-N13), with `eager` it does not wait at all.
- With `to_source` the token does not go around the ring: the source of a message gets it with the
  stamp of the message, and has committed that after two PDUs instead of three.  The resiliency
  test (CM-R3.3) then cannot know who had it next, see `reform`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.token.pdu import DATA, NULL, RUN_MAX, Ack, AckRun
from roundelay.core.token.repair import Repair

ROUNDS: Final = 2
"""`to_source`: after the stamps of so many rounds a site gets the token anyway."""


class Turn(Repair):
    """What a site does with the token."""

    __slots__ = ()

    @abstractmethod
    def apply(self, ack: Ack, bundle: Bundle, now: int) -> None:
        """CM-N10; the normal phase has the code."""

    @abstractmethod
    def work(self, now: int) -> None:
        """Whatever is possible now; the normal phase has the code."""

    # -- stamping --------------------------------------------------------------------------

    def stamp(self, now: int) -> bool:
        """CM-N8: a token site stamps the oldest waiting message; CM-N14: when K_r allows."""
        if self.since_data < self.config.kr:
            # Reached too early for a message: pass the token on at once.
            self.issue(NULL, self.me, 0, NOTHING, now)
            return True
        next_num = self.next_num
        for key, bundle in self.qb.items():
            s, n = key
            if next_num[s] == n:
                self.issue(DATA, s, n, bundle, now)
                return True
        return False

    def stamp_run(self, now: int) -> bool:
        """CM-N8 for all that wait (`eager`): a source has one message that can be stamped."""
        if self.since_data < self.config.kr:
            self.issue(NULL, self.me, 0, NOTHING, now)
            return True
        next_num = self.next_num
        waiting = [key for key in self.qb if next_num[key[0]] == key[1]]
        if not waiting:
            return False
        del waiting[min(self.config.kw, RUN_MAX) :]
        ts, qb = self.nts, self.qb
        s, n = last = waiting.pop()
        for key in waiting:
            self.apply(Ack(self.tl, self.nts, DATA, *key, self.me, self.me), qb[key], now)
        run = None
        if waiting:
            run = AckRun(self.tl, ts, self.me, self.successor[self.me], (*waiting, last))
        self.issue(DATA, s, n, qb[last], now, run)
        return True

    def issue(
        self, kind: int, s: int, n: int, bundle: Bundle, now: int, run: AckRun | None = None
    ) -> None:
        """Send the acknowledgement with the next timestamp, or the run that it ends; apply it."""
        # CM-N14: with K_w the token stays for K_w - 1 data acknowledgements; a NULL moves it.
        stays = kind == DATA and self.turn + 1 < self.config.kw and not self.config.eager
        follower = self.me if stays else self.successor[self.me]
        if kind == DATA and run is None and self.config.free_heirs(len(self.group)):
            follower = self.heir(s)
        self.turn += 1
        self.shown = True
        ack = Ack(self.tl, self.nts, kind, s, n, self.me, follower)
        self.send(EVERYONE, run or ack)
        self.beacon_due = NEVER
        if follower == self.me:
            self.turn = self.turn % self.config.kw
            self.hold_due = self.arm(now + self.config.hold_ns)
        else:
            # CM-N16: from now on in service only until the next site is heard to have the token.
            self.holding = False
            self.hold_due = NEVER
            self.passing = ack.ts
            self.pass_ack = run or ack
            self.heard = now  # a token site hears nobody while the group is idle
            self.pass_silent = self.pass_total = 0
            self.pass_sent = now
            self.pass_wait = self.patience(self.config.pass_ns)
            self.pass_due = self.arm(now + self.pass_wait)
        self.apply(ack, bundle, now)

    def heir(self, s: int) -> int:
        """`to_source`: the source of the message, or a site that has not had the token for long.

        Such a site would keep all others from forgetting (CM-N20), and nobody would notice if it
        were dead.
        """
        if self.issues:
            held, site = self.issues[0]
            if held == self.have[site] and held < self.nts - ROUNDS * len(self.members):
                return site
        return s if s != self.me and s in self.successor else self.successor[self.me]

    # -- the token -------------------------------------------------------------------------

    def accept(self, ts: int, now: int) -> None:
        """CM-N13: the token is ours; what happens next is up to `work`, or to the timer T."""
        self.holding = True
        self.hold_ts = ts
        self.turn = 0
        self.shown = False
        self.accepted_upto = ts
        self.passing = -1
        self.pass_due = NEVER
        self.hold_due = self.arm(now + self.config.hold_ns)

    def on_hold_timer(self, now: int) -> None:
        """CM-N13: no message for T: a NULL if one still needs transfers, else a confirmation."""
        self.hold_due = NEVER
        if self.config.eager and self.stamp_run(now):
            self.work(now)
            return
        if self.uncommitted:
            self.issue(NULL, self.me, 0, NOTHING, now)
            self.work(now)
            return
        if not self.shown:
            self.confirm(self.hold_ts)
        # An eager group is idle as soon as it has nothing to do: what gets lost then is noticed by
        # the first beacons, which follow each other soon.
        eager = self.config.eager
        self.beacon_wait = self.config.resend_ns if eager else self.config.idle_ns
        self.beacon_due = self.arm(now + self.beacon_wait)

    def on_beacon_timer(self, now: int) -> None:
        """CM-N21: an idle token site repeats its confirmation, with the last stamp it knows."""
        self.confirm(self.hold_ts)
        self.beacon_wait = min(2 * self.beacon_wait, self.config.idle_ns)
        self.beacon_due = now + self.beacon_wait

    def on_pass_timer(self, now: int) -> None:
        """CM-N16: repeat the acknowledgement that passes the token, until its acceptance shows."""
        config = self.config
        ack = self.pass_ack
        assert ack is not None
        if self.pass_wait >= config.pass_ns:
            self.pass_silent += 1
        self.pass_total += 1
        if self.pass_silent > config.attempts or self.pass_total > config.attempts_hard:
            self.notify("suspect", ack.next)
            self.start_reformation(now, "token not accepted")
            return
        self.send(EVERYONE, ack)
        if config.impatient:
            self.pass_wait = min(2 * self.pass_wait, config.pass_ns << config.backoff)
        self.pass_due = now + self.pass_wait

    def hurry(self, now: int) -> None:
        """The next site is heard, but not to have the token: it will have missed that, too."""
        self.pass_wait = self.patience(self.config.pass_ns)
        self.pass_due = self.arm(min(self.pass_due, now + self.pass_wait))
