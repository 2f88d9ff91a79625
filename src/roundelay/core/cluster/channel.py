"""TO in channel mode: one channel shows everybody the same order, so keep it; reset on a loss.

On a one-channel medium the receipt logs of all members are the same sequence, but for what each
has lost.  A PDU that is out of turn therefore proves a loss at once.  Sent again it would take
another place in the log of the member that missed it, so nothing is ever repeated within an
epoch: all members go back to the failure point, the end of what all of them hold, and senders
send the rest again in a new epoch (TO-R1…R5, `exchange`).

This is our reconstruction: the procedure itself is in works the papers only cite.

Deviations from the design
- Everybody answers a probe, not only those of whom the prober lacks something: so who is silent can
  be told from who is dead (TR-15).
- After R probes that somebody has not accepted there is a reset.  Nothing may be sent again within
  an epoch, so against a member that talks but is deaf further probes would pile up without end.
- A member holds of its own PDUs those that the channel has returned to it, in a reset too (TO-R1
  has it claim all it sent).  A copy of its own can be lost like any other, and then only the others
  know the place of that PDU.  So it is sent again, at the price of some that everybody else holds.
- Data is pre-acknowledged when its source has said, too, that the channel returned it (`returned`;
  TR-2 takes the PDU itself for that): what is pre-acknowledged no reset takes back.  The source's
  second acknowledgement says so, so it costs no PDU.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Final

from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.exchange import Exchange
from roundelay.core.cluster.flush import Tails, common
from roundelay.core.cluster.pdu import TO_KINDS, Dt, ToNull
from roundelay.core.cluster.state import ISS
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, PREACKNOWLEDGED
from roundelay.core.errors import ConfigError, InvariantBroken

FINAL: Final = (ACKNOWLEDGED,)


class ToChannelSite(Exchange):
    """One member of a TO cluster on a medium that returns a member's own PDUs in channel order."""

    __slots__ = ("ready", "received", "returned")

    KINDS = TO_KINDS
    resets = True

    def __init__(
        self, me: int, group: tuple[int, ...], config: ClusterConfig, rng: Random, now: int = 0
    ) -> None:
        for field in ("deliver_at", "early"):
            if getattr(config, field) == ACCEPTED:
                # A reset may take an accepted PDU back and give it another place.
                raise ConfigError(
                    field, ACCEPTED, f"{PREACKNOWLEDGED} or {ACKNOWLEDGED} in channel mode"
                )
        super().__init__(me, group, config, rng, now)

    def reset_state(self) -> None:
        super().reset_state()
        self.received: deque[Dt] = deque()  # RRL, in channel order
        self.ready: deque[Dt] = deque()  # PRL, in channel order
        self.returned = [ISS] * self.n  # j has had its own PDUs back up to there

    def take_own(self, pdu: Dt, now: int) -> None:
        """TO-1: the channel will return it, in its place."""

    def busy(self) -> bool:
        return super().busy() or bool(self.unaccepted)

    def in_logs(self) -> list[Dt]:
        return [*self.ready, *self.received]

    def log_length(self, src: int) -> int:
        return len(self.ready) + len(self.received)

    def pending(self) -> set[tuple[int, int]]:
        return super().pending() | {(self.index, seq) for seq in self.unaccepted}

    # -- receipt ---------------------------------------------------------------------------

    def on_sequenced(self, pdu: Dt, now: int) -> None:
        """TO-2, TO-3: in turn, or a loss."""
        if not self.in_epoch(pdu, now):
            return
        j = pdu.src
        if pdu.seq < self.treq[j]:
            return
        treq = self.treq
        ahead = any(number > treq[k] for k, number in enumerate(pdu.ack) if k != j)
        if pdu.seq > treq[j] or ahead:
            self.go_back(now)
            return
        self.accept(pdu, now)
        if isinstance(pdu, ToNull) and pdu.probe and j != self.index:
            # TO-5: if the prober lacks something of ours, anything we send shows it the loss.
            # Everybody answers, so that a silent member can be told from a dead one (TR-15).
            self.owe((j, pdu.seq, 1), self.everyone_mask, now)
        self.count_accepted()
        self.advance(now)
        self.pay_now(now)
        self.pump(now)

    def accept(self, pdu: Dt, now: int) -> None:
        self.note_vector(pdu)
        j = pdu.src
        self.returned[j] = pdu.seq + 1 if j == self.index else pdu.ack[j]
        self.received.append(pdu)
        if pdu.bundle.sizes:
            self.waiting_delivery += 1
        self.note_obligations(pdu, now)

    def advance(self, now: int) -> None:
        """TO-4: both conditions hold for a prefix of the log, since all logs are one."""
        pal = self.pal
        while self.received and self.at_everybody(self.received[0]):
            pdu = self.received.popleft()
            self.note_preacknowledged(pdu)
            if pdu.bundle.sizes:
                self.ready.append(pdu)
                self.reached(pdu, PREACKNOWLEDGED)
        while self.ready and self.ready[0].seq < min(pal[self.ready[0].src]):
            self.waiting_delivery -= 1
            self.reached(self.ready.popleft(), ACKNOWLEDGED)

    def at_everybody(self, pdu: Dt) -> bool:
        """All others have acknowledged it and, if it is data, its source has had it back.

        The place of a NULL makes no difference to anybody.
        """
        if pdu.seq >= min(self.al[pdu.src]):
            return False
        return not pdu.bundle.sizes or pdu.seq < self.returned[pdu.src]

    def reached(self, pdu: Dt, stage: str) -> None:
        if stage not in (self.config.deliver_at, self.config.early):
            return
        if stage == ACKNOWLEDGED:
            self.hand_over_next(pdu)
        else:
            self.hand_over(pdu, stage)

    def probes(self) -> int:
        """Everybody sends R probes at most before it resets, and everybody answers each."""
        return self.n * self.config.attempts

    def check_logs(self) -> None:
        """The channel's order: PRL before RRL, and nothing that is not accepted."""
        for log in (self.ready, self.received):
            if log and log[-1].seq >= self.treq[log[-1].src]:
                raise InvariantBroken(f"{log[-1].seq} of member {log[-1].src} is not accepted yet")
        for j, number in enumerate(self.returned):
            if number > self.treq[j]:
                raise InvariantBroken(f"member {j} has had {number} of its own back")
        self.check_waiting(len(self.ready), len(self.received))

    # -- the failure point -----------------------------------------------------------------

    def opened(self, floor: tuple[int, ...], now: int) -> None:
        """TO-R4: deliver what everybody holds, send the rest again, start afresh."""
        mine = floor[self.index]
        for log, stages in ((self.ready, FINAL), (self.received, (PREACKNOWLEDGED, *FINAL))):
            for pdu in log:
                if pdu.seq < floor[pdu.src] and pdu.bundle.sizes:
                    for stage in stages:
                        self.reached(pdu, stage)
        again = [
            (pdu.bundle, self.everyone_mask)
            for seq, pdu in self.sl.items()
            if seq >= mine and pdu.bundle.sizes
        ]
        self.queue.extendleft(reversed(again))
        self.received.clear()
        self.ready.clear()
        self.waiting_delivery = 0
        self.unaccepted.clear()
        self.sl.clear()
        self.seq = mine
        self.treq[:] = floor
        self.returned[:] = floor
        self.al = [[floor[j]] * self.n for j in self.everyone]
        self.pal = [[floor[j]] * self.n for j in self.everyone]
        self.known = [mine] * self.n

    # -- the end of a cluster --------------------------------------------------------------

    def accepted(self) -> list[Dt]:
        """Data in the log that is not handed over, in channel order."""
        early = self.config.deliver_at == PREACKNOWLEDGED
        log = self.received if early else [*self.ready, *self.received]
        return [pdu for pdu in log if pdu.bundle.sizes]

    def waiting(self) -> list[Dt]:
        sent = [pdu for seq, pdu in self.sl.items() if seq >= self.treq[self.index]]
        return self.accepted() + [pdu for pdu in sent if pdu.bundle.sizes]

    def unsure(self, living: int) -> tuple[Dt, ...]:
        """Only what all have is handed over."""
        return ()

    def rest(self, tails: Tails) -> list[Dt]:
        floor = self.last_floor(tails)
        return [pdu for pdu in self.accepted() if pdu.seq < floor[pdu.src]]

    def last_floor(self, tails: Tails) -> tuple[int, ...]:
        """What is handed over of the epoch that our log is of.

        Members are one reset apart at most.  Who has finished one knows that all others have the
        vectors: for them it ends as it did there.  Of the epoch after it they have nothing yet.
        """
        newest = max(tail.epoch for tail in tails.values())
        if self.epoch < newest and len(self.vecs) < self.n:
            return (0,) * self.n  # somebody says so who cannot have finished one
        if self.epoch < newest:
            return tuple(map(min, zip(*self.vecs.values(), strict=True)))
        if any(tail.epoch < newest for tail in tails.values()):
            return (0,) * self.n
        return common(tails)

    @property
    def ordered(self) -> bool:
        return self.config.deliver_at == ACKNOWLEDGED

    def handed_over_early(self) -> list[Dt]:
        return [*self.ready]

    def empty_logs(self, tails: Tails) -> None:
        given = set(map(id, self.rest(tails)))
        undelivered = [pdu for pdu in self.accepted() if id(pdu) not in given]
        self.ready.clear()
        self.received = deque(undelivered)
        self.waiting_delivery = 0

    def poll(self, now: int) -> None:
        """TO-5: a probe is a NULL that makes the others speak.

        Somebody who talks but has accepted none of R probes does not hear us, and no further one
        will show it its loss.  A reset, which is repeated until everybody takes part, will; or it
        finds that there is no agreement (TR-15).
        """
        probes = sum(isinstance(pdu, ToNull) and pdu.probe for pdu in self.sl.values())
        if probes < self.config.attempts:
            self.transmit(None, self.everyone_mask, now, probe=True)
        else:
            self.go_back(now)
