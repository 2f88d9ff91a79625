"""The token: stamping messages, passing it on, and showing that it was accepted.

With `eager` a turn is decided once per batch of arrivals, by a timer that is due at once: all
messages that wait by then are stamped, by one PDU if there are several (ACK_RUN, up to K_w), and
the last one takes the token along.  So the token makes one step where it would make as many as
there are messages, and costs a PDU where it would cost as many.

Deviations from the paper
- With `eager` the token moves with the last waiting message, be it the K_w-th or not (CM-N14):
  an idle group is that of K_w = 1.  `tests/core/test_token_fast.py`.
- The confirmation of an idle token site waits T (CM-N13): only then does the paper's own
  Y_c = e^(−Lτ) come out.  `tests/core/test_token_normal.py`.  With `eager` neither it nor the NULL
  waits at all: a stamped message commits as fast as the token can travel, for one more PDU where
  the group is idle.
- With `to_source` the token does not go around the ring: the source of a message gets it with the
  stamp of the message, and has committed that after two PDUs instead of three.  The resiliency
  test (CM-R3.3) then cannot know who had it next, see `ballot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.notices import MemberSuspected
from roundelay.core.token.part import Part
from roundelay.core.token.pdu import DATA, NULL, RUN_MAX, Ack, AckRun, Confirm
from roundelay.core.token.phases import NORMAL

ROUNDS: Final = 2
"""`to_source`: after the stamps of so many rounds a site gets the token anyway."""


@dataclass(slots=True, eq=False)
class Stamping(Part):
    """What a site does with the token."""

    free_heirs: bool = field(init=False)
    holding: bool = False
    hold_ts: int = -1  # the stamp that brought it
    turn: int = 0  # acknowledgements issued since it came
    shown: bool = False  # others can have seen that we accepted it
    since_data: int = field(init=False)  # transfers since the last data acknowledgement (K_r)
    passing: int = -1  # stamp with which it was passed on, acceptance unseen
    pass_ack: Ack | AckRun | None = None
    pass_silent: int = 0
    pass_total: int = 0
    pass_sent: int = 0
    pass_wait: int = field(init=False)
    pass_time: int = 0  # how long transfers take: mean
    pass_vary: int = 0  # mean deviation
    beacon_wait: int = field(init=False)  # until the next beacon after this one

    def __post_init__(self) -> None:
        config = self.site.config
        self.free_heirs = config.free_heirs(len(self.site.group))
        self.since_data = config.kr
        self.pass_wait = config.pass_ns
        self.beacon_wait = config.idle_ns

    # -- stamping --------------------------------------------------------------------------

    def stamp(self, now: int) -> bool:
        """CM-N8: a token site stamps the oldest waiting message; CM-N14: when K_r allows."""
        site = self.site
        if self.since_data < site.config.kr:
            # Reached too early for a message: pass the token on at once.
            self.issue(NULL, site.me, 0, now)
            return True
        next_num = site.log.next_num
        for s, n in site.ordering.qb:
            if next_num[s] == n:
                self.issue(DATA, s, n, now)
                return True
        return False

    def stamp_run(self, now: int) -> bool:
        """CM-N8 for all that wait (`eager`): a source has one message that can be stamped."""
        site = self.site
        config, me, log, ordering = site.config, site.me, site.log, site.ordering
        if self.since_data < config.kr:
            self.issue(NULL, me, 0, now)
            return True
        next_num = log.next_num
        waiting = [key for key in ordering.qb if next_num[key[0]] == key[1]]
        if not waiting:
            return False
        del waiting[min(config.kw, RUN_MAX) :]
        ts, version = log.nts, site.token_list.version
        s, n = last = waiting.pop()
        for key in waiting:
            ordering.apply(Ack(version, log.nts, DATA, *key, me, me), now)
        run = None
        if waiting:
            run = AckRun(version, ts, me, site.token_list.successor[me], (*waiting, last))
        self.issue(DATA, s, n, now, run)
        return True

    def issue(self, kind: int, s: int, n: int, now: int, run: AckRun | None = None) -> None:
        """Send the acknowledgement with the next timestamp, or the run that it ends; apply it."""
        site = self.site
        config, me, timers, token_list = site.config, site.me, site.timers, site.token_list
        # CM-N14: with K_w the token stays for K_w - 1 data acknowledgements; a NULL moves it.
        stays = kind == DATA and self.turn + 1 < config.kw and not config.eager
        follower = me if stays else token_list.successor[me]
        if kind == DATA and run is None and self.free_heirs:
            follower = self.heir(s)
        self.turn += 1
        self.shown = True
        ack = Ack(token_list.version, site.log.nts, kind, s, n, me, follower)
        site.send(EVERYONE, run or ack)
        timers.beacon_due = NEVER
        if follower == me:
            self.turn = self.turn % config.kw
            timers.hold_due = site.arm(now + config.hold_ns)
        else:
            # CM-N16: from now on in service only until the next site is heard to have the token.
            self.holding = False
            timers.hold_due = NEVER
            self.passing = ack.ts
            self.pass_ack = run or ack
            timers.heard = now  # a token site hears nobody while the group is idle
            self.pass_silent = self.pass_total = 0
            self.pass_sent = now
            self.pass_wait = self.patience(config.pass_ns)
            timers.pass_due = site.arm(now + self.pass_wait)
        site.ordering.apply(ack, now)

    def heir(self, s: int) -> int:
        """`to_source`: the source of the message, or a site that has not had the token for long.

        Such a site would keep all others from forgetting (CM-N20), and nobody would notice if it
        were dead.
        """
        site = self.site
        commit, token_list, me = site.commit, site.token_list, site.me
        if commit.issues:
            held, member = commit.issues[0]
            overdue = site.log.nts - ROUNDS * len(token_list.members)
            if held == commit.have[member] and held < overdue:
                return member
        return s if s != me and s in token_list.successor else token_list.successor[me]

    # -- the token -------------------------------------------------------------------------

    def accept(self, ts: int, now: int) -> None:
        """CM-N13: the token is ours; what happens next is up to `work`, or to the timer T."""
        site = self.site
        timers = site.timers
        self.holding = True
        self.hold_ts = ts
        self.turn = 0
        self.shown = False
        site.commit.accepted_upto = ts
        self.passing = -1
        timers.pass_due = NEVER
        timers.hold_due = site.arm(now + site.config.hold_ns)

    def accept_first(self, now: int) -> None:
        """Accept the token with which a list begins, as with the stamp before the first one: there
        is nothing to wait T for, and the beacon begins."""
        site = self.site
        timers = site.timers
        self.accept(site.token_list.start_ts - 1, now)
        timers.hold_due = NEVER
        timers.beacon_due = site.arm(now + site.config.idle_ns)

    def passed(self, now: int) -> None:
        """CM-N16: the token that was passed on is known to be accepted."""
        self.passing = -1
        self.site.timers.pass_due = NEVER
        if not self.pass_total:
            self._transfer_took(now - self.pass_sent)

    def confirm(self, ts: int) -> None:
        """Say that the token passed by stamp `ts` was accepted here, and what the last stamp is."""
        site = self.site
        self.shown = True
        site.send(EVERYONE, Confirm(site.token_list.version, ts, site.me, site.log.nts - 1))

    def stop(self) -> None:
        """The list is left: its token is of no use any more."""
        self.holding = False
        self.passing = -1
        self.pass_ack = None

    def on_hold_timer(self, now: int) -> None:
        """CM-N13: no message for T: a NULL if one still needs transfers, else a confirmation."""
        site = self.site
        config, timers = site.config, site.timers
        timers.hold_due = NEVER
        if config.eager and self.stamp_run(now):
            site.ordering.work(now)
            return
        if site.log.uncommitted:
            self.issue(NULL, site.me, 0, now)
            site.ordering.work(now)
            return
        if not self.shown:
            self.confirm(self.hold_ts)
        # An eager group is idle as soon as it has nothing to do: what gets lost then is noticed by
        # the first beacons, which follow each other soon.
        self.beacon_wait = config.resend_ns if config.eager else config.idle_ns
        timers.beacon_due = site.arm(now + self.beacon_wait)

    def on_beacon_timer(self, now: int) -> None:
        """CM-N21: an idle token site repeats its confirmation, with the last stamp it knows."""
        self.confirm(self.hold_ts)
        self.beacon_wait = min(2 * self.beacon_wait, self.site.config.idle_ns)
        self.site.timers.beacon_due = now + self.beacon_wait

    def on_pass_timer(self, now: int) -> None:
        """CM-N16: repeat the acknowledgement that passes the token, until its acceptance shows."""
        site, config, ack = self.site, self.site.config, self.pass_ack
        assert ack is not None
        if self.pass_wait >= config.pass_ns:
            self.pass_silent += 1
        self.pass_total += 1
        if self.pass_silent > config.attempts or self.pass_total > config.attempts_hard:
            site.notify(MemberSuspected(ack.next))
            site.reformation.start(now)
            return
        site.send(EVERYONE, ack)
        if config.impatient:
            self.pass_wait = min(2 * self.pass_wait, config.pass_ns << config.backoff)
        site.timers.pass_due = now + self.pass_wait

    # -- how long transfers take -------------------------------------------------------------

    def hurry(self, now: int) -> None:
        """The next site is heard, but not to have the token: it will have missed that, too."""
        site = self.site
        timers = site.timers
        self.pass_wait = self.patience(site.config.pass_ns)
        timers.pass_due = site.arm(min(timers.pass_due, now + self.pass_wait))

    def patience(self, most: int) -> int:
        """How long to wait for an answer before a repetition: `most`, or less where transfers of
        the token are seen to take less (`adapt_ns`)."""
        least = self.site.config.adapt_ns
        if not least or not self.pass_time:
            return most
        return min(most, max(least, self.pass_time + 2 * self.pass_vary))

    def _transfer_took(self, took: int) -> None:
        """Learn from a transfer that needed no repetition: only then is it known which was
        answered (as for the round trips of TCP)."""
        if not self.pass_time:
            self.pass_time, self.pass_vary = max(1, took), took // 2
            return
        off = took - self.pass_time
        self.pass_vary += (abs(off) - self.pass_vary) // 4
        self.pass_time = max(1, self.pass_time + off // 8)

    def check_invariants(self) -> None:
        """The token is here, on its way from here, or elsewhere; and only while in its list."""
        site = self.site
        if not self.holding and self.passing < 0:
            return
        nts = site.log.nts
        if site.phase != NORMAL:
            raise InvariantBroken(f"has or passes the token in phase {site.phase}")
        if self.holding and self.passing >= 0:
            raise InvariantBroken(f"holds the token and passes it with {self.passing}")
        if self.holding and (site.log.exp != site.me or not site.token_list.authorized):
            raise InvariantBroken(f"holds the token, which site {site.log.exp} should have")
        if self.passing >= nts or self.hold_ts >= nts:
            raise InvariantBroken(f"the token came or went by a stamp at or above nts = {nts}")
