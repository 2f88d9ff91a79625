"""Mutants of the cluster protocols.  The shipped engines are clean in the same scopes.

Most are the papers read literally: E nn is the number in the list of errata that docs/cluster.md
goes by.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.flush import Tails
from roundelay.core.cluster.pdu import Dt
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import Delivery
from roundelay.core.families import CLUSTERS, FAMILIES, PO, SPO, TO, TO_CHANNEL
from roundelay.sim.explore.scope import ClusterScope
from roundelay.sim.mutants.mutant import MutantTable

_PROTOCOLS: Final[dict[type[Any], str]] = {FAMILIES[name].engine: name for name in CLUSTERS}


def _breaks(broken: type[Any]) -> dict[str, Any]:
    """Return the class of a mutant, and the protocol that it is an engine of."""
    protocol = next(_PROTOCOLS[base] for base in broken.__mro__ if base in _PROTOCOLS)
    return {"site_class": broken, "protocol": protocol}


broken: Final = MutantTable(_breaks, seeds=(0, 60))


@broken("I7", scope=ClusterScope(protocol=PO, sites=2, messages=1, losses=0))
class NoSelfAcknowledgement(PoSite):
    """TR-2, E 19: a PDU is not its sender's acknowledgement of itself; 2n PDUs deliver nothing, and
    nothing else ever will.

    AL and PAL know of a sender what its vector says: A_src is never above the PDU's number.
    """

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


@broken("I7", scope=ClusterScope(protocol=PO, sites=2, messages=2, losses=0))
class FlowControlForAll(PoSite):
    """TR-10, E 22: flow control holds acknowledgements back as well; two members that both send
    wait for each other for ever.

    minAL ≤ SEQ < minAL + W before any PDU, as printed.
    """

    def on_ack_timer(self, now: int) -> None:
        if self.seq < min(self.al[self.index]) + self.limit():
            super().on_ack_timer(now)
        else:
            self.ack_due = self.arm(now + self.config.ack_ns)


@broken("I1", scope=ClusterScope(protocol=TO, sites=2, messages=2, losses=1))
class FreshVectors(ToSite):
    """TR-6: a PDU that is sent again carries the vector of the moment; members compute different
    keys for it, and different orders."""

    def send_again(self, k: int, lo: int, hi: int, now: int) -> bool:
        for seq, pdu in self.sl.items():
            ack = (seq if j == self.index else number for j, number in enumerate(self.treq))
            self.sl[seq] = structs.replace(pdu, ack=tuple(ack))
        return super().send_again(k, lo, hi, now)


@broken("I1", scope=ClusterScope(protocol=TO_CHANNEL, sites=2, messages=2, losses=1))
class SentAgainInAnEpoch(ToChannelSite):
    """TO-3, E 63: in channel mode what was lost is sent again, without a reset; it stands at
    another place in the log of the one that had lost it."""

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


@broken("I1", scope=ClusterScope(protocol=TO_CHANNEL, sites=2, messages=2, losses=1))
class ClaimsItsOwn(ToChannelSite):
    """TO-R1, E 64: a member holds its own PDUs before the channel has returned them; one whose copy
    was lost stands last in the log of its source, and only there.

    A member holds whatever it has sent, and a PDU is its sender's acknowledgement of itself.
    """

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


@broken("I2", scope=ClusterScope(protocol=PO, sites=3, messages=1, losses=0, fails=1))
class NoFlush(PoSite):
    """TR-16: who is left does not hand over the rest before it goes on; what one has been given,
    and told its submitter, another never is.

    Who is left opens a new cluster at once; what is not delivered is given back.
    """

    def rest(self, tails: Tails) -> list[Dt]:
        return []

    def empty_logs(self, tails: Tails) -> None: ...


@broken("I2", scope=ClusterScope(protocol=TO, sites=3, messages=1, losses=0, fails=1))
class TailWithoutPdus(ToSite):
    """TR-16: a tail says how far a member has got, and not with what; a message that had reached
    one of two is delivered by that one only."""

    def unsure(self, living: int) -> tuple[Dt, ...]:
        return ()


@broken("I7", scope=ClusterScope(protocol=SPO, sites=2, messages=1, losses=0))
class TreqIsTheLast(SpoSite):
    """SPO-A2, E 28: TREQ is the number of the last PDU, not the next; nothing is ever acknowledged.

    TREQ_j := p.TSEQ, as printed.
    """

    def note_vector(self, pdu: Dt) -> None:
        super().note_vector(pdu)
        if pdu.src != self.index:
            self.treq[pdu.src] = self.al[pdu.src][self.index] = pdu.seq


# -- caught by random runs -----------------------------------------------------------------


@broken("I8")
class AsksForOthers(SpoSite):
    """SPO-L2: in doubt whether something was for it, a member asks for it; it is given what is for
    others."""

    def still_unsure(self, j: int, gap: list[int], now: int) -> None:
        lo = self.preq[j]
        self.send_to(j, self.KINDS.retx(epoch=self.epoch, by=self.index, src=j, lo=lo, hi=lo))
        super().still_unsure(j, gap, now)


@broken("SPO-T7", seeds=(2, 20))
class MindsTheBusinessOfOthers(SpoSite):
    """SPO-T7: whoever hears a PDU asks its source what else there was, for whomever; a broadcast
    costs those who have nothing to do with it as much as its destinations."""

    def on_sequenced(self, pdu: Any, now: int) -> None:
        gap = pdu.seq > self.treq[pdu.src]
        super().on_sequenced(pdu, now)
        if gap:
            self.send_to(pdu.src, self.stat(poll=True))


@broken("I8")
class DeliversEverything(SpoSite):
    """SPO-A1: destinations do not matter to what is delivered; a member is given what is for
    others."""

    def accept(self, pdu: Any, now: int) -> None:
        super().accept(pdu, now)
        if pdu.bundle.sizes and not pdu.dst >> self.index & 1:
            stage = self.config.deliver_at
            self.out.deliveries.append(
                Delivery(-1, self.group[pdu.src], pdu.seq, pdu.bundle, stage)
            )


@broken("TR-6")
class StampsAnew(PoSite):
    """TR-6: a PDU of PO that is sent again carries the vector of the moment; two PDUs of one number
    say different things."""

    def send_again(self, k: int, lo: int, hi: int, now: int) -> bool:
        for seq, pdu in self.sl.items():
            self.sl[seq] = structs.replace(pdu, ack=tuple(self.treq))
        return super().send_again(k, lo, hi, now)


@broken("QUIET")
class NeverAtEase(PoSite):
    """TR-7: a member always has a reason to poll; the network never falls silent."""

    def busy(self) -> bool:
        return True

    def pending(self) -> set[Any]:
        return {0}


@broken("I5", seeds=(16, 40))
class KeepsWhatItWasGiven(NoFlush):
    """TR-16: own messages that were not delivered are not given back; their submitter never learns
    that they are gone."""

    def undelivered(self) -> list[Bundle]:
        return []


@broken("I2")
class HandsOverItsOwn(TailWithoutPdus):
    """TR-16: after a failure everybody hands over what it has itself; what one has been given
    another never is."""


@broken("TR-15", seeds=(16, 40))
class GivesNobodyUp(PoSite):
    """TR-15: a member that is gone is waited for; the others are never told that the cluster is
    broken."""

    def break_up(self, *reason: Any) -> None: ...


@broken("I6", seeds=(1, 20))
class NoWindow(PoSite):
    """TR-10: as much is under way as there is to send; logs have no bound."""

    def limit(self) -> int:
        return 1000


@broken("I1")
class SourceFirst(ToSite):
    """E 62: keys are ordered by source, whatever was sent before what; members that release at
    different times have different orders."""

    def release(self, *args: Any) -> None:
        self.keys.sort(key=lambda key: key[1:])
        super().release(*args)


@broken("TR-6")
class ProbesWithData(ToChannelSite):
    """TO-5: in channel mode a probe repeats what waits, in the same epoch; one PDU stands twice on
    the channel."""

    def poll(self, now: int) -> None:
        for pdu in list(self.sl.values())[:1]:
            self.send_all(pdu)
        super().poll(now)
