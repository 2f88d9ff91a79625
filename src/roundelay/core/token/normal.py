"""The normal phase (CM84 §4): transmitting, stamping, committing, and passing the token.

Positive acknowledgement between sources and the token site, negative acknowledgement between the
token site and everybody else.  A source repeats its message until it has processed the
acknowledgement; the token site gives each message the next timestamp and, in the same PDU, names
the next token site; everybody processes acknowledgements in timestamp order and asks for what is
missing.  A site accepts the token by processing the acknowledgement that names it, so it then
holds everything stamped so far.

Deviations from the paper
- The confirmation of an idle token site waits T (CM-N13): only then does the paper's own
  Y_c = e^(−Lτ) come out.  `tests/core/test_token_normal.py`.
- A transfer counts for the commit when its acceptance is known, not when it is sent (CM-N15).
- A source goes on when its acknowledgement is *processed* (CM-N3), not when it is received.
- With `eager` (the `fast` profile) the NULL or the confirmation does not wait at all: a stamped
  message commits as fast as the token can travel, for one more PDU where the group is idle.
  `tests/core/test_token_fast.py`.
- With `backoff` and `adapt_ns` the wait between unanswered repetitions starts at what transfers of
  the token are seen to take, and doubles (CM-N4, CM-N12, CM-N16): a loss is repaired soon, and a
  site that is merely slow is not buried under what it cannot answer yet.  Only repetitions after
  the full time count among the R that declare a site failed.
- A request names the timestamp of the message it misses, and may name a range (`batch`).
- A holder whose acknowledgements have shown its acceptance sends no confirmation (K_w > 1).
- A holder answers requests from the moment its acceptance has shown; until then the site that
  passed the token does.  With both answering, as the design has it, every repair during the wait
  T costs a second reply, and the simulation lies up to 25 % above the paper's model.
"""

from __future__ import annotations

from roundelay.core.bundle import MESSAGES_MAX, NOTHING, Bundle
from roundelay.core.engine import EVERYONE, NEVER, STAMPED, Delivery
from roundelay.core.errors import ClusterBroken, PayloadTooLarge, QueueFull, UsageError
from roundelay.core.token.pdu import (
    DATA,
    NULL,
    Ack,
    AckRun,
    B,
    Confirm,
    Entry,
    RetxAck,
    RetxBulk,
    RetxMsg,
    TlHint,
)
from roundelay.core.token.stable import Stamped, Wiped
from roundelay.core.token.state import BROKEN, NORMAL
from roundelay.core.token.turn import Turn


