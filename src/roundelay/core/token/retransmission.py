"""Repair: asking for what was lost, and answering those who ask.

Everybody watches the timestamps: a gap means a lost acknowledgement, an acknowledgement without
its message a lost message.  Requests go to all and are repeated until the item is here; whoever is
in service answers by unicast.  A PDU that solicits a response and comes again is a request for
that response, too (CM84 §4.2).

With `bulk` a site asks for all messages it lacks at once, not only for that of the next stamp
(CM-N9), and both requests and answers cover ranges of stamps.  `tests/core/test_token_fast.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.token import pdu as p
from roundelay.core.token.part import Part

SHIFT_MAX: Final = 32
"""Doublings after which any wait has reached its longest."""

BULK_ENTRIES_MAX: Final = 255
BULK_ANSWERS_MAX: Final = 4
"""Entries in one PDU, and PDUs in answer to one request: more would overflow buffers."""

ENTRY_BYTES: Final = 48
"""Bytes of an entry in a PDU, without its messages and the table of their sizes."""

LOOKED_AT: Final = 16
"""Requests that `check_invariants` looks at: it is called after every batch."""

Item = int | tuple[int, int]
"""What can be missing: the acknowledgement of a stamp, or the message (source, number)."""


def ranges(stamps: Iterable[int], together: bool) -> list[list[int]]:
    """(first, last) of each run of consecutive stamps, or of each stamp.

    >>> ranges([3, 4, 5, 9], together=True)
    [[3, 5], [9, 9]]
    """
    runs: list[list[int]] = []
    for ts in stamps:
        if together and runs and runs[-1][1] == ts - 1:
            runs[-1][1] = ts
        else:
            runs.append([ts, ts])
    return runs


@dataclass(slots=True, eq=False)
class Requests(Part):
    """What is missing here, and has been asked for."""

    pending: dict[Item, list[int]] = field(default_factory=dict)
    """By missing item: [due, last sent, silent, total, doublings]."""
    known_top: int = -1  # highest stamp known to exist
    wanted_upto: int = -1  # stamps up to here were looked at

    def begin_list(self, start_ts: int) -> None:
        """Nothing that was missing is of any use in a new list."""
        self.pending.clear()
        self.site.timers.request_due = NEVER
        self.known_top = self.wanted_upto = start_ts - 1

    def request(self, item: Item, now: int) -> None:
        """CM-N12: ask for one item, at once or after `request_delay_ns`, until it is here."""
        if item not in self.pending:
            self._request([item], now)

    def request_ahead(self, ack: p.Ack, now: int) -> None:
        """`bulk`: do not wait with the request for a message until its stamp is the next one."""
        site = self.site
        room = site.config.request_burst - len(self.pending)
        item = (ack.s, ack.n)
        if ack.kind and room > 0 and item not in site.ordering.qb and ack.s in site.log.next_num:
            self.request(item, now)

    def request_missing(self, now: int) -> None:
        """CM-N11: ask for every stamp up to the highest one known that is not here."""
        site = self.site
        config, nts = site.config, site.log.nts
        pending, qc = self.pending, site.ordering.qc
        stop = min(self.known_top, nts + config.window)
        room = config.request_burst - len(pending)
        missing: list[Item] = []
        ts = max(self.wanted_upto + 1, nts)
        while ts <= stop and room > 0:
            if ts not in qc and ts not in pending:
                missing.append(ts)
                room -= 1
            ts += 1
        self.wanted_upto = max(self.wanted_upto, ts - 1)
        if missing:
            self._request(missing, now)

    def _request(self, items: list[Item], now: int) -> None:
        config, timers = self.site.config, self.site.timers
        delay = config.request_delay_ns
        due = now + (delay or config.request_ns)
        for item in items:
            self.pending[item] = [due, -1 if delay else now, 0, 0, 0]
        if not delay:
            self._ask(items)
        if due < timers.request_due:
            timers.request_due = self.site.arm(due)

    def _ask(self, items: list[Item]) -> None:
        """Send the requests; consecutive stamps share one when `batch` is set."""
        site = self.site
        config, version, nts = site.config, site.token_list.version, site.log.nts
        stamps = [item for item in items if not isinstance(item, tuple)]
        messages = [item for item in items if isinstance(item, tuple)]
        if not config.bulk:
            for s, n in messages:
                site.send(EVERYONE, p.RetxReq(version, p.WANT_MESSAGE, nts, nts, s, n))
        elif messages:
            stamp_of = {(ack.s, ack.n): ts for ts, ack in site.ordering.qc.items()}
            stamped = {stamp_of.get(item, nts) for item in messages}
            for lo, hi in ranges(sorted(stamped), together=True):
                site.send(EVERYONE, p.RetxReq(version, p.WANT_ENTRIES, lo, hi, 0, 0))
        for lo, hi in ranges(stamps, together=config.batch):
            site.send(EVERYONE, p.RetxReq(version, p.WANT_ACK, lo, hi, 0, 0))

    def on_request_timer(self, now: int) -> None:
        """CM-N12: repeat what is still missing; too many attempts mean a failure (CM-N4)."""
        config, timers = self.site.config, self.site.timers
        # An answer takes a round trip, however long transfers take.
        first, wait = config.adapt_ns or config.request_ns, config.request_ns
        most = config.request_ns << config.backoff
        due: list[Item] = []
        for item, request in list(self.pending.items()):
            if request[0] > now:
                continue
            if request[1] >= 0:
                if timers.progress > request[1]:
                    request[2] = request[4] = 0
                if now - request[1] >= config.request_ns:
                    request[2] += 1
                request[3] += 1
                request[4] += 1
                if request[2] > config.attempts or request[3] > config.attempts_hard:
                    self.site.reformation.start(now)
                    return
            if config.impatient:
                # No attempt before the full t_req has passed counts among the R silent ones.
                wait = min(first << min(request[4], SHIFT_MAX), most)
            request[0] = now + wait
            request[1] = now
            due.append(item)
        if due:
            self._ask(due)
        timers.request_due = min((r[0] for r in self.pending.values()), default=NEVER)

    def check_invariants(self) -> None:
        """What is asked for is not here, and every request has its timer."""
        if not self.pending:
            return
        site = self.site
        nts, qc, due = site.log.nts, site.ordering.qc, site.timers.request_due
        for item, request in islice(self.pending.items(), LOOKED_AT):
            if not isinstance(item, tuple) and (item < nts or item in qc):
                raise InvariantBroken(f"acknowledgement {item} is asked for, and here")
            if request[0] < due:
                raise InvariantBroken(f"the request for {item} is due before its timer")


class Answers(Part):
    """The retransmission service: what is sent again to those who missed it."""

    __slots__ = ()

    def in_service(self) -> bool:
        """Whether it is on us to answer requests: we have every stamp, and nobody nearer does.

        The site that passed the token answers until it sees the acceptance, the new holder from
        then on; in between both may, and the requester ignores the extra answer.
        """
        stamping = self.site.stamping
        return stamping.passing >= 0 or (stamping.holding and stamping.shown)

    def on_retx_req(self, pdu: p.RetxReq, source: int, now: int) -> None:
        """CM-N12, the other end: answer by unicast, from the log."""
        site = self.site
        site.timers.heard = now
        if not self.in_service():
            return
        log, config, token_list = site.log, site.config, site.token_list
        if pdu.what == p.WANT_MESSAGE:
            entry = log.entries.get(pdu.ts)
            if entry is not None and entry.ack.s == pdu.s and entry.ack.n == pdu.n:
                site.send(source, p.RetxMsg(p.B(token_list.version, pdu.s, pdu.n, entry.bundle)))
            return
        # The range is cut to what is there before anything loops over it.
        lo = max(pdu.ts, log.first_kept, token_list.start_ts)
        hi = min(pdu.hi, log.nts - 1, lo + config.request_burst)
        if pdu.what == p.WANT_ENTRIES or (config.bulk and hi > lo):
            self._answer_in_bulk(source, lo, hi, pdu.what == p.WANT_ENTRIES)
            return
        for ts in range(lo, hi + 1):
            site.send(source, p.RetxAck(log.entries[ts].ack))

    def _answer_in_bulk(self, source: int, lo: int, hi: int, messages: bool) -> None:
        """Entries lo … hi, as many in a PDU as have room; who needs more asks again."""
        site = self.site
        entries: list[p.Entry] = []
        room, answers = site.config.reply_limit, 0
        for ts in range(lo, hi + 1):
            entry = site.log.entries[ts]
            if not messages:
                entry = p.Entry(entry.ack)
            size = ENTRY_BYTES + len(entry.bundle.data) + 2 * len(entry.bundle.sizes)
            if entries and (size > room or len(entries) == BULK_ENTRIES_MAX):
                site.send(source, p.RetxBulk(tuple(entries)))
                answers += 1
                if answers == BULK_ANSWERS_MAX:
                    return
                entries, room = [], site.config.reply_limit
            entries.append(entry)
            room -= size
        if entries:
            site.send(source, p.RetxBulk(tuple(entries)))

    def answer_old_message(self, s: int, n: int) -> None:
        """CM-N17: a source that repeats a stamped message has missed the acknowledgement."""
        site = self.site
        entry = site.log.entries.get(site.log.last_ts.get(s, -1))
        # Entries of earlier lists are known to every member; only this list's can be missed.
        if entry is not None and entry.ack.n == n and entry.ack.ts >= site.token_list.start_ts:
            site.send(s, p.RetxAck(entry.ack))

    def answer_old_ack(self, ack: p.Ack) -> None:
        """CM-N18: a site that repeats an old acknowledgement has missed the acceptance."""
        site = self.site
        stamping = site.stamping
        if not stamping.holding and stamping.passing < 0:
            return
        following = site.log.entries.get(ack.ts + 1)
        if following is not None:
            site.send(ack.by, p.RetxAck(following.ack))
        elif stamping.holding and stamping.hold_ts == ack.ts:
            stamping.confirm(ack.ts)
