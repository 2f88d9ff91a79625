"""Mutants of the cluster protocols.  The shipped engines are clean in the same scopes.

Most are the papers read literally: E nn is the number in the list of errata that docs/cluster.md
goes by.
"""

from __future__ import annotations

from functools import partial
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
from roundelay.core.families import PO, SPO, TO, TO_CHANNEL
from roundelay.sim.explore.scope import ClusterScope
from roundelay.sim.mutants.mutant import MutantTable

broken: Final = MutantTable(seeds=(0, 60))

_failing: Final = partial(ClusterScope, sites=3, messages=1, losses=0, fails=1)


def _note_preacknowledged(shipped: Any, self: PoSite, pdu: Dt) -> None:
    j = pdu.src
    before = self.pal[j][j]
    shipped(self, pdu)
    if j != self.index:
        self.pal[j][j] = max(before, pdu.ack[j])


@broken(
    PoSite,
    "note_vector",
    "I7",
    scope=ClusterScope(protocol=PO, messages=1, losses=0),
    also=((PoSite, "note_preacknowledged", _note_preacknowledged),),
)
def no_self_acknowledgement(shipped: Any, self: PoSite, pdu: Dt) -> None:
    """TR-2, E 19: a PDU is not its sender's acknowledgement of itself; 2n PDUs deliver nothing, and
    nothing else ever will.

    AL and PAL know of a sender what its vector says: A_src is never above the PDU's number.
    """
    j = pdu.src
    before = self.al[j][j]
    shipped(self, pdu)
    if j != self.index:
        self.al[j][j] = max(before, pdu.ack[j])


@broken(PoSite, "on_ack_timer", "I7", scope=ClusterScope(protocol=PO, losses=0))
def flow_control_for_all(shipped: Any, self: PoSite, now: int) -> None:
    """TR-10, E 22: flow control holds acknowledgements back as well; two members that both send
    wait for each other for ever.

    minAL ≤ SEQ < minAL + W before any PDU, as printed.
    """
    if self.seq < min(self.al[self.index]) + self.limit():
        shipped(self, now)
    else:
        self.ack_due = self.arm(now + self.config.ack_ns)


@broken(ToSite, "send_again", "I1", scope=ClusterScope(protocol=TO, losses=1))
def fresh_vectors(shipped: Any, self: ToSite, *asked: int) -> Any:
    """TR-6: a PDU that is sent again carries the vector of the moment; members compute different
    keys for it, and different orders."""
    for seq, pdu in self.sl.items():
        ack = (seq if j == self.index else number for j, number in enumerate(self.treq))
        self.sl[seq] = structs.replace(pdu, ack=tuple(ack))
    return shipped(self, *asked)


def _repeats(self: ToChannelSite, pdu: Any, now: int) -> None:
    for seq in range(pdu.lo, pdu.hi + 1):
        if seq in self.sl:
            self.send_all(self.sl[seq])


@broken(
    ToChannelSite,
    "on_sequenced",
    "I1",
    scope=ClusterScope(protocol=TO_CHANNEL, losses=1),
    also=((ToChannelSite, "on_retx", _repeats),),
)
def sent_again_in_an_epoch(shipped: Any, self: ToChannelSite, pdu: Any, now: int) -> None:
    """TO-3, E 63: in channel mode what was lost is sent again, without a reset; it stands at
    another place in the log of the one that had lost it."""
    lo = self.treq[pdu.src]
    if pdu.epoch == self.epoch and pdu.seq > lo:
        asked = self.KINDS.retx(epoch=self.epoch, by=self.index, src=pdu.src, lo=lo, hi=pdu.seq)
        self.send_to(pdu.src, asked)
    else:
        shipped(self, pdu, now)


def _goes_back_to_its_own(self: ToChannelSite, now: int) -> None:
    vec = list(self.treq)
    vec[self.index] = self.seq
    self.start_reset(self.epoch + 1, tuple(vec), now)


def _takes_its_own(shipped: Any, self: ToChannelSite, floor: tuple[int, ...], now: int) -> None:
    for seq in range(self.treq[self.index], floor[self.index]):
        self.received.append(self.sl[seq])
    shipped(self, floor, now)


@broken(
    ToChannelSite,
    "at_everybody",
    "I1",
    scope=ClusterScope(protocol=TO_CHANNEL, losses=1),
    also=(
        (ToChannelSite, "go_back", _goes_back_to_its_own),
        (ToChannelSite, "opened", _takes_its_own),
    ),
)
def claims_its_own(self: ToChannelSite, pdu: Dt) -> bool:
    """TO-R1, E 64: a member holds its own PDUs before the channel has returned them; one whose copy
    was lost stands last in the log of its source, and only there.

    A member holds whatever it has sent, and a PDU is its sender's acknowledgement of itself.
    """
    return pdu.seq < min(self.al[pdu.src])


