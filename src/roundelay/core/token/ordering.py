"""The normal phase (CM84 §4): messages and acknowledgements become a log, in timestamp order.

Positive acknowledgement between sources and the token site, negative acknowledgement between the
token site and everybody else.  A source repeats its message until it has processed the
acknowledgement; the token site gives each message the next timestamp and, in the same PDU, names
the next token site; everybody processes acknowledgements in timestamp order and asks for what is
missing.  A site accepts the token by processing the acknowledgement that names it, so it then
holds everything stamped so far.

Deviations from the paper
- A transfer counts for the commit when its acceptance is known, not when it is sent (CM-N15).
- A source goes on when its acknowledgement is *processed* (CM-N3), not when it is received.
- With `backoff` and `adapt_ns` the wait between unanswered repetitions starts at what transfers of
  the token are seen to take, and doubles (CM-N4, CM-N12, CM-N16): a loss is repaired soon, and a
  site that is merely slow is not buried under what it cannot answer yet.  Only repetitions after
  the full time count among the R that declare a site failed.
- A holder whose acknowledgements have shown its acceptance sends no confirmation (K_w > 1).
- A holder answers requests from the moment its acceptance has shown; until then the site that
  passed the token does.  With both answering, as the design has it, every repair during the wait
  T costs a second reply, and the simulation lies up to 25 % above the paper's model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import STAMPED, Delivery
from roundelay.core.errors import InvariantBroken
from roundelay.core.token import pdu as p
from roundelay.core.token.part import Part
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.stable import Stamped, Trimmed

WITHOUT_TOKEN: Final = "acknowledgement by a site without the token"

LOOKED_AT: Final = 16
"""Waiting items that `check_invariants` looks at: it is called after every batch."""


@dataclass(slots=True, eq=False)
class Ordering(Part):
    """What has arrived and has no place in the log yet, and how it gets one."""

    qb: dict[tuple[int, int], Bundle] = field(default_factory=dict)  # Q_B: received, not stamped
    qc: dict[int, p.Ack] = field(default_factory=dict)  # Q_c: acknowledgements that must wait

    def begin_list(self) -> None:
        """What waits for its place in one list has none in the next."""
        self.qb.clear()
        self.qc.clear()

    # -- arrivals ----------------------------------------------------------------------------

    def on_b(self, pdu: p.B, source: int, now: int) -> None:
        """CM-N6, CM-N7: keep a message that has no stamp here, also one that is ahead of us."""
        site = self.site
        site.timers.heard = now
        s, number = pdu.s, pdu.n
        log, pending = site.log, site.requests.pending
        if number < log.next_num[s]:
            if site.answers.in_service():
                site.answers.answer_old_message(s, number)
            return
        key = (s, number)
        qb = self.qb
        if key not in qb:
            if len(qb) >= site.config.qb_limit and key not in pending:
                site.drop("no room for a message")
                return
            qb[key] = pdu.bundle
        if pending:
            pending.pop(key, None)
        if site.stamping.holding or log.nts in self.qc:
            self.work(now)

    def on_ack(self, pdu: p.Ack, source: int, now: int) -> None:
        site = self.site
        timers = site.timers
        timers.heard = timers.progress = now
        if pdu.ts >= site.log.nts:
            self.take_ack(pdu, now)
        else:
            site.answers.answer_old_ack(pdu)

    def on_ack_run(self, pdu: p.AckRun, source: int, now: int) -> None:
        """Several acknowledgements in one PDU; the last one passes the token on."""
        site = self.site
        version, by = pdu.tl, pdu.by
        last = len(pdu.stamps) - 1
        for at, (s, n) in enumerate(pdu.stamps):
            ts = pdu.ts + at
            if version != site.token_list.version or site.phase != NORMAL:
                site.token_list.other(version, source, now)
            elif at == last:
                self.on_ack(p.Ack(version, ts, p.DATA, s, n, by, pdu.next), source, now)
            elif ts >= site.log.nts:
                self.on_ack(p.Ack(version, ts, p.DATA, s, n, by, by), source, now)

    def on_retx_ack(self, pdu: p.RetxAck, source: int, now: int) -> None:
        timers = self.site.timers
        timers.heard = timers.progress = now
        if pdu.ack.ts >= self.site.log.nts:
            self.take_ack(pdu.ack, now)

    def on_retx_msg(self, pdu: p.RetxMsg, source: int, now: int) -> None:
        self.site.timers.progress = now
        self.on_b(pdu.b, source, now)

    def on_retx_bulk(self, pdu: p.RetxBulk, source: int, now: int) -> None:
        """Several entries at once: each is a message and its acknowledgement."""
        site = self.site
        timers, log, pending, qb = site.timers, site.log, site.requests.pending, self.qb
        for entry in pdu.entries:
            ack, bundle = entry.ack, entry.bundle
            if ack.tl != site.token_list.version or site.phase != NORMAL:
                site.token_list.other(ack.tl, source, now)
                return
            timers.heard = timers.progress = now
            if ack.ts < log.nts:
                continue
            if ack.kind and bundle.sizes and ack.n >= log.next_num.get(ack.s, ack.n + 1):
                key = (ack.s, ack.n)
                if len(qb) < site.config.qb_limit or key in pending:
                    qb.setdefault(key, bundle)
                pending.pop(key, None)
            self.take_ack(ack, now)

    def on_confirm(self, pdu: p.Confirm, source: int, now: int) -> None:
        """CM-N19: the token was accepted; everything up to `top` exists."""
        site = self.site
        timers, stamping, commit = site.timers, site.stamping, site.commit
        if pdu.by not in site.token_list.successor:
            site.drop("confirmation by a foreign site")
            return
        timers.heard = timers.progress = now
        if 0 <= stamping.passing <= pdu.ts:
            stamping.passed(now)
        if not site.token_list.authorized:
            site.token_list.authorize()
        nts = site.log.nts
        if pdu.ts < nts:
            commit.note_confirmed(pdu.ts, pdu.by)
            commit.commit()
            commit.prune()
        elif pdu.ts > commit.confirm_ts:
            commit.confirm_ts, commit.confirm_by = pdu.ts, pdu.by
        if pdu.top >= nts:
            requests = site.requests
            requests.known_top = max(requests.known_top, min(pdu.top, nts + site.config.window))
            requests.request_missing(now)

    # -- in timestamp order --------------------------------------------------------------------

    def take_ack(self, ack: p.Ack, now: int) -> None:
        """CM-N9, CM-N11: process an acknowledgement in turn, or keep it and ask for the gap."""
        site = self.site
        stamping, log, requests, qc = site.stamping, site.log, site.requests, self.qc
        ts = ack.ts
        if 0 <= stamping.passing < ts:
            stamping.passed(now)  # CM-N16: receipt of a later stamp shows it
        if not site.token_list.authorized:
            site.token_list.authorize()
        if ts != log.nts:
            self._keep_ack(ack, now)
            return
        if ack.kind and (ack.s, ack.n) not in self.qb:
            qc[ts] = ack
            requests.pending.pop(ts, None)
            requests.request((ack.s, ack.n), now)
            return
        if qc:
            qc.pop(ts, None)
        self.apply(ack, now)
        own = site.own
        if (
            qc
            or stamping.holding
            or (own.outstanding < 0 and (own.waiting or own.kept))
            or requests.known_top > requests.wanted_upto
        ):
            self.work(now)

    def _keep_ack(self, ack: p.Ack, now: int) -> None:
        """CM-N11: an acknowledgement ahead of its turn shows what is missing before it."""
        site = self.site
        requests, config, successor = site.requests, site.config, site.token_list.successor
        ts = ack.ts
        furthest = site.log.nts + config.window
        if ack.by not in successor or ack.next not in successor:
            site.drop(WITHOUT_TOKEN)
            return
        if ts <= furthest:
            if ts not in self.qc:
                self.qc[ts] = ack
                requests.pending.pop(ts, None)
                if config.bulk:
                    requests.request_ahead(ack, now)
        else:
            # Too far ahead to keep; what precedes it is asked for all the same.
            site.drop("acknowledgement beyond the window")
        requests.known_top = max(requests.known_top, min(ts, furthest))
        requests.request_missing(now)

    def apply(self, ack: p.Ack, now: int) -> None:
        """CM-N10: the acknowledgement takes its place in the log, with its message, if it has one:
        that is in Q_B."""
        site = self.site
        log, commit, stamping, out = site.log, site.commit, site.stamping, site.out
        by, follower, ts, me = ack.by, ack.next, ack.ts, site.me
        if by != log.exp or follower not in site.token_list.successor:
            # A stamp has one issuer, named by the stamp before it (CM-T3).
            site.drop(WITHOUT_TOKEN)
            return
        if log.first_kept != log.trimmed and not out.deliveries and log.trim():
            # Only in a batch that delivers nothing yet: a crash between persisting and delivering
            # must find on disk what the application has not been given.
            out.persists.append(Trimmed(log.trimmed))
        moves = follower != by
        # `log.append`, written out: this is done for every stamp at every site.
        seq = log.nseq
        bundle = self.qb.pop((ack.s, ack.n)) if ack.kind else NOTHING
        log.entries[ts] = entry = p.Entry(ack, bundle, seq)
        log.nts = ts + 1
        log.exp = follower
        if log.writes_stamped:
            out.persists.append(Stamped(entry))
            log.logged = ts + 1
        if ack.kind:  # DATA
            s, n = ack.s, ack.n
            log.next_num[s] = n + 1
            log.last_ts[s] = ts
            log.nseq = seq + len(bundle.sizes)
            log.uncommitted += 1
            log.retained += 1
            if s == me:
                site.own.outstanding = -1
            if moves:
                stamping.since_data = 1
            if site.config.deliver_stamped:
                out.deliveries.append(Delivery(seq, s, n, bundle, STAMPED))
        elif moves:
            stamping.since_data += 1
        commit.accepted_upto = ts - 1
        if moves:
            commit.transfers.append(ts)
        if by != me:
            commit.have[by] = ts
            commit.issues.append((ts, by))
            if follower == me:
                stamping.accept(ts, now)
        pending = site.requests.pending
        if pending:
            pending.pop(ts, None)
        if 0 <= commit.confirm_ts <= ts:
            commit.note_confirmed(commit.confirm_ts, commit.confirm_by)
        commit.commit()
        commit.prune()
        if log.retained > log.storage_max:
            log.storage_max = log.retained

    def work(self, now: int) -> None:
        """Whatever is possible now: process the queue, send the next message, stamp."""
        site = self.site
        qc, log, own, stamping = self.qc, site.log, site.own, site.stamping
        while True:
            ack = qc.get(log.nts)
            if ack is not None:
                # CM-N9: only the message of the next stamp is asked for, then we wait.
                if ack.kind == p.NULL or (ack.s, ack.n) in self.qb:
                    del qc[ack.ts]
                    self.apply(ack, now)
                    continue
                site.requests.request((ack.s, ack.n), now)
            if own.outstanding < 0 and (own.kept or own.waiting):
                own.send_next(now)
            if stamping.holding and site.config.eager:
                # When all that has arrived by now is here, see `stamping`.
                site.timers.hold_due = site.arm(now)
                break
            if not (stamping.holding and stamping.stamp(now)):
                break
        requests = site.requests
        if requests.known_top > requests.wanted_upto:
            requests.request_missing(now)

    def check_invariants(self) -> None:
        """In a list: what waits is ahead of the log, and what keeps the next stamp is asked for."""
        site = self.site
        log = site.log
        if site.phase != NORMAL or not (self.qc or self.qb):
            return
        for ts in islice(self.qc, LOOKED_AT):
            if ts < log.nts:
                raise InvariantBroken(f"acknowledgement {ts} waits, nts is {log.nts}")
        for s, n in islice(self.qb, LOOKED_AT):
            if n < log.next_num[s]:
                raise InvariantBroken(f"message {n} of site {s} waits for a stamp, and has one")
        ack = self.qc.get(log.nts)
        if ack is not None and (ack.s, ack.n) not in site.requests.pending:
            raise InvariantBroken(f"stamp {ack.ts} waits for a message nobody asked for")
