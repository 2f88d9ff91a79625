"""Repair: asking for what was lost, and answering those who ask.

Everybody watches the timestamps: a gap means a lost acknowledgement, an acknowledgement without
its message a lost message.  Requests go to all and are repeated until the item is here; whoever is
in service answers by unicast.  A PDU that solicits a response and comes again is a request for
that response, too (CM84 §4.2).

With `bulk` a site asks for all messages it lacks at once, not only for that of the next stamp
(CM-N9), and both requests and answers cover ranges of stamps.  `tests/core/test_token_fast.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Final

from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.token.pdu import (
    WANT_ACK,
    WANT_ENTRIES,
    WANT_MESSAGE,
    Ack,
    B,
    Confirm,
    Entry,
    RetxAck,
    RetxBulk,
    RetxMsg,
    RetxReq,
    TlHint,
    Version,
)
from roundelay.core.token.state import NORMAL, TokenState

SHIFT_MAX: Final = 32
"""Doublings after which any wait has reached its longest."""

BULK_ENTRIES_MAX: Final = 255
BULK_ANSWERS_MAX: Final = 4
"""Entries in one PDU, and PDUs in answer to one request: more would overflow buffers."""

ENTRY_BYTES: Final = 48
"""Bytes of an entry in a PDU, without its messages and the table of their sizes."""


def ranges(stamps: Iterable[int], together: bool) -> list[list[int]]:
    """(first, last) of each run of consecutive stamps, or of each stamp.

    >>> ranges([3, 4, 5, 9], together=True)
    [[3, 5], [9, 9]]
    """
    found: list[list[int]] = []
    for ts in stamps:
        if together and found and found[-1][1] == ts - 1:
            found[-1][1] = ts
        else:
            found.append([ts, ts])
    return found


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
            self.requests[key] = [due, -1, 0, 0, 0]
        else:
            due = now + self.config.request_ns
            self.requests[key] = [due, now, 0, 0, 0]
            self.ask([key])
        if due < self.request_due:
            self.request_due = self.arm(due)

    def request_ahead(self, ack: Ack, now: int) -> None:
        """`bulk`: do not wait with the request for a message until its stamp is the next one."""
        room = self.config.request_burst - len(self.requests)
        key = (ack.s, ack.n)
        if ack.kind and room > 0 and key not in self.qb and ack.s in self.next_num:
            self.request(key, now)

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
            requests[key] = [due, -1 if delay else now, 0, 0, 0]
        if not delay:
            self.ask(fresh)
        if due < self.request_due:
            self.request_due = self.arm(due)

    def ask(self, keys: list[int | tuple[int, int]]) -> None:
        """Send the requests; consecutive stamps share one when `batch` is set."""
        stamps = [key for key in keys if not isinstance(key, tuple)]
        messages = [key for key in keys if isinstance(key, tuple)]
        if not self.config.bulk:
            for key in messages:
                self.send(EVERYONE, RetxReq(self.tl, WANT_MESSAGE, self.nts, self.nts, *key))
        elif messages:
            at = {(ack.s, ack.n): ts for ts, ack in self.qc.items()}
            found = {at.get(key, self.nts) for key in messages}
            for lo, hi in ranges(sorted(found), together=True):
                self.send(EVERYONE, RetxReq(self.tl, WANT_ENTRIES, lo, hi, 0, 0))
        for lo, hi in ranges(stamps, together=self.config.batch):
            self.send(EVERYONE, RetxReq(self.tl, WANT_ACK, lo, hi, 0, 0))

    def on_request_timer(self, now: int) -> None:
        """CM-N12: repeat what is still missing; too many attempts mean a failure (CM-N4)."""
        config = self.config
        # An answer takes a round trip, however long transfers take.
        first, wait = config.adapt_ns or config.request_ns, config.request_ns
        most = config.request_ns << config.backoff
        due: list[int | tuple[int, int]] = []
        for key, request in list(self.requests.items()):
            if request[0] > now:
                continue
            if request[1] >= 0:
                if self.progress > request[1]:
                    request[2] = request[4] = 0
                if now - request[1] >= config.request_ns:
                    request[2] += 1
                request[3] += 1
                request[4] += 1
                if request[2] > config.attempts or request[3] > config.attempts_hard:
                    self.start_reformation(now, "request not answered")
                    return
            if config.impatient:
                # No attempt before the full t_req has passed counts among the R silent ones.
                wait = min(first << min(request[4], SHIFT_MAX), most)
            request[0] = now + wait
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
        if pdu.what == WANT_ENTRIES or (self.config.bulk and hi > lo):
            self.answer_in_bulk(source, lo, hi, pdu.what == WANT_ENTRIES)
            return
        for ts in range(lo, hi + 1):
            self.send(source, RetxAck(log[ts].ack))

    def answer_in_bulk(self, source: int, lo: int, hi: int, messages: bool) -> None:
        """Entries lo … hi, as many in a PDU as have room; who needs more asks again."""
        entries: list[Entry] = []
        room, answers = self.config.reply_limit, 0
        for ts in range(lo, hi + 1):
            entry = self.log[ts]
            if not messages:
                entry = Entry(entry.ack)
            size = ENTRY_BYTES + len(entry.bundle.data) + 2 * len(entry.bundle.sizes)
            if entries and (size > room or len(entries) == BULK_ENTRIES_MAX):
                self.send(source, RetxBulk(tuple(entries)))
                answers += 1
                if answers == BULK_ANSWERS_MAX:
                    return
                entries, room = [], self.config.reply_limit
            entries.append(entry)
            room -= size
        if entries:
            self.send(source, RetxBulk(tuple(entries)))

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