@broken(
    PoSite,
    "rest",
    "I2",
    scope=_failing(protocol=PO),
    also=((PoSite, "empty_logs", lambda self, tails: None),),
)
def no_flush(self: PoSite, tails: Tails) -> list[Dt]:
    """TR-16: who is left does not hand over the rest before it goes on; what one has been given,
    and told its submitter, another never is.

    Who is left opens a new cluster at once; what is not delivered is given back.
    """
    return []


@broken(ToSite, "unsure", "I2", scope=_failing(protocol=TO))
def tail_without_pdus(self: ToSite, living: int) -> tuple[Dt, ...]:
    """TR-16: a tail says how far a member has got, and not with what; a message that had reached
    one of two is delivered by that one only."""
    return ()


@broken(SpoSite, "note_vector", "I7", scope=ClusterScope(protocol=SPO, messages=1, losses=0))
def treq_is_the_last(shipped: Any, self: SpoSite, pdu: Dt) -> None:
    """SPO-A2, E 28: TREQ is the number of the last PDU, not the next; nothing is ever acknowledged.

    TREQ_j := p.TSEQ, as printed.
    """
    shipped(self, pdu)
    if pdu.src != self.index:
        self.treq[pdu.src] = self.al[pdu.src][self.index] = pdu.seq


# -- caught by random runs -----------------------------------------------------------------


@broken(SpoSite, "still_unsure", "I8")
def asks_for_others(shipped: Any, self: SpoSite, j: int, gap: list[int], now: int) -> None:
    """SPO-L2: in doubt whether something was for it, a member asks for it; it is given what is for
    others."""
    lo = self.preq[j]
    self.send_to(j, self.KINDS.retx(epoch=self.epoch, by=self.index, src=j, lo=lo, hi=lo))
    shipped(self, j, gap, now)


@broken(SpoSite, "on_sequenced", "SPO-T7", seeds=(2, 20))
def minds_the_business_of_others(shipped: Any, self: SpoSite, pdu: Any, now: int) -> None:
    """SPO-T7: whoever hears a PDU asks its source what else there was, for whomever; a broadcast
    costs those who have nothing to do with it as much as its destinations."""
    gap = pdu.seq > self.treq[pdu.src]
    shipped(self, pdu, now)
    if gap:
        self.send_to(pdu.src, self.stat(poll=True))


@broken(SpoSite, "accept", "I8")
def delivers_everything(shipped: Any, self: SpoSite, pdu: Any, now: int) -> None:
    """SPO-A1: destinations do not matter to what is delivered; a member is given what is for
    others."""
    shipped(self, pdu, now)
    if pdu.bundle.sizes and not pdu.dst >> self.index & 1:
        stage = self.config.deliver_at
        self.out.deliveries.append(Delivery(-1, self.group[pdu.src], pdu.seq, pdu.bundle, stage))


@broken(PoSite, "send_again", "TR-6")
def stamps_anew(shipped: Any, self: PoSite, *asked: int) -> Any:
    """TR-6: a PDU of PO that is sent again carries the vector of the moment; two PDUs of one number
    say different things."""
    for seq, pdu in self.sl.items():
        self.sl[seq] = structs.replace(pdu, ack=tuple(self.treq))
    return shipped(self, *asked)


@broken(PoSite, "busy", "QUIET", also=((PoSite, "pending", lambda self: {0}),))
def never_at_ease(self: PoSite) -> bool:
    """TR-7: a member always has a reason to poll; the network never falls silent."""
    return True


@broken(
    PoSite,
    "undelivered",
    "I5",
    also=((PoSite, "rest", no_flush), (PoSite, "empty_logs", lambda self, tails: None)),
    seeds=(16, 40),
)
def keeps_what_it_was_given(self: PoSite) -> list[Bundle]:
    """TR-16: own messages that were not delivered are not given back; their submitter never learns
    that they are gone."""
    return []


@broken(ToSite, "unsure", "I2")
def hands_over_its_own(self: ToSite, living: int) -> tuple[Dt, ...]:
    """TR-16: after a failure everybody hands over what it has itself; what one has been given
    another never is."""
    return ()


@broken(PoSite, "break_up", "TR-15", seeds=(16, 40))
def gives_nobody_up(self: PoSite, *reason: Any) -> None:
    """TR-15: a member that is gone is waited for; the others are never told that the cluster is
    broken."""


@broken(PoSite, "limit", "I6", seeds=(1, 20))
def no_window(self: PoSite) -> int:
    """TR-10: as much is under way as there is to send; logs have no bound."""
    return 1000


@broken(ToSite, "release", "I1")
def source_first(shipped: Any, self: ToSite, *args: Any) -> None:
    """E 62: keys are ordered by source, whatever was sent before what; members that release at
    different times have different orders."""
    self.keys.sort(key=lambda key: key[1:])
    shipped(self, *args)


@broken(ToChannelSite, "poll", "TR-6")
def probes_with_data(shipped: Any, self: ToChannelSite, now: int) -> None:
    """TO-5: in channel mode a probe repeats what waits, in the same epoch; one PDU stands twice on
    the channel."""
    for pdu in list(self.sl.values())[:1]:
        self.send_all(pdu)
    shipped(self, now)
