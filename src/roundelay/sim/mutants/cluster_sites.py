"""Engines of the cluster protocols with one rule broken each; `cluster.py` says which.

Most are the papers read literally: E nn is the number in the list of errata that docs/cluster.md
goes by.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.flush import Tails
from roundelay.core.cluster.pdu import Dt
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import Delivery


class WithoutSelfAcknowledgement(PoSite):
    """AL and PAL know of a sender what its vector says: A_src is never above the PDU's number."""

    __slots__ = ()

    def note_vector(self, pdu: Dt) -> None:
        j = pdu.src
        before = self.al[j][j]
        super().note_vector(pdu)
        if j != self.index:
            self.al[j][j] = max(before, pdu.ack[j])

    def note_preacknowledged(self, pdu: Dt) -> None:
        j = pdu.src
        before = self.pal[j][j]
        super().note_preacknowledged(pdu)
        if j != self.index:
            self.pal[j][j] = max(before, pdu.ack[j])


class FlowControlForAll(PoSite):
    """minAL ≤ SEQ < minAL + W before any PDU, as printed."""

    __slots__ = ()

    def on_ack_timer(self, now: int) -> None:
        if self.seq < min(self.al[self.index]) + self.limit():
            super().on_ack_timer(now)
        else:
            self.ack_due = self.arm(now + self.config.ack_ns)


class FreshVectors(ToSite):
    """Retransmissions carry the vector of the moment."""

    __slots__ = ()

    def send_again(self, k: int, lo: int, hi: int, now: int) -> bool:
        for seq, pdu in self.sl.items():
            ack = (seq if j == self.index else number for j, number in enumerate(self.treq))
            self.sl[seq] = structs.replace(pdu, ack=tuple(ack))
        return super().send_again(k, lo, hi, now)


class SentAgainInAnEpoch(ToChannelSite):
    """Who has lost something asks for it, as in PO, and its source repeats it: no reset."""

    __slots__ = ()

    def on_sequenced(self, pdu: Any, now: int) -> None:
        lo = self.treq[pdu.src]
        if pdu.epoch == self.epoch and pdu.seq > lo:
            asked = self.KINDS.retx(epoch=self.epoch, by=self.index, src=pdu.src, lo=lo, hi=pdu.seq)
            self.send_to(pdu.src, asked)
        else:
            super().on_sequenced(pdu, now)

    def on_retx(self, pdu: Any, now: int) -> None:
        for seq in range(pdu.lo, pdu.hi + 1):
            if seq in self.sl:
                self.send_all(self.sl[seq])


class ClaimsItsOwn(ToChannelSite):
    """A member holds whatever it has sent, and a PDU is its sender's acknowledgement of itself."""

    __slots__ = ()

    def at_everybody(self, pdu: Dt) -> bool:
        return pdu.seq < min(self.al[pdu.src])

    def go_back(self, now: int) -> None:
        vec = list(self.treq)
        vec[self.index] = self.seq
        self.start_reset(self.epoch + 1, tuple(vec), now)

    def opened(self, floor: tuple[int, ...], now: int) -> None:
        for seq in range(self.treq[self.index], floor[self.index]):
            self.received.append(self.sl[seq])
        super().opened(floor, now)


class GoesOnWithoutTheRest(PoSite):
    """Who is left opens a new cluster at once; what is not delivered is given back."""

    __slots__ = ()

    def rest(self, tails: Tails) -> list[Dt]:
        return []

    def empty_logs(self, tails: Tails) -> None: ...


class HoldsOnToItself(ToSite):
    """What nobody but the source of a message has is not said to the others."""

    __slots__ = ()

    def unsure(self, living: int) -> tuple[Dt, ...]:
        return ()


class TreqIsTheLastOne(SpoSite):
    """TREQ_j := p.TSEQ, as printed."""

    __slots__ = ()

    def note_vector(self, pdu: Dt) -> None:
        super().note_vector(pdu)
        if pdu.src != self.index:
            self.treq[pdu.src] = self.al[pdu.src][self.index] = pdu.seq


class AsksForOthers(SpoSite):
    """In doubt whether something was for it, a member asks for it."""

    __slots__ = ()

    def still_unsure(self, j: int, gap: list[int], now: int) -> None:
        lo = self.preq[j]
        self.send_to(j, self.KINDS.retx(epoch=self.epoch, by=self.index, src=j, lo=lo, hi=lo))
        super().still_unsure(j, gap, now)


class MindsTheBusinessOfOthers(SpoSite):
    """Whoever hears a PDU asks its source what else there was, for whomever."""

    __slots__ = ()

    def on_sequenced(self, pdu: Any, now: int) -> None:
        gap = pdu.seq > self.treq[pdu.src]
        super().on_sequenced(pdu, now)
        if gap:
            self.send_to(pdu.src, self.stat(poll=True))


class DeliversEverything(SpoSite):
    """Destinations do not matter to what is delivered."""

    __slots__ = ()

    def accept(self, pdu: Any, now: int) -> None:
        super().accept(pdu, now)
        if pdu.bundle.sizes and not pdu.dst >> self.index & 1:
            stage = self.config.deliver_at
            self.out.deliveries.append(
                Delivery(-1, self.group[pdu.src], pdu.seq, pdu.bundle, stage)
            )


class StampsAnew(PoSite):
    """TR-6: a PDU sent again has the acknowledgements of now."""

    __slots__ = ()

    def send_again(self, k: int, lo: int, hi: int, now: int) -> bool:
        for seq, pdu in self.sl.items():
            self.sl[seq] = structs.replace(pdu, ack=tuple(self.treq))
        return super().send_again(k, lo, hi, now)


class NeverAtEase(PoSite):
    """A member always has a reason to poll."""

    __slots__ = ()

    def busy(self) -> bool:
        return True

    def pending(self) -> set[Any]:
        return {0}


class KeepsWhatItWasGiven(GoesOnWithoutTheRest):
    """Own messages that were not delivered are not given back."""

    __slots__ = ()

    def undelivered(self) -> list[Bundle]:
        return []


class Hopes(PoSite):
    """Nobody is ever given up."""

    __slots__ = ()

    def break_up(self, *reason: Any) -> None: ...


class NoWindow(PoSite):
    """As much under way as there is to send."""

    __slots__ = ()

    def limit(self) -> int:
        return 1000


class SourceFirst(ToSite):
    """The order of keys is by source, whatever was sent before what."""

    __slots__ = ()

    def release(self, *args: Any) -> None:
        self.keys.sort(key=lambda key: key[1:])
        super().release(*args)


class SendsAgain(ToChannelSite):
    """TO-5: a probe repeats what waits, in the same epoch."""

    __slots__ = ()

    def poll(self, now: int) -> None:
        for pdu in list(self.sl.values())[:1]:
            self.send_all(pdu)
        super().poll(now)