class NormalPhase(Turn):
    """What a site does while it is in a list."""

    __slots__ = ()

    # -- transmitting ----------------------------------------------------------------------

    def submit(self, bundle: Bundle, now: int) -> None:
        """CM-N2: queue a message and send it unless one is outstanding."""
        if self.phase is BROKEN:
            raise ClusterBroken("two histories of this group have met: nothing is sent here")
        limit = self.config.max_payload
        if not 0 < len(bundle) <= MESSAGES_MAX:
            raise UsageError(f"a bundle of {len(bundle)} messages: submit 1 to {MESSAGES_MAX}")
        if len(bundle.data) > limit:
            raise PayloadTooLarge(
                f"a message of {len(bundle.data)} bytes is above max_payload = {limit}: split it"
            )
        if len(self.own) + len(self.waiting) >= self.config.own_limit:
            raise QueueFull(
                f"{self.config.own_limit} messages wait for their commit (own_limit): "
                "submit again when some have been delivered"
            )
        size = len(bundle.data)
        if self.waiting and self.waiting_bytes + size > self.config.own_bytes:
            raise QueueFull(
                f"{self.waiting_bytes} bytes wait to be sent (own_bytes): "
                "submit again when some have been delivered"
            )
        self.waiting.append(bundle)
        self.waiting_bytes += size
        if self.phase == NORMAL and self.outstanding < 0:
            self.work(now)

    def send_next(self, now: int) -> None:
        """CM-N3: at most one message is out; CM-N5: after a list change the unstamped ones again.

        The number of the message is the M counter: it moves on when the acknowledgement is
        processed, never before.
        """
        number = self.next_num[self.me]
        index = number - self.own_base
        if index < len(self.own):
            bundle = self.own[index]
        elif self.waiting:
            bundle = self.gather()
            self.own.append(bundle)
        else:
            self.outstanding = -1
            self.current = None
            self.send_due = NEVER
            return
        self.outstanding = number
        self.current = B(self.tl, self.me, number, bundle)
        self.send(EVERYONE, self.current)
        self.qb[(self.me, number)] = bundle
        self.send_last = now
        self.send_silent = self.send_total = 0
        self.send_wait = self.first_wait()
        off = self.config.resend_jitter_ns
        if off:
            self.send_wait += self.rng.randint(-off, off)
        self.send_due = self.arm(now + self.send_wait)

    def first_wait(self) -> int:
        """t_b, above t_tok: else each lost transfer would make all waiting sources repeat."""
        most = self.config.resend_ns
        return min(most, 2 * self.patience(most))

    def gather(self) -> Bundle:
        """The next PDU's content: one submitted bundle, or all that fit when bundling."""
        waiting = self.waiting
        bundle = waiting.popleft()
        if self.config.bundle and waiting:
            room = self.config.max_payload - len(bundle.data)
            places = MESSAGES_MAX - len(bundle.sizes)
            fit = 0
            for part in waiting:
                room -= len(part.data)
                places -= len(part.sizes)
                if room < 0 or places < 0:
                    break
                fit += 1
            if fit:
                bundle = Bundle.merged([bundle, *[waiting.popleft() for _ in range(fit)]])
        self.waiting_bytes -= len(bundle.data)
        return bundle

    def on_send_timer(self, now: int) -> None:
        """CM-N4: repeat the message, but not while the list is heard to make progress."""
        config = self.config
        if self.outstanding < 0:
            self.send_due = NEVER
            return
        if self.progress > self.send_last:
            self.send_silent = 0
            if config.impatient:
                self.send_wait = self.first_wait()
        restarted = max(self.send_last, self.progress) + self.send_wait
        if now < restarted:
            self.send_due = restarted
            return
        if self.send_wait >= config.resend_ns or not config.adapt_ns:
            self.send_silent += 1
        self.send_total += 1
        if self.send_silent > config.attempts or self.send_total > config.attempts_hard:
            self.start_reformation(now, "message not acknowledged")
            return
        assert self.current is not None
        self.send(EVERYONE, self.current)
        self.send_last = now
        if config.impatient:
            self.send_wait = min(2 * self.send_wait, config.resend_ns << config.backoff)
        self.send_due = now + self.send_wait

    # -- stamping --------------------------------------------------------------------------

    def on_b(self, pdu: B, source: int, now: int) -> None:
        """CM-N6, CM-N7: keep a message that has no stamp here, also one that is ahead of us."""
        if pdu.tl != self.tl or self.phase != NORMAL:
            self.other_list(pdu.tl, source, now)
            return
        self.heard = now
        expected = self.next_num.get(pdu.s)
        if expected is None:
            self.drop("message of a foreign source")
            return
        number = pdu.n
        if number < expected:
            if self.in_service():
                self.answer_old_message(pdu.s, number)
            return
        key = (pdu.s, number)
        qb = self.qb
        if key not in qb:
            if len(qb) >= self.config.qb_limit and key not in self.requests:
                self.drop("no room for a message")
                return
            qb[key] = pdu.bundle
        if self.requests:
            self.requests.pop(key, None)
        if self.holding or self.nts in self.qc:
            self.work(now)

    def on_ack(self, pdu: Ack, source: int, now: int) -> None:
        if pdu.tl != self.tl or self.phase != NORMAL:
            self.other_list(pdu.tl, source, now)
            return
        self.heard = self.progress = now
        if pdu.ts >= self.nts:
            self.take_ack(pdu, now)
        else:
            self.answer_old_ack(pdu)

    def on_ack_run(self, pdu: AckRun, source: int, now: int) -> None:
        """Several acknowledgements in one PDU; the last one passes the token on."""
        last = len(pdu.stamps) - 1
        for at, (s, n) in enumerate(pdu.stamps):
            ts = pdu.ts + at
            if at == last:
                self.on_ack(Ack(pdu.tl, ts, DATA, s, n, pdu.by, pdu.next), source, now)
            elif ts >= self.nts or pdu.tl != self.tl:
                self.on_ack(Ack(pdu.tl, ts, DATA, s, n, pdu.by, pdu.by), source, now)

    def take_ack(self, ack: Ack, now: int) -> None:
        """CM-N9, CM-N11: process an acknowledgement in turn, or keep it and ask for the gap."""
        ts = ack.ts
        if 0 <= self.passing < ts:
            # CM-N16: receipt of a later stamp shows that the token was accepted.
            self.passing = -1
            self.pass_due = NEVER
            if not self.pass_total:
                self.transfer_took(now - self.pass_sent)
        if not self.authorized:
            self.authorize(now)
        if ts != self.nts:
            self.keep_ack(ack, now)
            return
        bundle = self.qb.get((ack.s, ack.n)) if ack.kind else NOTHING
        if bundle is None:
            if ack.s not in self.next_num:
                self.drop("acknowledgement of a foreign source")
                return
            self.qc[ts] = ack
            self.requests.pop(ts, None)
            self.request((ack.s, ack.n), now)
            return
        if self.qc:
            self.qc.pop(ts, None)
        self.apply(ack, bundle, now)
        if (
            self.qc
            or self.holding
            or (self.outstanding < 0 and (self.waiting or self.own))
            or self.known_top > self.wanted_upto
        ):
            self.work(now)

    def keep_ack(self, ack: Ack, now: int) -> None:
        """CM-N11: an acknowledgement ahead of its turn shows what is missing before it."""
        ts = ack.ts
        furthest = self.nts + self.config.window
        if ack.by not in self.successor or ack.next not in self.successor:
            self.drop("acknowledgement by a site without the token")
            return
        if ts <= furthest:
            if ts not in self.qc:
                self.qc[ts] = ack
                self.requests.pop(ts, None)
                if self.config.bulk:
                    self.request_ahead(ack, now)
        else:
            # Too far ahead to keep; what precedes it is asked for all the same.
            self.drop("acknowledgement beyond the window")
        self.known_top = max(self.known_top, min(ts, furthest))
        self.request_missing(now)

    def apply(self, ack: Ack, bundle: Bundle, now: int) -> None:
        """CM-N10: the acknowledgement takes its place in the log."""
        by, follower, ts, me = ack.by, ack.next, ack.ts, self.me
        if by != self.exp or follower not in self.successor:
            # A stamp has one issuer, named by the stamp before it (CM-T3).
            self.drop("acknowledgement by a site without the token")
            return
        if self.first_kept != self.trimmed:
            self.trim()
        moves = follower != by
        seq = self.nseq
        self.log[ts] = entry = Entry(ack, bundle, seq)
        if self.logs:
            self.out.persists.append(Stamped(entry))
            self.logged = ts + 1
        if ack.kind:  # DATA
            s, n = ack.s, ack.n
            self.next_num[s] = n + 1
            self.qb.pop((s, n), None)
            self.last_ts[s] = ts
            self.nseq = seq + len(bundle.sizes)
            self.uncommitted += 1
            self.retained += 1
            if s == me:
                self.outstanding = -1
            if moves:
                self.since_data = 1
            if self.config.deliver_stamped:
                self.out.deliveries.append(Delivery(seq, s, n, bundle, STAMPED))
        elif moves:
            self.since_data += 1
        self.nts = ts + 1
        self.exp = follower
        self.accepted_upto = ts - 1
        if moves:
            self.transfers.append(ts)
        if by != me:
            self.have[by] = ts
            self.issues.append((ts, by))
            if follower == me:
                self.accept(ts, now)
        if self.requests:
            self.requests.pop(ts, None)
        if 0 <= self.confirm_ts <= ts:
            self.note_confirmed(self.confirm_ts, self.confirm_by)
        self.commit()
        self.prune()
        if self.retained > self.storage_max:
            self.storage_max = self.retained

    def work(self, now: int) -> None:
        """Whatever is possible now: process the queue, send the next message, stamp."""
        qc = self.qc
        while True:
            ack = qc.get(self.nts)
            if ack is not None:
                # CM-N9: only the message of the next stamp is asked for, then we wait.
                bundle = NOTHING if ack.kind == NULL else self.qb.get((ack.s, ack.n))
                if bundle is not None:
                    del qc[ack.ts]
                    self.apply(ack, bundle, now)
                    continue
                self.request((ack.s, ack.n), now)
            if self.outstanding < 0 and (self.own or self.waiting):
                self.send_next(now)
            if self.holding and self.config.eager:
                # When all that has arrived by now is here, see `turn`.
                self.hold_due = self.arm(now)
                break
            if not (self.holding and self.stamp(now)):
                break
        if self.known_top > self.wanted_upto:
            self.request_missing(now)

    # -- acceptance --------------------------------------------------------------------------

    def on_confirm(self, pdu: Confirm, source: int, now: int) -> None:
        """CM-N19: the token was accepted; everything up to `top` exists."""
        if pdu.tl != self.tl or self.phase != NORMAL:
            self.other_list(pdu.tl, source, now)
            return
        if pdu.by not in self.successor:
            self.drop("confirmation by a foreign site")
            return
        self.heard = self.progress = now
        if 0 <= self.passing <= pdu.ts:
            self.passing = -1
            self.pass_due = NEVER
            if not self.pass_total:
                self.transfer_took(now - self.pass_sent)
        if not self.authorized:
            self.authorize(now)
        if pdu.ts < self.nts:
            self.note_confirmed(pdu.ts, pdu.by)
            self.commit()
            self.prune()
        elif pdu.ts > self.confirm_ts:
            self.confirm_ts, self.confirm_by = pdu.ts, pdu.by
        if pdu.top >= self.nts:
            self.known_top = max(self.known_top, min(pdu.top, self.nts + self.config.window))
            self.request_missing(now)

    def note_confirmed(self, ts: int, by: int) -> None:
        """Site `by` is known to have accepted the token that stamp `ts` passed to it."""
        self.confirm_ts = -1
        if ts > self.accepted_upto:
            self.accepted_upto = ts
        # Only the newest stamp keeps `issues` in order; an older one is covered by later stamps.
        if by != self.me and ts == self.nts - 1 and self.have[by] < ts:
            self.have[by] = ts
            self.issues.append((ts, by))

    # -- what was sent again ----------------------------------------------------------------

    def on_retx_ack(self, pdu: RetxAck, source: int, now: int) -> None:
        ack = pdu.ack
        if ack.tl != self.tl or self.phase != NORMAL:
            self.other_list(ack.tl, source, now)
            return
        self.heard = self.progress = now
        if ack.ts >= self.nts:
            self.take_ack(ack, now)

    def on_retx_msg(self, pdu: RetxMsg, source: int, now: int) -> None:
        if pdu.b.tl == self.tl:
            self.progress = now
        self.on_b(pdu.b, source, now)

    def on_retx_bulk(self, pdu: RetxBulk, source: int, now: int) -> None:
        """Several entries at once: each is a message and its acknowledgement."""
        for entry in pdu.entries:
            ack, bundle = entry.ack, entry.bundle
            if ack.tl != self.tl or self.phase != NORMAL:
                self.other_list(ack.tl, source, now)
                return
            self.heard = self.progress = now
            if ack.ts < self.nts:
                continue
            if ack.kind and bundle.sizes and ack.n >= self.next_num.get(ack.s, ack.n + 1):
                key = (ack.s, ack.n)
                if len(self.qb) < self.config.qb_limit or key in self.requests:
                    self.qb.setdefault(key, bundle)
                self.requests.pop(key, None)
            self.take_ack(ack, now)

    # -- lists -----------------------------------------------------------------------------

    def on_tl_hint(self, pdu: TlHint, source: int, now: int) -> None:
        """CM-N1: somebody is ahead of us."""
        if pdu.tl[0] > self.seen_version:
            self.seen_version = pdu.tl[0]
        if self.phase == NORMAL and pdu.tl > self.max_joined:
            self.start_reformation(now, "left out of a newer list")

    def on_silence_timer(self, now: int) -> None:
        """CM-N21: with the beacon on, a list that falls silent has lost its token site."""
        due = self.heard + self.config.silence_ns
        if now < due or self.holding or len(self.members) == 1:
            self.silence_due = max(due, now + self.config.idle_ns)
            return
        self.start_reformation(now, "the list is silent")

    def authorize(self, now: int) -> None:
        """The list's token exists: commits may begin (CM-R16)."""
        self.authorized = True
        self.attempt = None
        self.new_tl = None
        self.failures = 0
        if self.wiped:
            # Every member of this list has promised again, after we forgot: we count once more.
            self.wiped = False
            self.out.persists.append(Wiped(False))
        self.auth_due = self.token_due = NEVER
        self.notify("view", self.tl, self.members, self.first, self.start_seq)
        if self.blocked:
            self.blocked = None
            self.notify("unblocked")
        self.commit()
        base = self.past[2]
        if self.seq < base and self.cnts >= self.start_ts:
            # This history goes on behind what is recorded of the one before.
            self.notify("gap_unavailable", self.seq, base)
            self.seq = base
        self.prune()
