"""The rules of the hierarchy, HG-1 … HG-15, one by one, on single sites fed by hand."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

import pytest
from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, SECOND, Pdu
from roundelay.core.errors import ConfigError, PayloadTooLarge, QueueFull, UsageError
from roundelay.core.grsb.pdu import (
    ABORT,
    GAP,
    LINE_A,
    SINGLE,
    Bcast,
    DaAck,
    Message,
    Poll,
    PollOk,
    Recovered,
    ReplayData,
    ReplayEnd,
    ReplayReq,
    Stale,
    Submit,
    SubmitAck,
)
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.core.wide.config import ALL_ACTIVE, WideConfig
from roundelay.core.wide.pdu import (
    SUBNET,
    TRUNK,
    AckGcr,
    AckLcr,
    Galive,
    Gbcast,
    LsAck,
    LsAsk,
    LsData,
    LsDown,
    LsUp,
    Response,
    Up,
)
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import Flooded, Freed, Kept, WideStable
from roundelay.core.wide.subnet import FLOODS_MAX
from roundelay.core.wide.topology import Atlas, Network, Topology, diameter

P = TypeVar("P", bound=Pdu)

# Network 1 with a subnet: LB - A - B - C, and A - C.  Networks 2 and 3 without.
LCR, LDA, LPR, LB, U, V, A, B, C = range(9)
LCR2, LDA2, LPR2, U2 = range(9, 13)
LCR3, LDA3, LPR3, U3 = range(13, 17)
GCR, GDA, GPR, GCR2 = range(17, 21)
T = 10 * MS

NETWORKS = (
    Network(
        net=1, retransmitters=(LCR,), acknowledgers=(LDA,), recorders=(LPR,), users=(U, V),
        broadcaster=LB, edges=((LB, A), (A, B), (B, C), (A, C)),
    ),
    Network(
        net=2, retransmitters=(LCR2,), acknowledgers=(LDA2,), recorders=(LPR2,), users=(U2,)
    ),
    Network(
        net=3, retransmitters=(LCR3,), acknowledgers=(LDA3,), recorders=(LPR3,), users=(U3,)
    ),
)  # fmt: skip
TOPOLOGY = Topology(sites=21, gcr=(GCR, GCR2), gda=(GDA,), gpr=(GPR,), networks=NETWORKS)
ATLAS = Atlas(TOPOLOGY)


class Bench:
    """One site, and all that came out of it."""

    def __init__(self, me: int, atlas: Atlas = ATLAS, **config: Any) -> None:
        self.config = WideConfig(**config).check(atlas.sites)
        self.now = 0
        self.sends: list[tuple[int, Pdu, int]] = []
        self.persists: list[Any] = []
        self.deliveries: list[Any] = []
        self.notices: list[Any] = []
        self.stable = WideStable()
        self.site = WideSite(
            me, atlas, self.config, Random(1), inc=1, archive=self.stable.local,
            globe_archive=self.stable.globe,
        )  # fmt: skip
        self.collect()

    def collect(self) -> list[tuple[int, Pdu, int]]:
        out = self.site.take()
        for record in out.persists:
            self.stable.apply(record)
        self.persists += out.persists
        self.sends += out.sends
        self.deliveries += out.deliveries
        self.notices += out.notices
        return out.sends

    def hear(self, pdu: Pdu, source: int, line: int) -> list[tuple[int, Pdu, int]]:
        self.site.receive(pdu, source, self.now, line)
        return self.collect()

    def wait(self, ns: int) -> list[tuple[int, Pdu, int]]:
        """Let time pass, with every deadline on the way."""
        end = self.now + ns
        found = []
        while self.site.deadline <= end:
            self.now = max(self.now, self.site.deadline)
            self.site.on_timer(self.now)
            found += self.collect()
        self.now = end
        return found

    def of(self, kind: type[P]) -> list[tuple[int, P]]:
        return [(to, pdu) for to, pdu, _ in self.sends if isinstance(pdu, kind)]

    def clear(self) -> None:
        self.sends.clear()

    def texts(self) -> list[bytes]:
        return [data for one in self.deliveries for data in one.bundle]

    def told(self, kind: str) -> list[tuple[object, ...]]:
        return [notice.info for notice in self.notices if notice.kind == kind]


def message(gseq: int, sender: int = U2, **given: Any) -> Message:
    fields: dict[str, Any] = {
        "epoch": 0, "gseq": gseq, "time": 1000 + gseq, "sender": sender, "inc": 1, "sseq": gseq,
        "conference": 0, "mtype": SINGLE, "gid": 0, "kind": 0, "bundle": Bundle.of(b"m%d" % gseq),
    }  # fmt: skip
    return Message(**(fields | given))


def up(origin: int = U, sseq: int = 0, inc: int = 1, net: int = 1, text: bytes = b"x") -> Up:
    return Up(net, origin, inc, sseq, 7, SINGLE, 0, 0, Bundle.of(text))


def submit(sseq: int = 0, text: bytes = b"x", inc: int = 1) -> Submit:
    return Submit(inc, sseq, 7, SINGLE, 0, 0, b"", Bundle.of(text))


def climbing(origin: int, path: tuple[int, ...], sseq: int = 0, attempt: int = 0) -> LsUp:
    return LsUp(origin, 1, sseq, 0, SINGLE, 0, 0, Bundle.of(b"up"), attempt, path)


def sequenced(bench: Bench, ups: list[tuple[Up, int]]) -> None:
    """The GCR gives places, and its GDA acknowledges."""
    for one, source in ups:
        bench.hear(one, source, TRUNK)
        top = bench.site.globe.retransmitter.sequencer.next  # type: ignore[union-attr]
        bench.hear(DaAck(0, top, 0), GDA, TRUNK)


# -- the global level ------------------------------------------------------------------------


def test_hg_1_a_submission_gets_its_place_and_the_other_networks_hear_of_it() -> None:
    gcr = Bench(GCR)
    gcr.hear(up(), LCR, TRUNK)
    (bcast,) = [pdu for to, pdu in gcr.of(Bcast) if to == GDA]
    assert (bcast.message.gseq, bcast.message.sender) == (0, U)
    assert {to for to, _ in gcr.of(Bcast)} == {GDA, GPR, GCR2}
    assert not gcr.of(Gbcast)  # not stable yet
    gcr.hear(up(U2, net=2), LCR2, TRUNK)
    assert len({pdu.message.gseq for _, pdu in gcr.of(Bcast)}) == 1  # one after the other
    gcr.hear(DaAck(0, 1, 0), GDA, TRUNK)
    assert {to for to, _ in gcr.of(Gbcast)} == {LCR2, LCR3}
    assert all(pdu.net == 1 and pdu.acked == 1 for _, pdu in gcr.of(Gbcast))
    gcr.hear(DaAck(0, 2, 0), GDA, TRUNK)
    assert {to for to, pdu in gcr.of(Gbcast) if pdu.message.gseq == 1} == {LCR, LCR3}


def test_hg_1_a_number_that_is_known_is_answered_again_and_only_networks_sign() -> None:
    gcr = Bench(GCR)
    sequenced(gcr, [(up(), LCR)])
    gcr.clear()
    gcr.hear(up(), LCR, TRUNK)
    ((to, ack),) = gcr.of(AckGcr)
    assert (to, ack.gseq, ack.time, ack.acked) == (LCR, 0, 0, 1)
    assert not gcr.of(Bcast)
    gcr.clear()
    gcr.hear(up(U, 1), LCR2, TRUNK)  # not the LCR of that network
    gcr.hear(up(U2, 0, net=1), LCR, TRUNK)  # not an origin of that network
    gcr.hear(up(U, 5), LCR, TRUNK)  # out of turn
    assert not gcr.of(Bcast)
    assert gcr.site.globe is not None
    assert gcr.site.globe.drops["not an LCR of that network"] == 1
    assert gcr.site.globe.drops["not signed by its network"] == 1


def test_hg_1_a_gcr_that_does_not_reign_says_who_does() -> None:
    standby = Bench(GCR2)
    standby.hear(up(), LCR, TRUNK)
    assert standby.of(Stale) == [(LCR, Stale(0, GCR))]


def test_hg_2_ack_gcr_goes_home_when_the_message_is_stable() -> None:
    gcr = Bench(GCR)
    gcr.hear(up(), LCR, TRUNK)
    assert not gcr.of(AckGcr)
    gcr.hear(DaAck(0, 1, 0), GDA, TRUNK)
    ((to, ack),) = gcr.of(AckGcr)
    assert (to, ack.net, ack.origin, ack.sseq, ack.gseq) == (LCR, 1, U, 0, 0)
    assert ack.time > 0


def test_hg_2_all_active_waits_for_the_others() -> None:
    gcr = Bench(GCR, ack_mode=ALL_ACTIVE)
    sequenced(gcr, [(up(), LCR), (up(U2, net=2), LCR2)])
    assert not gcr.of(AckGcr)
    # Network 1 is not led beyond its own message that waits.
    assert [pdu.acked for to, pdu in gcr.of(Gbcast) if to == LCR] == [0]
    gcr.hear(AckLcr(2, LCR2, 1, 0), LDA2, TRUNK)
    assert not gcr.of(AckGcr)
    gcr.hear(AckLcr(3, LCR3, 1, 0), LDA3, TRUNK)
    assert [(to, pdu.gseq) for to, pdu in gcr.of(AckGcr)] == [(LCR, 0)]


def test_hg_2_all_active_gives_no_more_places_than_it_can_keep_waiting() -> None:
    gcr = Bench(GCR, ack_mode=ALL_ACTIVE, da_buffer=2, history=3, overwrite_group=1)
    for inc in range(1, 8):  # an origin that starts again and again
        gcr.hear(up(inc=inc), LCR, TRUNK)
        top = gcr.site.globe.retransmitter.sequencer.next  # type: ignore[union-attr]
        gcr.hear(DaAck(0, top, top), GDA, TRUNK)
    assert gcr.site.usage()["ack_gcr"] == 3
    gcr.clear()
    for net, lcr, lda in ((2, LCR2, LDA2), (3, LCR3, LDA3)):
        gcr.hear(AckLcr(net, lcr, 3, 0), lda, TRUNK)
    assert len(gcr.of(AckGcr)) == 3
    assert {pdu.message.gseq for _, pdu in gcr.of(Bcast)} == {3}  # and on it goes


def test_hg_3_silent_networks_are_told_again_and_then_given_up() -> None:
    gcr = Bench(GCR, attempts=3)
    sequenced(gcr, [(up(), LCR)])
    gcr.hear(AckLcr(1, LCR, 1, 0), LDA, TRUNK)
    gcr.hear(AckLcr(2, LCR2, 1, 0), LDA2, TRUNK)
    gcr.clear()
    gcr.wait(3 * gcr.config.trunk_ns)
    again = gcr.of(Gbcast)
    assert {to for to, _ in again} == {LCR3}
    assert 2 <= len(again) <= 3
    gcr.wait(2 * gcr.config.trunk_ns)
    assert gcr.told("inactive") == [(3,)]
    gcr.clear()
    sequenced(gcr, [(up(sseq=1), LCR)])
    assert {to for to, _ in gcr.of(Gbcast)} == {LCR2}
    gcr.wait(2 * SECOND)
    assert LCR3 in {to for to, _ in gcr.of(Galive)}  # signs of life all the same


def test_hg_3_the_gpr_keeps_a_message_until_all_networks_have_recorded_it() -> None:
    gpr = Bench(GPR, gpr_free=True)
    for at in range(4):
        gpr.hear(Bcast(message(at), at), GCR, TRUNK)
    gpr.hear(DaAck(0, 4, 0), GDA, TRUNK)
    assert gpr.stable.globe.positions == [0, 1, 2, 3]
    gpr.hear(Galive(0, 4, 0, 0, 2), GCR, TRUNK)
    assert [kept.record for kept in gpr.persists][-1] == Freed(2)
    assert gpr.stable.globe.positions == [2, 3]
    gpr.hear(ReplayReq(256, 0, 0, 4, (), (), (), 8), LCR2, TRUNK)
    gpr.wait(10 * MS)
    assert gpr.of(ReplayEnd) == [(LCR2, ReplayEnd(256, 0, 2, GAP))]
    gcr = Bench(GCR)
    sequenced(gcr, [(up(), LCR)])
    for net, lcr, lda in ((2, LCR2, LDA2), (3, LCR3, LDA3)):
        gcr.hear(AckLcr(net, lcr, 1, 1), lda, TRUNK)
    gcr.hear(AckLcr(1, LCR, 1, 0), LDA, TRUNK)  # its own network has not recorded it
    cr: Any = gcr.site.globe and gcr.site.globe.retransmitter
    assert cr.everywhere == 0
    gcr.hear(AckLcr(1, LCR, 1, 1), LDA, TRUNK)
    assert cr.everywhere == 1


def test_hg_4_a_network_that_can_follow_is_active_again() -> None:
    gcr = Bench(GCR, attempts=1, da_buffer=2, history=4, overwrite_group=1)
    for sseq in range(6):
        gcr.hear(up(sseq=sseq), LCR, TRUNK)
        gcr.hear(DaAck(0, sseq + 1, sseq + 1), GDA, TRUNK)
    gcr.wait(SECOND)
    assert (2,) in gcr.told("inactive")
    gcr.hear(AckLcr(2, LCR2, 0, 0), LDA2, TRUNK)  # too far behind: it reads the GPR
    assert gcr.told("active") == []
    gcr.hear(AckLcr(2, LCR2, 5, 5), LDA2, TRUNK)
    assert gcr.told("active") == [(2,)]
    gcr.hear(AckLcr(3, LCR3, 99, 5), LDA3, TRUNK)  # nonsense
    assert gcr.told("active") == [(2,)]


def test_hg_4_an_lcr_that_was_cut_off_asks_the_gpr() -> None:
    lcr = Bench(LCR)
    lcr.hear(Galive(0, 3, 0, 0, 0), GCR, TRUNK)
    lcr.wait(50 * MS)
    ((to, request), *_) = lcr.of(ReplayReq)
    assert (to, request.since, request.until) == (GPR, 0, 3)
    for at in range(3):
        lcr.hear(ReplayData(request.request, at, message(at)), GPR, TRUNK)
        lcr.hear(DaAck(0, at + 1, 0), LDA, LINE_A)
    assert [pdu.message.gseq for _, pdu in lcr.of(Bcast)] == [0, 1, 2]


def test_hg_4_what_no_gpr_has_any_more_is_not_left_out() -> None:
    """Broken is who is refused twice, and was given nothing between: the GCR may have it yet."""
    lcr = Bench(LCR)
    uplink = lcr.site.uplink
    assert uplink is not None
    for gone in (5, 6):
        lcr.hear(Galive(0, 9, 0, 0, 0), GCR, TRUNK)
        lcr.wait(50 * MS)
        request = lcr.of(ReplayReq)[0][1]
        assert request.since == 0  # perhaps it is back
        lcr.clear()
        lcr.hear(ReplayEnd(request.request, 0, gone, GAP), GPR, TRUNK)
        lcr.wait(SECOND)
        assert bool(lcr.told("broken")) == uplink.stuck == (gone == 6)
        assert not lcr.of(Bcast)
        assert not lcr.of(ReplayReq)
        lcr.clear()
        lcr.hear(Galive(0, 9, 0, 0, 0), GCR, TRUNK)
        lcr.wait(2 * SECOND + 500 * MS)
    lcr.hear(Gbcast(2, message(0), 9), GCR, TRUNK)
    assert not uplink.stuck
    assert [pdu.message.gseq for _, pdu in lcr.of(Bcast)] == [0]


# -- a network ---------------------------------------------------------------------------------


def test_hg_5_what_a_user_submits_is_signed_and_goes_up_until_it_has_a_place() -> None:
    lcr = Bench(LCR)
    lcr.hear(submit(), U, LINE_A)
    lcr.hear(submit(), U, LINE_A)
    lcr.hear(submit(text=b"y"), V, LINE_A)  # others are not waited for
    sent = lcr.of(Up)
    assert [(to, pdu.net, pdu.origin) for to, pdu in sent] == [(GCR, 1, U), (GCR, 1, V)]
    lcr.wait(lcr.config.trunk_ns)
    assert len(lcr.of(Up)) == 4
    assert not lcr.of(Bcast)
    lcr.hear(AckGcr(1, U, 1, 0, 0, 0, 5000, 1), GCR, TRUNK)
    lcr.clear()
    lcr.wait(lcr.config.trunk_ns)
    assert [pdu.origin for _, pdu in lcr.of(Up)] == [V]


def test_hg_6_ack_gcr_and_gbcast_are_put_in_order() -> None:
    lcr = Bench(LCR)
    lcr.hear(submit(text=b"mine"), U, LINE_A)
    lcr.hear(AckGcr(1, U, 1, 0, 1, 0, 5000, 2), GCR, TRUNK)
    assert not lcr.of(Bcast)
    lcr.hear(Gbcast(2, message(0), 1), GCR, TRUNK)
    lcr.hear(DaAck(0, 1, 0), LDA, LINE_A)
    first, second = (pdu.message for _, pdu in lcr.of(Bcast))
    assert (first.gseq, first.sender) == (0, U2)
    assert (second.gseq, second.sender, second.time) == (1, U, 5000)
    assert list(second.bundle) == [b"mine"]
    assert not lcr.of(ReplayReq)
    lcr.hear(DaAck(0, 2, 0), LDA, LINE_A)
    assert [to for to, _ in lcr.of(SubmitAck)] == [U]  # the origin of the first is elsewhere


def test_hg_6_a_message_of_ours_that_comes_down_counts_as_its_ack_gcr() -> None:
    lcr = Bench(LCR)
    lcr.hear(submit(), U, LINE_A)
    lcr.hear(Gbcast(1, message(0, U, sseq=0), 1), GCR, TRUNK)
    lcr.clear()
    lcr.wait(lcr.config.trunk_ns)
    assert not lcr.of(Up)


def test_hg_6_an_lcr_takes_no_more_than_its_network_does() -> None:
    lcr = Bench(LCR, ready_max=4)
    for at in range(20):
        lcr.hear(Gbcast(2, message(at), at + 1), GCR, TRUNK)
    assert lcr.site.usage()["ready"] == 4
    for at in range(20):
        lcr.hear(DaAck(0, at + 1, 0), LDA, LINE_A)
    assert [pdu.message.gseq for _, pdu in lcr.of(Bcast)] == list(range(20))


def test_hg_6_an_old_gcr_is_not_asked_any_more() -> None:
    lcr = Bench(LCR)
    lcr.hear(submit(), U, LINE_A)
    lcr.hear(Galive(24, 0, 0, 0, 0), GCR2, TRUNK)
    lcr.hear(Galive(0, 0, 0, 0, 0), GCR, TRUNK)
    lcr.clear()
    lcr.wait(lcr.config.trunk_ns)
    assert {to for to, _ in lcr.of(Up)} == {GCR2}
    lcr.hear(Stale(30, GCR), GCR2, TRUNK)
    lcr.clear()
    lcr.wait(lcr.config.trunk_ns)
    assert {to for to, _ in lcr.of(Up)} == {GCR}
    lcr.wait(4 * SECOND)
    assert lcr.told("trunk") == [("down",)]
    lcr.hear(Galive(30, 0, 0, 0, 0), GCR, TRUNK)
    assert lcr.told("trunk") == [("down",), ("up",)]


def test_hg_7_lpr_queues_what_is_recorded_for_the_broadcaster() -> None:
    lpr = Bench(LPR)
    for at in range(3):
        lpr.hear(Bcast(message(at), at), LCR, LINE_A)
    lpr.hear(DaAck(0, 3, 0), LDA, LINE_A)
    assert [pdu.message.gseq for _, pdu in lpr.of(LsDown)] == [0]
    assert lpr.stable.local.positions == [0, 1, 2]
    pacer: Any = lpr.site.local and lpr.site.local.pacer
    assert pacer.gap_ns == (ATLAS.diameters[1] + 2) * T == (2 + 2) * T


def test_hg_8_lda_says_how_far_its_network_is_until_the_gcr_knows() -> None:
    lda = Bench(LDA)
    lda.hear(Bcast(message(0), 0), LCR, LINE_A)
    assert lda.of(AckLcr) == [(GCR, AckLcr(1, LCR, 1, 0))]
    lda.hear(PollOk(1), LPR, LINE_A)
    lda.wait(lda.config.trunk_ns)
    assert lda.of(AckLcr)[-1] == (GCR, AckLcr(1, LCR, 1, 1))
    lda.clear()
    lda.wait(3 * lda.config.alive_ns)
    assert len(lda.of(AckLcr)) >= 2
    lda.hear(Galive(0, 1, 1, 1, 0), GCR, TRUNK)
    lda.clear()
    lda.wait(3 * lda.config.alive_ns)
    assert not lda.of(AckLcr)
    lda.hear(Galive(24, 1, 0, 0, 0), GCR2, TRUNK)  # a new one that does not know it
    assert lda.of(AckLcr) == [(GCR2, AckLcr(1, LCR, 1, 1))]


def test_hg_8_a_network_answers_what_it_is_told_twice() -> None:
    lcr = Bench(LCR)
    lcr.hear(Gbcast(2, message(0), 1), GCR, TRUNK)
    lcr.hear(DaAck(0, 1, 0), LDA, LINE_A)
    lcr.clear()
    lcr.hear(Gbcast(2, message(0), 1), GCR, TRUNK)
    assert lcr.of(AckLcr) == [(GCR, AckLcr(1, LCR, 1, 0))]


def test_hg_9_the_next_message_goes_down_after_its_time_and_the_answer() -> None:
    lpr = Bench(LPR)
    for at in range(2):
        lpr.hear(Bcast(message(at), at), LCR, LINE_A)
    lpr.hear(DaAck(0, 2, 0), LDA, LINE_A)
    lpr.wait(30 * MS)
    lpr.hear(Response(0, 1), LB, SUBNET)
    assert [kept.record for kept in lpr.persists][-1] == Flooded(1)
    lpr.wait(9 * MS)
    assert {pdu.message.gseq for _, pdu in lpr.of(LsDown)} == {0}
    lpr.wait(1 * MS)  # (D+2)T
    assert {pdu.message.gseq for _, pdu in lpr.of(LsDown)} == {0, 1}
    lpr.wait(SECOND)
    assert len(lpr.of(LsDown)) > 10  # repeated until it is answered


def test_hg_9_a_recorder_that_starts_again_goes_on_where_the_broadcaster_is() -> None:
    lpr = Bench(LPR)
    for at in range(9):
        lpr.hear(Bcast(message(at), at), LCR, LINE_A)
        lpr.hear(DaAck(0, at + 1, 0), LDA, LINE_A)
    lpr.hear(Response(0, 7), LB, SUBNET)
    lpr.wait(40 * MS)
    assert lpr.of(LsDown)[-1][1].message.gseq == 7


def test_hg_10_the_broadcaster_floods_what_is_signed_and_hands_up_what_is_not() -> None:
    lb = Bench(LB)
    lb.hear(LsDown(2, message(0)), LPR, SUBNET)
    assert lb.of(LsDown) == [(A, LsDown(2, message(0)))]
    assert not lb.of(Response)  # its link has not answered yet
    lb.hear(Response(0, 1), A, SUBNET)
    assert lb.of(Response) == [(LPR, Response(0, 1))]
    lb.hear(climbing(B, (B, A)), A, SUBNET)
    lb.hear(climbing(C, (C, A)), A, SUBNET)  # a collision
    lb.wait(T)
    ((to, handed),) = lb.of(LsUp)
    assert (to, handed.origin, handed.path) == (LCR, B, (B, A, LB))
    lcr = Bench(LCR)
    lcr.hear(handed, LB, SUBNET)
    assert [(to, pdu.net, pdu.origin) for to, pdu in lcr.of(Up)] == [(GCR, 1, B)]


def test_hg_10_after_a_crash_the_broadcaster_floods_again() -> None:
    lb = Bench(LB)
    lb.hear(LsDown(2, message(40)), LPR, SUBNET)
    assert [to for to, _ in lb.of(LsDown)] == [A]
    lb.hear(LsDown(2, message(40)), LPR, SUBNET)
    assert len(lb.of(LsDown)) == 1  # it is under way
    assert lb.deliveries == []


# -- a subnet ------------------------------------------------------------------------------------


def test_hg_11_the_first_copy_is_passed_on_and_every_copy_is_answered() -> None:
    node = Bench(A)
    node.hear(LsDown(2, message(0)), LB, SUBNET)
    assert {to for to, _ in node.of(LsDown)} == {B, C}
    assert node.of(Response) == [(LB, Response(0, 1))]
    assert node.texts() == [b"m0"]
    node.clear()
    node.hear(LsDown(2, message(0)), B, SUBNET)  # also the answer of B
    assert node.of(LsDown) == []
    assert node.of(Response) == [(B, Response(0, 1))]
    node.clear()
    node.wait(2 * T + 1)
    assert [to for to, _ in node.of(LsDown)] == [C]
    assert node.texts() == [b"m0"]


def test_hg_11_positions_decide_the_order() -> None:
    node = Bench(A)
    node.hear(LsDown(2, message(1)), LB, SUBNET)
    assert node.texts() == []
    assert {to for to, _ in node.of(LsDown)} == {B, C}  # passed on at once
    node.hear(LsDown(2, message(0)), C, SUBNET)
    assert node.texts() == [b"m0", b"m1"]


def test_hg_11_what_goes_down_goes_first() -> None:
    node = Bench(A)
    node.hear(climbing(B, (B,)), B, SUBNET)
    node.wait(T - 1)
    node.hear(LsDown(2, message(0)), LB, SUBNET)
    node.wait(T - 1)
    assert not node.of(LsUp)
    node.wait(1)
    assert [to for to, _ in node.of(LsUp)] == [LB]


def test_hg_12_a_silent_link_is_tried_again_and_then_suspected() -> None:
    node = Bench(B, attempts=3)
    node.hear(LsDown(2, message(0)), A, SUBNET)
    node.clear()
    node.wait(20 * T)
    assert [to for to, _ in node.of(LsDown)] == [C] * 3
    assert node.told("suspect") == [(C,)]
    node.clear()
    node.hear(LsDown(2, message(1)), A, SUBNET)
    node.wait(20 * T)
    assert [to for to, _ in node.of(LsDown)] == [C] * 2  # a suspect gets one more chance
    node.hear(LsDown(2, message(2)), A, SUBNET)
    node.hear(Response(2, 3), C, SUBNET)
    node.clear()
    node.wait(20 * T)
    assert not node.of(LsDown)


def test_hg_13_of_two_candidates_the_smaller_goes_on_and_by_its_path_never_back() -> None:
    node = Bench(A)
    node.hear(climbing(C, (C,)), C, SUBNET)
    node.hear(climbing(B, (B,)), B, SUBNET)
    node.hear(climbing(B, (B,)), B, SUBNET)  # the same again is no collision
    node.wait(T)
    ((to, pdu),) = node.of(LsUp)
    assert (to, pdu.origin, pdu.path) == (LB, B, (B, A))
    climb: Any = node.site.node and node.site.node.climb
    assert climb.dropped == 1
    node.clear()
    node.hear(climbing(C, (A, C)), C, SUBNET)  # has been here
    node.hear(climbing(C, (B,)), C, SUBNET)  # not what it seems
    node.wait(T)
    assert not node.of(LsUp)


def test_hg_13_the_parent_is_where_the_last_flood_came_from() -> None:
    node = Bench(B)
    assert ATLAS.parents[B] == A
    node.hear(LsDown(2, message(0)), C, SUBNET)
    node.site.submit(Bundle.of(b"mine"), node.now)
    node.wait(2 * T)
    assert [to for to, _ in node.of(LsUp)][:1] == [C]


def test_hg_14_the_origin_repeats_until_it_sees_its_message_come_down() -> None:
    node = Bench(B)
    node.site.submit(Bundle.of(b"mine"), node.now)
    node.site.submit(Bundle.of(b"next"), node.now)
    node.wait(40 * (2 + 2) * T)
    sent = node.of(LsUp)
    assert 5 <= len(sent) <= 41
    assert {pdu.sseq for _, pdu in sent} == {0}
    assert {to for to, _ in sent} == {A, C}  # repetitions try other ways
    node.hear(LsDown(1, message(5, B, sseq=0)), A, SUBNET)
    assert node.told("stable") == []  # not in order yet
    for at in range(5):
        node.hear(LsDown(1, message(at)), A, SUBNET)
    assert node.told("stable") == [(0, 1, 5)]
    node.clear()
    node.wait(2 * T)
    assert {pdu.sseq for _, pdu in node.of(LsUp)} == {1}
    node.hear(LsAck(B, 1, 1, 9, ()), A, SUBNET)
    assert node.told("stable") == [(0, 1, 5), (1, 2, 9)]


def test_hg_14_what_has_its_place_is_acknowledged_back_along_its_path() -> None:
    lcr = Bench(LCR)
    lcr.hear(Gbcast(1, message(0, B, sseq=0), 1), GCR, TRUNK)
    lcr.hear(DaAck(0, 1, 0), LDA, LINE_A)
    lcr.hear(climbing(B, (B, A, LB)), LB, SUBNET)
    ((to, ack),) = lcr.of(LsAck)
    assert (to, ack) == (LB, LsAck(B, 1, 0, 0, (B, A)))
    lb = Bench(LB)
    lb.hear(ack, LCR, SUBNET)
    assert lb.of(LsAck) == [(A, LsAck(B, 1, 0, 0, (B,)))]
    between = Bench(A)
    between.hear(lb.of(LsAck)[0][1], LB, SUBNET)
    assert between.of(LsAck) == [(B, LsAck(B, 1, 0, 0, ()))]


def test_hg_15_without_repair_a_gap_is_given_up_and_said_so() -> None:
    node = Bench(B, attempts=2)
    node.hear(LsDown(2, message(3, mtype=1, gid=1)), A, SUBNET)
    node.wait(3 * SECOND)
    assert node.told("gap_unavailable") == [(0, 3)]
    node.hear(LsDown(2, message(5, mtype=3, gid=1)), A, SUBNET)  # 4 was the middle of that unit
    node.wait(3 * SECOND)
    assert node.told("gap_unavailable") == [(0, 3), (4, 5)]
    assert node.texts() == []  # a unit with a hole does not surface
    node.hear(LsDown(2, message(6)), A, SUBNET)
    assert node.texts() == [b"m6"]
    assert not node.of(LsAsk)


def test_hg_15_with_repair_a_neighbour_is_asked_and_asks_on() -> None:
    node = Bench(B, ls_repair=True)
    node.hear(LsDown(2, message(2)), A, SUBNET)
    node.wait(4 * T)
    asked = node.of(LsAsk)
    assert asked[0] == (A, LsAsk(0, (B,)))
    between = Bench(A, ls_repair=True, ls_keep=1)
    for at in range(3):
        between.hear(LsDown(2, message(at)), LB, SUBNET)
    between.clear()
    while not any(to == LB for to, _ in between.of(LsAsk)):  # or by C, at random
        between.hear(LsAsk(0, (B,)), B, SUBNET)
    lb = Bench(LB, ls_repair=True)
    lb.hear(LsAsk(0, (B, A)), A, SUBNET)
    assert lb.of(LsAsk) == [(LPR, LsAsk(0, (B, A, LB)))]
    lpr = Bench(LPR, ls_repair=True)
    for at in range(3):
        lpr.hear(Bcast(message(at), at), LCR, LINE_A)
        lpr.hear(DaAck(0, at + 1, 0), LDA, LINE_A)
    lpr.hear(Response(0, 2), LB, SUBNET)
    lpr.hear(LsAsk(0, (B, A, LB)), LB, SUBNET)
    data = lpr.of(LsData)
    assert [(to, pdu.message.gseq, pdu.path) for to, pdu in data] == [
        (LB, 0, (B, A)), (LB, 1, (B, A)),  # what was not flooded yet comes by itself
    ]  # fmt: skip
    lb.hear(data[0][1], LPR, SUBNET)
    assert lb.of(LsData)[0][0] == A
    between.clear()
    between.hear(lb.of(LsData)[0][1], LB, SUBNET)
    assert [to for to, _ in between.of(LsData)] == [B]
    node.hear(between.of(LsData)[0][1], A, SUBNET)
    assert node.texts() == [b"m0"]
    node.hear(LsData(2, message(1), ()), A, SUBNET)
    assert node.texts() == [b"m0", b"m1", b"m2"]


def test_hg_15_a_node_keeps_only_so_much_behind_a_gap() -> None:
    node = Bench(B, ls_held=3)
    for at in range(1, 5):
        node.hear(LsDown(2, message(at)), A, SUBNET)
    assert node.told("gap_unavailable") == [(0, 1)]  # no room to wait for it
    assert node.texts() == [b"m1", b"m2", b"m3", b"m4"]
    patient = Bench(B, ls_held=3, ls_repair=True)
    for at in range(1, 9):
        patient.hear(LsDown(2, message(at)), A, SUBNET)
    assert patient.site.usage()["ls_held"] == 3
    patient.hear(LsData(2, message(0), ()), A, SUBNET)
    assert patient.texts() == [b"m0", b"m1", b"m2", b"m3"]


def test_hg_15_every_gap_has_its_own_time() -> None:
    node = Bench(B, attempts=2)
    node.hear(LsDown(2, message(1)), A, SUBNET)
    node.hear(LsDown(2, message(3)), A, SUBNET)
    patience = 4 * T * 4
    node.wait(patience - 1)
    node.hear(LsDown(2, message(0)), A, SUBNET)
    node.wait(patience - 1)  # for the second gap
    assert node.told("gap_unavailable") == []
    node.wait(1)
    assert node.told("gap_unavailable") == [(2, 3)]


def test_hg_15_questions_and_answers_come_over_links_only() -> None:
    node = Bench(A, ls_repair=True)
    node.hear(LsDown(2, message(0)), LB, SUBNET)
    node.clear()
    node.hear(LsAsk(0, (U,)), U, SUBNET)
    node.hear(LsAsk(0, (C,)), B, SUBNET)  # not what it seems
    node.hear(LsAsk(1, (B,)), B, SUBNET)  # nothing newer here
    node.hear(LsData(2, message(1), ()), U, SUBNET)
    assert not node.of(LsData)
    assert not node.of(LsAsk)
    assert node.texts() == [b"m0"]
    node.hear(LsAsk(0, (B,)), B, SUBNET)
    assert [to for to, _ in node.of(LsData)] == [B]


# -- the rest ---------------------------------------------------------------------------------


def test_a_node_of_the_second_kind_sends_units() -> None:
    # GR-19, HG-14: part by part, each when the one before has come down.
    node = Bench(B, max_payload=10, unit_bytes=20)
    node.site.submit_unit([b"one"], node.now)
    node.site.submit_unit([b"start", b"middle", b"end"], node.now)
    with pytest.raises(PayloadTooLarge, match="unit_bytes = 20"):
        node.site.submit_unit([bytes(9)] * 3, node.now)
    with pytest.raises(UsageError, match="an empty bundle"):
        node.site.submit(Bundle((), b""), node.now)
    for at in range(4):
        node.wait(2 * T)
        pdu = node.of(LsUp)[-1][1]
        assert pdu.sseq == at
        down = message(
            at, B, sseq=at, mtype=pdu.mtype, gid=pdu.gid, bundle=pdu.bundle
        )  # fmt: skip
        node.hear(LsDown(1, down), A, SUBNET)
    assert node.texts() == [b"one", b"start", b"middle", b"end"]
    assert [one.seq for one in node.deliveries] == [0, 3]
    assert node.told("stable") == [(0, 1, 0), (1, 2, 1), (2, 3, 2), (3, 4, 3)]


def test_users_of_the_first_kind_ask_for_the_past_as_in_grsb() -> None:
    user = Bench(U)
    assert user.site.inc == 1
    number = user.site.history(EVERYTHING, user.now)
    user.collect()
    assert user.told("replayed") == [(number, 0)]
    user.site.select(Selection(frozenset((7,))), user.now)
    for at, conference in enumerate((7, 8, 7)):
        user.hear(Bcast(message(at, conference=conference), at), LCR, LINE_A)
    user.hear(DaAck(0, 3, 0), LDA, LINE_A)
    assert user.texts() == [b"m0", b"m2"]


def test_a_gpr_that_others_refuse_waits_for_the_word_of_the_gcr() -> None:
    # HG-3: it lacks what was let go; that is no loss.
    gpr = Bench(GPR, gpr_free=True)
    gpr.hear(Bcast(message(7), 7), GCR, TRUNK)
    gpr.hear(DaAck(0, 8, 0), GDA, TRUNK)
    gpr.wait(SECOND)
    for source in (GDA, GCR):
        gpr.hear(Recovered(0, 5, ()), source, TRUNK)
    assert gpr.told("gap_unavailable") == []
    gpr.hear(Galive(0, 8, 0, 0, 5), GCR, TRUNK)
    for at in (5, 6):
        gpr.hear(Recovered(at, at + 1, (message(at),)), GDA, TRUNK)
    assert gpr.stable.globe.positions == [5, 6, 7]
    kept = Bench(GPR)
    kept.hear(Bcast(message(7), 7), GCR, TRUNK)
    kept.hear(DaAck(0, 8, 0), GDA, TRUNK)
    kept.wait(SECOND)
    for source in (GDA, GCR):
        kept.hear(Recovered(0, 5, ()), source, TRUNK)
    assert kept.told("gap_unavailable") == [(0, 5)]


def test_a_node_gives_up_the_oldest_flood_rather_than_grow() -> None:
    node = Bench(B, attempts=1000)
    for at in range(FLOODS_MAX * 2 + 20):
        node.hear(LsDown(2, message(at)), A, SUBNET)
    assert node.site.usage()["ls_waiting"] == FLOODS_MAX * 2
    assert node.site.node is not None
    assert len(node.site.node.flood.sent) == FLOODS_MAX * 2


def test_an_abort_record_does_not_end_the_submission_behind_it() -> None:
    # GR-19: the GCR puts it before the first message of a sender that started again.
    lcr = Bench(LCR)
    lcr.hear(submit(inc=2), U, LINE_A)
    lcr.hear(Gbcast(0, message(0, U, mtype=ABORT, inc=2, sseq=0), 1), GCR, TRUNK)
    lcr.clear()
    lcr.wait(lcr.config.trunk_ns)
    assert [pdu.origin for _, pdu in lcr.of(Up)] == [U]


def test_a_site_takes_only_what_its_lines_bring() -> None:
    lcr = Bench(LCR)
    lcr.hear(submit(), U2, LINE_A)  # of another network
    lcr.hear(Gbcast(2, message(0), 1), LCR2, TRUNK)  # not a GCR
    lcr.hear(submit(), U, 7)
    node = Bench(B)
    node.hear(LsDown(2, message(0)), LB, SUBNET)  # not a neighbour
    assert lcr.sends == [] or not lcr.of(Up)
    assert node.texts() == []
    assert lcr.site.drops == {"of another network": 1, "not a retransmitter": 1, "line": 1}


def test_an_lda_answers_polls_of_nobody_and_a_stale_gcr_nothing() -> None:
    lda = Bench(LDA)
    lda.hear(Poll(3), LPR, LINE_A)
    lda.hear(Galive(24, 0, 0, 0, 0), GCR2, TRUNK)
    lda.clear()
    lda.hear(Bcast(message(0), 0), LCR, LINE_A)
    lda.hear(Galive(0, 5, 0, 0, 0), GCR, TRUNK)
    assert {to for to, _ in lda.of(AckLcr)} == {GCR2}


def test_nodes_of_the_second_kind_filter_too_and_have_limits() -> None:
    node = Bench(B, own_limit=2, max_payload=10)
    node.site.select(Selection(frozenset((7,))), node.now)
    node.hear(LsDown(2, message(0)), A, SUBNET)
    node.hear(LsDown(2, message(1, conference=7)), A, SUBNET)
    assert node.texts() == [b"m1"]
    with pytest.raises(PayloadTooLarge, match="max_payload = 10"):
        node.site.submit(Bundle.of(bytes(11)), node.now)
    for _ in range(3):
        node.site.submit(Bundle.of(b"x"), node.now)
    with pytest.raises(QueueFull, match="own_limit = 2"):
        node.site.submit(Bundle.of(b"x"), node.now)
    with pytest.raises(UsageError, match="no recorder at hand"):
        node.site.history(EVERYTHING, node.now)
    with pytest.raises(UsageError, match="is no user"):
        Bench(LB).site.submit(Bundle.of(b"x"), 0)


def test_the_diameter_and_the_checks_of_a_topology() -> None:
    assert diameter(NETWORKS[0].edges) == 2
    assert diameter(()) == 0
    first = NETWORKS[0]

    def wrong(**given: Any) -> str:
        network = structs.replace(first, **given)
        with pytest.raises(ConfigError) as caught:
            Topology(
                sites=21, gcr=(GCR,), gda=(GDA,), gpr=(GPR,), networks=(network, *NETWORKS[1:])
            ).check()
        return caught.value.field

    assert wrong(edges=((LB, A), (B, C))) == "edges"  # in two parts
    assert wrong(edges=((LB, U), (U, A))) == "edges"  # a user is attached
    assert wrong(broadcaster=-1) == "broadcaster"
    assert wrong(net=2) == "net"
    assert wrong(users=(U2,)) == "networks"
    assert wrong(acknowledgers=(LCR,)) == "acknowledgers"
    with pytest.raises(ConfigError, match="gda"):
        Topology(sites=21, gcr=(GCR,), gda=(GCR,), gpr=(GPR,), networks=NETWORKS).check()


@pytest.mark.parametrize(
    "given", [{"ack_mode": "some"}, {"delivery": "fast"}, {"cold_start": True}, {"link_ns": 0}]
)
def test_a_configuration_is_checked(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        WideConfig(**given).check()
    assert caught.value.field in given
    assert WideConfig.fast().check().bundle


def test_records_of_the_levels_are_kept_apart() -> None:
    stable = WideStable()
    stable.apply(Kept(0, Freed(4)))
    assert (stable.globe.freed, stable.globe.end) == (4, 4)
    with pytest.raises(TypeError, match="not a record"):
        stable.apply(Freed(4))
    with pytest.raises(TypeError, match="not a record of a node"):
        stable.apply(Kept(2, Freed(4)))
