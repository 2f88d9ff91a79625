"""Mutants of the cluster protocols: engines with one rule taken back, and how the explorer notices.

Most are the papers read literally: E nn is the number in the list of errata that docs/cluster.md
goes by.  `CLUSTER_MUTANTS` says which rule each breaks, why it is needed, and in which scope, as
small as shows it, the explorer finds a run that goes wrong.  The shipped engine is clean there: the
test that runs a mutant runs it, too.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.flush import Tails
from roundelay.core.cluster.pdu import Dt
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.sim.cluster_explore import ClusterScope
from roundelay.sim.engines import PO, SPO, TO, TO_CHANNEL


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


class ClusterMutant(Struct, frozen=True, kw_only=True):
    """An engine with a broken rule."""

    name: str
    rule: str
    """Ids of the rule, and what is missing."""
    wrong: str
    """Why it is needed."""
    site_class: type[Any]
    scope: ClusterScope
    """The exploration that catches it."""

    @property
    def caught_by(self) -> str:
        """The command that shows it.

        >>> CLUSTER_MUTANTS["fresh-vectors"].caught_by
        'roundelay explore --protocol to --sites 2 --messages 2 --losses 1 --mutant fresh-vectors'
        """
        return self.scope.command(self.name)


CLUSTER_MUTANTS: dict[str, ClusterMutant] = {
    mutant.name: mutant
    for mutant in (
        ClusterMutant(
            name="no-self-acknowledgement",
            rule="TR-2, E 19: a PDU is not its sender's acknowledgement of itself",
            wrong="2n PDUs deliver nothing, and nothing else ever will",
            site_class=WithoutSelfAcknowledgement,
            scope=ClusterScope(protocol=PO, sites=2, messages=1, losses=0),
        ),
        ClusterMutant(
            name="flow-control-for-all",
            rule="TR-10, E 22: flow control holds acknowledgements back as well",
            wrong="two members that both send wait for each other for ever",
            site_class=FlowControlForAll,
            scope=ClusterScope(protocol=PO, sites=2, messages=2, losses=0),
        ),
        ClusterMutant(
            name="fresh-vectors",
            rule="TR-6: a PDU that is sent again carries the vector of the moment",
            wrong="members compute different keys for it, and different orders",
            site_class=FreshVectors,
            scope=ClusterScope(protocol=TO, sites=2, messages=2, losses=1),
        ),
        ClusterMutant(
            name="sent-again-in-an-epoch",
            rule="TO-3, E 63: in channel mode what was lost is sent again, without a reset",
            wrong="it stands at another place in the log of the one that had lost it",
            site_class=SentAgainInAnEpoch,
            scope=ClusterScope(protocol=TO_CHANNEL, sites=2, messages=2, losses=1),
        ),
        ClusterMutant(
            name="claims-its-own",
            rule="TO-R1, E 64: a member holds its own PDUs before the channel has returned them",
            wrong="one whose copy was lost stands last in the log of its source, and only there",
            site_class=ClaimsItsOwn,
            scope=ClusterScope(protocol=TO_CHANNEL, sites=2, messages=2, losses=1),
        ),
        ClusterMutant(
            name="no-flush",
            rule="TR-16: who is left does not hand over the rest before it goes on",
            wrong="what one has been given, and told its submitter, another never is",
            site_class=GoesOnWithoutTheRest,
            scope=ClusterScope(protocol=PO, sites=3, messages=1, losses=0, fails=1),
        ),
        ClusterMutant(
            name="tail-without-pdus",
            rule="TR-16: a tail says how far a member has got, and not with what",
            wrong="a message that had reached one of two is delivered by that one only",
            site_class=HoldsOnToItself,
            scope=ClusterScope(protocol=TO, sites=3, messages=1, losses=0, fails=1),
        ),
        ClusterMutant(
            name="treq-is-the-last",
            rule="SPO-A2, E 28: TREQ is the number of the last PDU, not the next",
            wrong="nothing is ever acknowledged",
            site_class=TreqIsTheLastOne,
            scope=ClusterScope(protocol=SPO, sites=2, messages=1, losses=0),
        ),
    )
}
