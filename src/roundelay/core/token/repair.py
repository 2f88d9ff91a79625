"""Repair: asking for what was lost, and answering those who ask.

Everybody watches the timestamps: a gap means a lost acknowledgement, an acknowledgement without
its message a lost message.  Requests go to all and are repeated until the item is here; whoever is
in service answers by unicast.  A PDU that solicits a response and comes again is a request for
that response, too (CM84 §4.2).
"""

from __future__ import annotations

from abc import abstractmethod

from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.token.pdu import (
    WANT_ACK,
    WANT_MESSAGE,
    Ack,
    B,
    Confirm,
    RetxAck,
    RetxMsg,
    RetxReq,
    TlHint,
    Version,
)
from roundelay.core.token.state import NORMAL, TokenState


class Repair(TokenState):
    """The negative-acknowledgement half of the protocol."""

    __slots__ = ()

    @abstractmethod
    def start_reformation(self, now: int, why: str) -> None:
        """CM-R1; the reformation phase has the code."""

    # -- asking for what is missing --------------------------------------------------------

    def request(self, key: int | tuple[int, int], now: int) -> None:
        """CM-N12: ask for one item, at once or after `request_delay_ns`, until it is here."""
        if key in self.requests:
            return
        delay = self.config.request_delay_ns
        if delay:
            due = now + delay
            self.requests[key] = [due, -1, 0, 0]
        else:
            due = now + self.config.request_ns
            self.requests[key] = [due, now, 0, 0]
            self.ask([key])
        if due < self.request_due:
            self.request_due = self.arm(due)

    def request_missing(self, now: int) -> None:
        """CM-N11: ask for every stamp up to the highest one known that is not here."""
        start = max(self.wanted_upto + 1, self.nts)
        stop = min(self.known_top, self.nts + self.config.window)
        requests, qc = self.requests, self.qc
        room = self.config.request_burst - len(requests)
        fresh: list[int | tuple[int, int]] = []
        ts = start
        while ts <= stop and room > 0:
            if ts not in qc and ts not in requests:
                fresh.append(ts)
                room -= 1
            ts += 1
        self.wanted_upto = max(self.wanted_upto, ts - 1)
        if not fresh:
            return
        delay = self.config.request_delay_ns
        due = now + (delay or self.config.request_ns)
        for key in fresh:
            requests[key] = [due, -1 if delay else now, 0, 0]
        if not delay:
            self.ask(fresh)
        if due < self.request_due:
            self.request_due = self.arm(due)

    def ask(self, keys: list[int | tuple[int, int]]) -> None:
        """Send the requests; consecutive stamps share one when `batch` is set."""
        ranges: list[list[int]] = []
        for key in keys:
            if isinstance(key, tuple):
                self.send(EVERYONE, RetxReq(self.tl, WANT_MESSAGE, self.nts, self.nts, *key))
            elif self.config.batch and ranges and ranges[-1][1] == key - 1:
                ranges[-1][1] = key
            else:
                ranges.append([key, key])
        for lo, hi in ranges:
            self.send(EVERYONE, RetxReq(self.tl, WANT_ACK, lo, hi, 0, 0))

    def on_request_timer(self, now: int) -> None:
        """CM-N12: repeat what is still missing; too many attempts mean a failure (CM-N4)."""
        config = self.config
        due: list[int | tuple[int, int]] = []
        for key, request in list(self.requests.items()):
            if request[0] > now:
                continue
            if request[1] >= 0:
                if self.progress > request[1]:
                    request[2] = 0
                request[2] += 1
                request[3] += 1
                if request[2] > config.attempts or request[3] > config.attempts_hard:
                    self.start_reformation(now, "request not answered")
                    return
            request[0] = now + config.request_ns
            request[1] = now
            due.append(key)
        if due:
            self.ask(due)
        self.request_due = min((r[0] for r in self.requests.values()), default=NEVER)

    # -- retransmission service ------------------------------------------------------------

    def in_service(self) -> bool:
        """Whether it is on us to answer requests: we have every stamp, and nobody nearer does.

        The site that passed the token answers until it sees the acceptance, the new holder from
        then on; in between both may, and the requester ignores the extra answer.
        """
        return self.passing >= 0 or (self.holding and self.shown)

    def on_retx_req(self, pdu: RetxReq, source: int, now: int) -> None:
        """CM-N12, the other end: answer by unicast, from the log."""
        if pdu.tl != self.tl or self.phase != NORMAL:
            self.other_list(pdu.tl, source, now)
            return
        self.heard = now
        if not self.in_service():
            return
        log = self.log
        if pdu.what == WANT_MESSAGE:
            entry = log.get(pdu.ts)
            if entry is not None and entry.ack.s == pdu.s and entry.ack.n == pdu.n:
                self.send(source, RetxMsg(B(self.tl, pdu.s, pdu.n, entry.bundle)))
            return
        # The range is cut to what is there before anything loops over it.
        lo = max(pdu.ts, self.first_kept, self.start_ts)
        hi = min(pdu.hi, self.nts - 1, lo + self.config.request_burst)
        for ts in range(lo, hi + 1):
            self.send(source, RetxAck(log[ts].ack))

    def answer_old_message(self, s: int, n: int) -> None:
        """CM-N17: a source that repeats a stamped message has missed the acknowledgement."""
        entry = self.log.get(self.last_ts.get(s, -1))
        # Entries of earlier lists are known to every member; only this list's can be missed.
        if entry is not None and entry.ack.n == n and entry.ack.ts >= self.start_ts:
            self.send(s, RetxAck(entry.ack))

    def answer_old_ack(self, ack: Ack) -> None:
        """CM-N18: a site that repeats an old acknowledgement has missed the acceptance."""
        if not self.holding and self.passing < 0:
            return
        following = self.log.get(ack.ts + 1)
        if following is not None:
            self.send(ack.by, RetxAck(following.ack))
        elif self.holding and self.hold_ts == ack.ts:
            self.confirm(ack.ts)

    def confirm(self, ts: int) -> None:
        """Say that the token passed by stamp `ts` was accepted here, and what the last stamp is."""
        self.shown = True
        self.send(EVERYONE, Confirm(self.tl, ts, self.me, self.nts - 1))

    # -- other lists -------------------------------------------------------------------------

    def other_list(self, tl: Version, source: int, now: int) -> None:
        """CM-N1: differing lists cause a reformation; a site of an older list is told."""
        if tl[0] > self.seen_version:
            self.seen_version = tl[0]
        if self.phase != NORMAL:
            return
        if tl > self.tl:
            if tl > self.max_joined:
                self.start_reformation(now, "left out of a newer list")
        else:
            self.send(source, TlHint(self.tl))
