"""The rules of GRSB, GR-1 … GR-28, one by one, on single sites fed by hand."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import pytest
from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, EVERYONE, MS, NEVER, SECOND, STAMPED, Pdu
from roundelay.core.errors import ConfigError, PayloadTooLarge, QueueFull, Refused, UsageError
from roundelay.core.grsb.checks import beginning
from roundelay.core.grsb.config import FAILSAFE, FAST, GrsbConfig, Roles
from roundelay.core.grsb.pdu import (
    ABORT,
    ACCEPT,
    BLANK,
    CREDIT,
    DONE,
    DUAL,
    END,
    GAP,
    INSTALL,
    LINE_A,
    LINE_B,
    MIDDLE,
    NO_STATE,
    NOT_RECORDED,
    OF_ACKNOWLEDGER,
    PREPARE,
    REFUSED,
    REJOIN,
    SINGLE,
    SINGLE_LINE,
    STABLE,
    START,
    Alive,
    Bcast,
    Counter,
    DaAck,
    Grant,
    Message,
    Poll,
    PollOk,
    Recover,
    Recovered,
    ReplayData,
    ReplayEnd,
    ReplayReq,
    Slow,
    Stale,
    State,
    Submit,
    SubmitAck,
    Takeover,
)
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Accepted, GrsbStable, Handled, Promised, Stored
from roundelay.core.grsb.units import Units
from roundelay.core.grsb.user import SUBMISSIONS_MAX
from roundelay.core.selection import EVERYTHING, Selection

P = TypeVar("P", bound=Pdu)

ROLES = Roles.profile(FAILSAFE, 10)
CR, CR2, DA, DA2, PR, PR2, U, V, W, X = range(10)


class Bench:
    """One site, and all that came out of it."""

    def __init__(self, me: int, config: GrsbConfig | None = None, **given: Any) -> None:
        self.config = config or GrsbConfig()
        self.now = 0
        self.sends: list[tuple[int, Pdu, int]] = []
        self.persists: list[Any] = []
        self.deliveries: list[Any] = []
        self.notices: list[Any] = []
        self.stable = given.pop("stable", None)
        self.archive = self.stable or GrsbStable()
        roles = given.pop("roles", ROLES)
        self.site = GrsbSite(
            me, roles, self.config, Random(1), stable=self.stable, archive=self.archive, **given
        )
        self.collect()

    def collect(self) -> list[tuple[int, Pdu, int]]:
        out = self.site.take()
        for record in out.persists:
            self.archive.apply(record)
        self.persists += out.persists
        self.sends += out.sends
        self.deliveries += out.deliveries
        self.notices += out.notices
        return out.sends

    def hear(self, pdu: Pdu, source: int, line: int = LINE_A) -> list[tuple[int, Pdu, int]]:
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

    def of(self, kind: type[P]) -> list[P]:
        return [pdu for _, pdu, _ in self.sends if isinstance(pdu, kind)]

    def clear(self) -> None:
        self.sends.clear()

    def texts(self) -> list[bytes]:
        return [data for one in self.deliveries for data in one.bundle]

    def told(self) -> list[tuple[str, tuple[object, ...]]]:
        return [(notice.kind, notice.info) for notice in self.notices]


def message(gseq: int, text: bytes | None = None, **given: Any) -> Message:
    fields: dict[str, Any] = {
        "epoch": 0, "gseq": gseq, "time": 1000 + gseq, "sender": U, "inc": 1, "sseq": gseq,
        "conference": 0, "mtype": SINGLE, "gid": 0, "kind": 0,
        "bundle": Bundle.of(b"m%d" % gseq if text is None else text),
    }  # fmt: skip
    return Message(**(fields | given))


def submit(sseq: int, inc: int = 1, text: bytes = b"x", mtype: int = SINGLE) -> Submit:
    return Submit(inc, sseq, 7, mtype, 1, 0, b"", Bundle.of(text))


def alive(top: int, epoch: int = 0, start: int = 0, da: int = DA, mode: int = DUAL) -> Alive:
    return Alive(epoch, start, top, top, 0, 5000, mode, da)


# -- submission and broadcast ------------------------------------------------------------------


def test_gr_1_one_submission_is_under_way_and_repeated_until_acknowledged() -> None:
    bench = Bench(U, inc=4)
    for text in (b"a", b"b"):
        bench.site.submit(Bundle.of(text), bench.now)
    bench.collect()
    bench.wait(450 * MS)
    assert [pdu.sseq for pdu in bench.of(Submit)] == [0, 0, 0]
    assert {dst for dst, pdu, _ in bench.sends} == {CR}
    bench.hear(SubmitAck(3, 0, STABLE, 9), CR)  # of an earlier start
    bench.hear(SubmitAck(4, 1, STABLE, 9), CR)  # not under way
    bench.clear()
    bench.hear(SubmitAck(4, 0, STABLE, 17), CR)
    (again,) = bench.of(Submit)
    assert (again.inc, again.sseq, again.bundle.data) == (4, 1, b"b")
    assert bench.told() == [("stable", (0, 1, 17))]


def test_gr_1_a_submission_that_cannot_be_is_refused_with_the_reason() -> None:
    bench = Bench(U, GrsbConfig(own_limit=2, max_payload=4, unit_bytes=8))
    user = bench.site.user
    assert user is not None
    with pytest.raises(PayloadTooLarge, match="max_payload = 4"):
        user.submit(Bundle.of(b"12345"), 0)
    with pytest.raises(PayloadTooLarge, match="unit_bytes = 8"):
        GrsbSite(U, ROLES, GrsbConfig(unit_bytes=8), Random(1)).user.submit_unit([b"12345"] * 2, 0)  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="empty bundle"):
        user.submit(Bundle((), b""), 0)
    for _ in range(3):
        user.submit(Bundle.of(b"1"), 0)
    with pytest.raises(QueueFull, match="own_limit = 2"):
        user.submit(Bundle.of(b"1"), 0)


def test_gr_2_known_numbers_are_answered_again_and_later_ones_ignored() -> None:
    bench = Bench(CR)
    bench.hear(submit(1), U)
    assert not bench.of(Bcast)
    bench.hear(submit(0), U)
    (first,) = bench.of(Bcast)
    bench.hear(submit(0), U)  # repeated while under way
    assert len(bench.of(Bcast)) == 1
    bench.hear(DaAck(0, 1, 0), DA, LINE_B)
    bench.hear(submit(0), U)
    assert bench.of(SubmitAck) == [SubmitAck(1, 0, STABLE, 0)] * 2
    bench.hear(submit(1), U)
    assert [pdu.message.sseq for pdu in bench.of(Bcast)] == [0, 1]
    bench.hear(submit(5, inc=0), U)
    assert bench.site.drops["submission of an earlier start"] == 1
    assert first.message.sender == U


def test_gr_2_a_late_copy_of_an_earlier_start_takes_no_waiting_submission_away() -> None:
    bench = Bench(CR)
    bench.hear(submit(0), V)  # under way: what follows waits
    bench.hear(submit(0, inc=2, text=b"new"), U)
    bench.hear(submit(0, inc=1, text=b"old"), U)
    assert bench.site.drops["submission of an earlier start"] == 1
    bench.hear(DaAck(0, 1, 0), DA, LINE_B)
    assert bench.of(Bcast)[-1].message.bundle.data == b"new"


def test_gr_2_a_submission_that_is_not_admitted_does_not_use_up_its_number() -> None:
    # The place of the Security Controller: a hook that sees ticket and sender.
    bench = Bench(CR, admit=lambda one, sender: one.bundle.data != b"no")
    bench.hear(submit(0, text=b"no"), U)
    assert bench.of(SubmitAck) == [SubmitAck(1, 0, REFUSED, 0)]
    bench.hear(submit(0, text=b"yes"), U)
    assert [pdu.message.bundle.data for pdu in bench.of(Bcast)] == [b"yes"]


def test_gr_3_dates_rise_though_the_clock_stands_still() -> None:
    bench = Bench(CR, GrsbConfig(window=9), base_us=77)
    for i in range(3):
        bench.hear(submit(i), U)
    assert [pdu.message.time for pdu in bench.of(Bcast)] == [77, 78, 79]
    assert [pdu.message.gseq for pdu in bench.of(Bcast)] == [0, 1, 2]


def test_gr_4_the_next_broadcast_waits_for_the_acknowledgement() -> None:
    bench = Bench(CR)
    bench.hear(submit(0), U)
    bench.hear(submit(0), V)
    bench.wait(120 * MS)
    assert [pdu.message.gseq for pdu in bench.of(Bcast)] == [0, 0, 0]
    bench.clear()
    bench.hear(DaAck(0, 1, 0), DA, LINE_B)
    (second,) = bench.of(Bcast)
    assert (second.message.gseq, second.acked) == (1, 1)
    assert all(line == LINE_B for _, pdu, line in bench.sends if isinstance(pdu, Bcast))


def test_gr_4_an_acknowledgement_of_somebody_else_or_another_epoch_counts_nothing() -> None:
    bench = Bench(CR)
    bench.hear(submit(0), U)
    bench.hear(DaAck(0, 1, 0), DA2, LINE_B)
    bench.hear(DaAck(6, 1, 0), DA, LINE_B)
    bench.hear(DaAck(0, 9, 0), DA, LINE_B)
    assert bench.site.retransmitter is not None
    assert bench.site.retransmitter.acked == 0


def test_gr_5_the_submitter_is_answered_when_the_acknowledger_has_it() -> None:
    bench = Bench(CR)
    bench.hear(submit(0), U)
    bench.wait(40 * MS)
    assert not bench.of(SubmitAck)
    sends = bench.hear(DaAck(0, 1, 0), DA, LINE_B)
    assert (U, SubmitAck(1, 0, STABLE, 0), LINE_A) in sends


def test_gr_6_signs_of_life_while_there_is_nothing_to_say() -> None:
    bench = Bench(CR)
    bench.clear()
    for _ in range(3):
        bench.wait(SECOND)
        bench.hear(DaAck(0, 0, 0), DA, LINE_B)
    lines = [line for _, pdu, line in bench.sends if isinstance(pdu, Alive)]
    assert lines == [LINE_A, LINE_B] * 3
    assert {dst for dst, pdu, _ in bench.sends} == {EVERYONE}


def test_gr_7_the_acknowledger_takes_them_in_turn() -> None:
    bench = Bench(DA)
    sends = bench.hear(Bcast(message(0), 0), CR, LINE_B)
    assert sends == [(EVERYONE, DaAck(0, 1, 0), LINE_B)]
    assert bench.hear(Bcast(message(0), 0), CR, LINE_A) == [(EVERYONE, DaAck(0, 1, 0), LINE_A)]
    sends = bench.hear(Bcast(message(3), 3), CR, LINE_B)
    assert sends == [(CR, Recover(((1, 3),)), LINE_A)]
    for gseq in (1, 2):
        bench.hear(Recovered(gseq, gseq + 1, (message(gseq),)), CR)
    sends = bench.hear(Bcast(message(3), 3), CR, LINE_B)
    assert sends == [(EVERYONE, DaAck(0, 4, 0), LINE_B)]


def test_gr_8_without_answers_first_the_line_then_the_acknowledger_is_given_up() -> None:
    bench = Bench(CR)
    bench.hear(submit(0), U)
    bench.wait(9 * 50 * MS + MS)
    assert bench.told() == [("line", ("single",))]
    assert bench.sends[-1][2] in (LINE_A, LINE_B)
    assert not bench.of(Takeover)
    bench.wait(9 * 50 * MS)
    assert {pdu.step for pdu in bench.of(Takeover)} == {PREPARE}
    asked = {dst for dst, pdu, _ in bench.sends if isinstance(pdu, Takeover)}
    assert asked == {CR2, DA, DA2, PR, PR2}  # the whole council, itself included on the spot


# -- recording ---------------------------------------------------------------------------------


def test_gr_9_a_gap_is_repaired_from_the_acknowledger_then_elsewhere() -> None:
    bench = Bench(PR)
    bench.hear(Bcast(message(0), 0), CR, LINE_B)
    bench.hear(Bcast(message(2), 2), CR, LINE_B)
    bench.wait(20 * MS)
    assert [(dst, pdu) for dst, pdu, _ in bench.sends] == [(DA, Recover(((1, 2),)))]
    bench.hear(Recovered(1, 1, ()), DA)
    bench.wait(20 * MS)
    bench.hear(Recovered(1, 1, ()), PR2)
    bench.wait(20 * MS)
    asked = [dst for dst, pdu, _ in bench.sends if isinstance(pdu, Recover)]
    assert asked == [DA, PR2, CR]
    bench.hear(Recovered(1, 2, (message(1),)), CR)
    bench.hear(DaAck(0, 3, 0), DA, LINE_B)
    assert [one.message.gseq for one in bench.persists if isinstance(one, Stored)] == [0, 1, 2]


def test_gr_9_what_nobody_has_is_left_out_and_said() -> None:
    bench = Bench(PR)
    bench.hear(alive(9), CR)
    bench.wait(20 * MS)
    for source, hi in ((DA, 5), (PR2, 0), (CR, 5)):
        bench.hear(Recovered(0, hi, ()), source)
        bench.wait(20 * MS)
    assert bench.told() == [("gap_unavailable", (0, 5))]
    assert bench.site.recorder is not None
    assert bench.site.recorder.mark == 5
    # A request that reaches into it is told so.
    bench.hear(ReplayReq(0, 0, 0, 5, (), (), (), 9), U)
    bench.wait(2 * MS)
    assert bench.of(ReplayEnd)[-1].reason == 3


def test_gr_10_of_what_the_filter_leaves_out_the_head_is_kept() -> None:
    roles = Roles(
        sites=10, retransmitters=(CR,), acknowledgers=(DA,), recorders=(PR, PR2),
        users=(U, V), filters={PR: Selection(frozenset((7,)))},
    )  # fmt: skip
    bench = Bench(PR, roles=roles)
    bench.hear(Bcast(message(0, conference=7), 0), CR)
    bench.hear(Bcast(message(1, conference=8), 1), CR)
    bench.hear(DaAck(0, 2, 0), DA)
    whole, head = (one.message for one in bench.persists if isinstance(one, Stored))
    assert whole.bundle.data == b"m0"
    assert (head.is_head, head.end, head.conference, head.sender) == (True, 2, 8, U)
    for conferences, answers in (((7,), 1), ((8,), 0)):
        bench.clear()
        bench.hear(ReplayReq(256, 0, 0, 2, conferences, (), (), 9), U)
        bench.wait(2 * MS)
        assert len(bench.of(ReplayData)) == answers
    assert bench.of(ReplayEnd) == [
        ReplayEnd(256, 0, 1, CREDIT), ReplayEnd(256, 1, 2, NOT_RECORDED),
    ]  # fmt: skip


def test_gr_11_recorders_are_polled_before_anything_is_overwritten() -> None:
    config = GrsbConfig(da_buffer=4, overwrite_group=2, history=9)
    bench = Bench(DA, config)
    for gseq in range(4):
        bench.hear(Bcast(message(gseq), gseq), CR, LINE_B)
    polled = [(dst, pdu.upto) for dst, pdu, _ in bench.sends if isinstance(pdu, Poll)]
    assert polled == [(PR, 2), (PR2, 2)]
    bench.clear()
    bench.hear(Bcast(message(4), 4), CR, LINE_B)
    assert bench.of(DaAck) == [DaAck(0, 4, 0)]  # nothing new, but alive
    bench.hear(PollOk(3), PR)
    bench.clear()
    bench.hear(Bcast(message(4), 4), CR, LINE_B)
    assert bench.of(DaAck) == [DaAck(0, 4, 0)]  # one is not enough
    bench.hear(PollOk(2), PR2)
    bench.clear()
    bench.hear(Bcast(message(4), 4), CR, LINE_B)
    assert bench.of(DaAck) == [DaAck(0, 5, 2)]
    bench.hear(PollOk(9), PR2)
    assert bench.site.drops["recorded what was never acknowledged"] == 1


def test_gr_11_a_recorder_that_does_not_answer_is_given_up() -> None:
    config = GrsbConfig(da_buffer=4, overwrite_group=2, history=9)
    bench = Bench(DA, config)
    for gseq in range(4):
        bench.hear(Bcast(message(gseq), gseq), CR, LINE_B)
    for _ in range(12):
        bench.wait(50 * MS)
        bench.hear(PollOk(4), PR)
    assert ("suspect", (PR2,)) in bench.told()
    bench.clear()
    bench.hear(Bcast(message(4), 4), CR, LINE_B)
    assert bench.of(DaAck) == [DaAck(0, 5, 4)]


def test_gr_12_acknowledgements_are_delayed_at_a_recorders_request_and_later_no_more() -> None:
    bench = Bench(DA)
    bench.hear(Slow(2), PR)
    assert bench.hear(Bcast(message(0), 0), CR, LINE_B) == []
    assert bench.wait(19 * MS) == []
    assert bench.hear(Bcast(message(0), 0), CR, LINE_B) == [
        (EVERYONE, DaAck(0, 0, 0), LINE_B)  # not yet, but alive
    ]
    assert (EVERYONE, DaAck(0, 1, 0), LINE_B) in bench.wait(2 * MS)
    da = bench.site.acknowledger
    assert da is not None
    bench.hear(Slow(9), PR)
    assert da.delay_ns == 500 * MS
    delays = []
    for _ in range(9):
        bench.wait(2 * SECOND)
        delays.append(da.delay_ns)
    assert delays[0] == 250 * MS
    assert delays[-1] == 0


def test_gr_12_a_recorder_with_many_gaps_asks_for_mercy() -> None:
    bench = Bench(PR)
    for i in range(20):
        gseq = 2 * i + 1
        bench.hear(Bcast(message(gseq), gseq), CR, LINE_B)
        bench.hear(Recovered(gseq - 1, gseq, (message(gseq - 1),)), DA)
        bench.hear(DaAck(0, gseq + 1, 0), DA)
    assert [(dst, pdu.level) for dst, pdu, _ in bench.sends if isinstance(pdu, Slow)] == [(DA, 2)]


def test_gr_13_a_user_repairs_itself_from_recorders_alone() -> None:
    bench = Bench(U)
    bench.hear(alive(100), CR)
    bench.wait(30 * SECOND)
    assert {dst for dst, pdu, _ in bench.sends} == {PR, PR2}
    assert {type(pdu) for _, pdu, _ in bench.sends} == {ReplayReq}


# -- reception and replay ----------------------------------------------------------------------


def test_gr_14_a_gap_is_noticed_by_the_number_and_filled_from_a_recorder() -> None:
    bench = Bench(U)
    bench.hear(Bcast(message(0), 0), CR)
    bench.hear(Bcast(message(2), 2), CR)
    bench.wait(20 * MS)
    (request,) = bench.of(ReplayReq)
    assert (request.since, request.until) == (1, 2)
    bench.hear(ReplayData(request.request, 1, message(1)), PR)
    bench.hear(DaAck(0, 3, 0), DA)
    assert bench.texts() == [b"m0", b"m1", b"m2"]


@pytest.mark.parametrize(
    "sign", [DaAck(0, 1, 0), alive(1), Bcast(message(1), 1)], ids=lambda pdu: type(pdu).__name__
)
def test_gr_15_stable_delivery_waits_for_a_sign_of_the_acknowledger(sign: Pdu) -> None:
    bench = Bench(U)
    bench.hear(Bcast(message(0), 0), CR)
    assert bench.texts() == []
    bench.hear(sign, DA if isinstance(sign, DaAck) else CR)
    assert bench.texts() == [b"m0"]
    assert bench.deliveries[0].stage == COMMITTED


def test_gr_15_fast_delivery_does_not_wait_and_may_be_retracted() -> None:
    bench = Bench(U, GrsbConfig(delivery=FAST))
    bench.hear(Bcast(message(0), 0), CR)
    bench.hear(Bcast(message(1), 1), CR)
    assert bench.texts() == [b"m0", b"m1"]
    assert bench.deliveries[0].stage == STAMPED
    bench.hear(alive(1, epoch=7, start=1), CR2)
    assert bench.told() == [("retracted", (1, 2))]
    bench.hear(Bcast(message(1, b"other", epoch=7), 1), CR2)
    assert bench.texts() == [b"m0", b"m1", b"other"]


def test_gr_15_what_was_retracted_is_not_taken_for_delivered_after_a_crash() -> None:
    bench = Bench(U, GrsbConfig(delivery=FAST))
    for gseq in range(3):
        bench.hear(Bcast(message(gseq), gseq), CR)
    bench.hear(alive(1, epoch=7, start=1), CR2)
    assert bench.told() == [("retracted", (1, 3))]
    again = Bench(U, GrsbConfig(delivery=FAST), inc=2, stable=bench.archive)
    again.hear(alive(1, epoch=7, start=1), CR2)
    again.hear(Bcast(message(1, b"other", epoch=7), 1), CR2)
    assert again.texts() == [b"other"]


def test_gr_27_what_was_delivered_of_a_reign_just_before_a_crash_is_not_retracted() -> None:
    """The application knows that it has position 0; the disk must know of which epoch that is."""
    bench = Bench(U)
    bench.hear(alive(0, epoch=7), CR2)
    bench.hear(Bcast(message(0, epoch=7), 0), CR2)
    bench.hear(DaAck(7, 1, 0), DA)
    assert bench.texts() == [b"m0"]
    assert bench.archive.handled.upto == 0  # the batch might have been cut short
    again = Bench(U, inc=2, stable=bench.archive, position=1)
    again.hear(alive(1, epoch=7), CR2)
    again.hear(ReplayData(0, 0, message(0, epoch=7)), PR)  # for units that may have been open
    again.hear(Bcast(message(1, epoch=7), 1), CR2)
    again.hear(DaAck(7, 2, 0), DA)
    assert again.texts() == [b"m1"]
    assert again.told() == []


def test_gr_16_what_is_not_subscribed_only_moves_the_position() -> None:
    bench = Bench(U, selection=Selection(frozenset((7,))))
    for gseq in range(4):
        bench.hear(Bcast(message(gseq, conference=7 + gseq % 2), gseq), CR)
    bench.hear(DaAck(0, 4, 0), DA)
    assert bench.texts() == [b"m0", b"m2"]
    user = bench.site.user
    assert user is not None
    assert user.listener.next == 4
    user.select(EVERYTHING)
    bench.hear(Bcast(message(4, conference=8), 4), CR)
    bench.hear(DaAck(0, 5, 0), DA)
    assert bench.texts() == [b"m0", b"m2", b"m4"]


def test_gr_16_a_late_joiner_asks_for_the_history_of_a_conference() -> None:
    bench = Bench(U, selection=Selection(frozenset((7,))))
    for gseq in range(4):
        bench.hear(Bcast(message(gseq, conference=8), gseq), CR)
    bench.hear(DaAck(0, 4, 0), DA)
    number = bench.site.history(Selection(frozenset((8,))), bench.now)
    bench.wait(20 * MS)
    (request,) = bench.of(ReplayReq)
    assert (request.request & 255, request.conferences, request.until) == (number, (8,), 4)
    bench.hear(ReplayData(request.request, 0, message(0, conference=8)), PR)
    bench.hear(ReplayEnd(request.request, 1, 4, DONE), PR)
    assert [(one.query, one.stage) for one in bench.deliveries] == [(number, "replayed")]
    assert bench.told() == [("replayed", (number, 4))]


def recording(messages: int, **given: Any) -> Bench:
    bench = Bench(PR, **given)
    for gseq in range(messages):
        made = message(gseq, conference=gseq % 2, sender=U + gseq % 3)
        bench.hear(Bcast(made, gseq), CR)
    bench.hear(DaAck(0, messages, 0), DA)
    bench.clear()
    return bench


def test_gr_17_a_recorder_streams_the_matches_within_the_credit() -> None:
    bench = recording(30)
    bench.hear(ReplayReq(512, 0, 0, 30, (1,), (U,), (), 3), V)
    bench.wait(5 * MS)
    assert [(pdu.since, pdu.message.gseq) for pdu in bench.of(ReplayData)] == [
        (0, 3), (4, 9), (10, 15),
    ]  # fmt: skip
    assert bench.of(ReplayEnd) == [ReplayEnd(512, 16, 21, CREDIT)]
    bench.clear()
    bench.hear(ReplayReq(768, 21, 0, 40, (1,), (U,), (), 3), V)
    bench.wait(5 * MS)
    assert [pdu.message.gseq for pdu in bench.of(ReplayData)] == [21, 27]
    assert bench.of(ReplayEnd) == [ReplayEnd(768, 28, 30, DONE)]  # as far as it has recorded


def test_gr_17_from_a_date_on() -> None:
    bench = recording(30)
    bench.hear(ReplayReq(512, 0, 1025, 30, (), (), (), 32), V)
    bench.wait(5 * MS)
    assert [pdu.message.gseq for pdu in bench.of(ReplayData)] == [25, 26, 27, 28, 29]
    assert bench.of(ReplayData)[0].since == 0


def test_gr_17_answers_may_overtake_each_other_and_be_repeated() -> None:
    bench = Bench(U)
    bench.hear(alive(6), CR)
    bench.wait(20 * MS)
    request = bench.of(ReplayReq)[-1].request
    answers: list[Pdu] = [ReplayData(request, gseq, message(gseq)) for gseq in range(6)]
    for i in (3, 1, 5, 1, 0, 4, 2, 2, 0):
        bench.hear(answers[i], PR)
    assert bench.texts() == [b"m%d" % i for i in range(6)]


def test_gr_18_another_recorder_is_asked_if_one_is_silent_or_has_it_not() -> None:
    bench = Bench(U)
    bench.hear(alive(6), CR)
    bench.wait(SECOND)
    assert {dst for dst, pdu, _ in bench.sends if isinstance(pdu, ReplayReq)} == {PR, PR2}
    last = [(dst, pdu) for dst, pdu, _ in bench.sends if isinstance(pdu, ReplayReq)][-1]
    bench.clear()
    bench.hear(ReplayEnd(last[1].request, 0, 4, NOT_RECORDED), last[0])
    bench.wait(10 * MS)
    asked = [dst for dst, pdu, _ in bench.sends if isinstance(pdu, ReplayReq)]
    assert asked == [PR + PR2 - last[0]]
    # What no recorder has is left out, and said.
    request = bench.of(ReplayReq)[-1].request
    bench.hear(ReplayEnd(request, 0, 3, GAP), asked[0])
    assert bench.told() == [("gap_unavailable", (0, 3)), ("missed", (0, 3))]
    assert bench.site.user is not None
    assert bench.site.user.listener.next == 3


def test_gr_19_units_take_effect_at_their_end() -> None:
    units = Units(100)
    assert units.take(message(0, b"a", mtype=START, gid=1)) is None
    assert units.take(message(1, b"other", sender=V)) == Bundle.of(b"other")
    assert units.take(message(2, b"b", mtype=MIDDLE, gid=1)) is None
    assert units.resume(3) == 0
    assert units.take(message(3, b"c", mtype=END, gid=1)) == Bundle.of(b"a", b"b", b"c")
    assert units.resume(4) == 4
    # A new start voids an open unit, and so does a new start of the sender.
    units.take(message(4, b"a", mtype=START, gid=2))
    units.take(message(5, b"A", mtype=START, gid=3))
    assert units.take(message(6, b"b", mtype=END, gid=2)) is None
    units.take(message(7, b"", mtype=ABORT, inc=2))
    assert not units.open
    assert units.take(message(8, b"B", mtype=END, gid=3)) is None
    # What is too large never surfaces, and is not kept.
    units.take(message(9, bytes(60), mtype=START, gid=4))
    assert units.take(message(10, bytes(60), mtype=END, gid=4)) is None
    assert (units.oversized, units.open) == (1, {})


def test_gr_19_the_abort_record_comes_before_the_first_message_of_a_sender_that_sent_units() -> (
    None
):
    bench = Bench(CR, GrsbConfig(window=9))
    bench.hear(submit(0, inc=1, mtype=START), U)
    bench.hear(submit(0, inc=1), V)
    bench.hear(submit(0, inc=2), U)
    bench.hear(submit(0, inc=2), V)
    kinds = [(pdu.message.sender, pdu.message.mtype) for pdu in bench.of(Bcast)]
    assert kinds == [(U, START), (V, SINGLE), (U, ABORT), (U, SINGLE), (V, SINGLE)]


def test_gr_20_a_user_that_hears_nothing_is_down_and_refuses() -> None:
    bench = Bench(U)
    bench.wait(3500 * MS)
    assert bench.told() == [("down", ())]
    with pytest.raises(Refused, match="wait for `up`"):
        bench.site.submit(Bundle.of(b"x"), bench.now)
    bench.hear(alive(0), CR)
    assert bench.told() == [("down", ()), ("up", ())]
    bench.site.submit(Bundle.of(b"x"), bench.now)


def test_gr_21_who_reaches_retransmitter_and_recorder_needs_nobody_else() -> None:
    # Cut off from the acknowledger, and from all other users.
    bench = Bench(U)
    for gseq in range(3):
        bench.hear(Bcast(message(gseq), gseq), CR)
    bench.hear(alive(3), CR)
    assert bench.texts() == [b"m0", b"m1", b"m2"]


# -- lines and take-overs ----------------------------------------------------------------------


def test_gr_22_only_broadcasts_and_their_acknowledgements_are_on_line_b() -> None:
    bench = Bench(CR)
    bench.hear(submit(0), U)
    bench.hear(DaAck(0, 1, 0), DA, LINE_B)
    bench.hear(Recover(((0, 1),)), DA)
    lines = {(type(pdu).__name__, line) for _, pdu, line in bench.sends}
    assert lines == {
        ("Alive", LINE_A), ("Alive", LINE_B), ("Bcast", LINE_B), ("SubmitAck", LINE_A),
        ("Recovered", LINE_A),
    }  # fmt: skip


def test_gr_23_the_position_removes_what_came_on_both_lines() -> None:
    bench = Bench(U)
    for line in (LINE_A, LINE_B):
        bench.hear(Bcast(message(0), 0), CR, line)
    for line in (LINE_A, LINE_B):
        bench.hear(DaAck(0, 1, 0), DA, line)
        bench.hear(Bcast(message(0), 0), CR, line)
    assert bench.texts() == [b"m0"]


def test_gr_24_line_b_is_probed_and_taken_again_when_the_acknowledger_answers_there() -> None:
    bench = Bench(CR)
    bench.hear(submit(0), U)
    bench.wait(9 * 50 * MS + MS)
    bench.hear(DaAck(0, 1, 0), DA, LINE_A)
    bench.clear()
    for _ in range(12):
        bench.wait(SECOND)
        bench.hear(DaAck(0, 1, 0), DA, LINE_A)
    probes = [pdu for _, pdu, line in bench.sends if line == LINE_B]
    assert len(probes) in (1, 2)
    assert {pdu.mode for pdu in bench.of(Alive)} == {SINGLE_LINE}
    # The acknowledger answers a probe where it came.
    da = Bench(DA)
    assert da.hear(probes[0], CR, LINE_B) == [(EVERYONE, DaAck(0, 0, 0), LINE_B)]
    bench.hear(DaAck(0, 1, 0), DA, LINE_B)
    assert bench.told()[-1] == ("line", ("dual",))


def test_gr_25_requests_become_rarer_while_nothing_comes() -> None:
    bench = Bench(U)
    times = []
    bench.hear(alive(50), CR)
    for _ in range(12_000):
        if any(isinstance(pdu, ReplayReq) for _, pdu, _ in bench.wait(MS)):
            times.append(bench.now)
    gaps = [b - a for a, b in pairwise(times)]
    assert times[0] >= 3 * MS  # not at once, and not all at the same moment
    assert gaps[0] < 70 * MS
    assert max(gaps) >= 2 * SECOND
    assert max(gaps) <= 2.6 * SECOND
    assert sum(1 for gap in gaps if gap < 2 * MS) == 0


def test_gr_26_a_standby_listens_and_does_not_speak() -> None:
    for standby in (CR2, DA2):
        bench = Bench(standby)
        for gseq in range(3):
            bench.hear(Bcast(message(gseq), gseq), CR, LINE_B)
            bench.hear(DaAck(0, gseq + 1, 0), DA, LINE_B)
            bench.wait(SECOND)
        assert bench.sends == []


def granted(epoch: int, whose: int = BLANK, state: State = NO_STATE, step: int = PREPARE) -> Grant:
    return Grant(step, epoch, 0, CR, DA, whose, state)


def candidate(bench: Bench) -> int:
    """Wait until it wants to reign; the epoch it wants."""
    while not bench.of(Takeover):
        bench.wait(10 * MS)
    assert bench.now < 8 * SECOND
    return bench.of(Takeover)[-1].epoch


def test_gr_27_a_standby_takes_over_with_a_majority_and_the_acknowledgers_state() -> None:
    bench = Bench(CR2)
    bench.wait(5 * SECOND)
    assert bench.sends == []
    epoch = candidate(bench)
    counters = (Counter(U, 1, 5, 8, False),)
    state = State(7, 9, 4000, 0, 1, counters)
    bench.hear(granted(epoch), PR)
    bench.hear(granted(epoch), PR2)
    bench.clear()
    bench.hear(granted(epoch, OF_ACKNOWLEDGER, state), DA)  # with itself: four of six
    assert [(dst, pdu) for dst, pdu, _ in bench.sends] == [(DA, Recover(((7, 9),), epoch))]
    for gseq in (7, 8):
        bench.hear(Recovered(gseq, gseq + 1, (message(gseq, b"vanished"),)), DA)  # asked for before
        bench.hear(Recovered(gseq, gseq + 1, (message(gseq),), epoch), DA)
    install = bench.of(Takeover)[-1]
    assert (install.step, install.da, install.state.top) == (INSTALL, DA, 9)
    bench.hear(granted(epoch, step=INSTALL), DA)
    assert bench.of(Takeover)[-1].step == ACCEPT
    for member in (DA, PR):
        bench.hear(granted(epoch, step=ACCEPT), member)
    assert not bench.of(Alive)
    bench.hear(granted(epoch, step=ACCEPT), PR2)
    (announced, _) = bench.of(Alive)
    assert (announced.epoch, announced.start, announced.top) == (epoch, 9, 9)
    # It knows the senders of old: a repetition is not broadcast again.
    bench.clear()
    bench.hear(submit(4), U)
    assert bench.of(SubmitAck) == [SubmitAck(1, 4, STABLE, 8)]
    bench.hear(submit(5), U)
    (first,) = bench.of(Bcast)
    assert (first.message.gseq, first.message.epoch) == (9, epoch)
    assert first.message.time > 4000


def test_gr_27_who_answers_with_messages_that_overlap_does_not_make_a_candidate_fall() -> None:
    """It was an exception at the candidate; now they are taken one behind the other, or not."""
    two, three = Bundle.of(b"a", b"b"), Bundle.of(b"a", b"b", b"c")
    for bundle, step in ((two, INSTALL), (three, PREPARE)):
        bench = Bench(CR2)
        epoch = candidate(bench)
        for member in (PR, PR2):
            bench.hear(granted(epoch), member)
        bench.hear(granted(epoch, OF_ACKNOWLEDGER, State(7, 9, 4000)), DA)
        inside, across = message(8), message(7, bundle=bundle)
        bench.hear(Recovered(7, 9, (inside, across), epoch), DA)
        assert bench.of(Takeover)[-1].step == step


def test_gr_27_without_the_state_of_the_last_reign_there_is_no_take_over() -> None:
    bench = Bench(CR2)
    epoch = candidate(bench)
    for member in (PR, PR2, DA2, CR):
        bench.hear(granted(epoch), member)
    bench.wait(SECOND)
    assert {pdu.step for pdu in bench.of(Takeover)} == {PREPARE}
    assert not bench.of(Alive)


def test_gr_27_the_council_refuses_while_it_hears_the_retransmitter_and_promises_once() -> None:
    for member in (DA, PR):
        bench = Bench(member)
        bench.wait(10 * SECOND)
        bench.hear(alive(0), CR)
        bench.clear()
        bench.wait(2 * SECOND)
        bench.hear(Takeover(PREPARE, 7, CR2, 0, NO_STATE), CR2)
        assert bench.of(Stale) == [Stale(0, CR)]
        bench.wait(SECOND)
        bench.clear()
        bench.hear(Takeover(PREPARE, 7, CR2, 0, NO_STATE), CR2)
        (grant,) = bench.of(Grant)
        assert (grant.epoch, grant.last_epoch, grant.last_cr) == (7, 0, CR)
        assert bench.persists[-1] == Promised(7)
        bench.clear()
        bench.hear(Takeover(PREPARE, 6, CR, 0, NO_STATE), CR)
        assert bench.of(Stale) == [Stale(7, CR)]
        assert not bench.of(Grant)


def test_gr_27_after_a_promise_the_acknowledger_answers_the_old_reign_with_stale() -> None:
    bench = Bench(DA)
    bench.wait(10 * SECOND)
    bench.hear(Takeover(PREPARE, 7, CR2, 0, NO_STATE), CR2)
    bench.clear()
    bench.hear(Bcast(message(0), 0), CR, LINE_B)
    assert bench.of(Stale) == [Stale(7, CR)]
    assert not bench.of(DaAck)


def test_gr_27_promises_survive_a_crash() -> None:
    stable = GrsbStable()
    for record in (Accepted(GrsbSite(PR, ROLES, GrsbConfig(), Random(1)).reign), Promised(7)):
        stable.apply(record)
    bench = Bench(PR, stable=stable)
    bench.wait(10 * SECOND)
    bench.hear(Takeover(PREPARE, 6, CR, 0, NO_STATE), CR)
    assert bench.of(Stale) == [Stale(7, CR)]
    wiped = Bench(PR, wiped=True)
    wiped.wait(10 * SECOND)
    wiped.hear(Takeover(PREPARE, 9, CR2, 0, NO_STATE), CR2)
    assert not wiped.of(Grant)
    assert wiped.site.drops["no vote"] == 1


def test_gr_27_a_listener_drops_what_it_did_not_know_to_be_stable() -> None:
    bench = Bench(U)
    bench.hear(Bcast(message(0), 0), CR)
    bench.hear(Bcast(message(1, b"lost"), 1), CR)  # 0 is stable now, 1 is not
    bench.hear(alive(2, epoch=7, start=1), CR2)  # position 1 is taken by another message
    assert bench.texts() == [b"m0"]
    bench.wait(20 * MS)
    request = bench.of(ReplayReq)[-1]
    bench.hear(ReplayData(request.request, 1, message(1, b"kept", epoch=7)), PR)
    assert bench.texts() == [b"m0", b"kept"]
    bench.hear(Bcast(message(2), 2), CR)  # the old one has woken up
    assert bench.site.drops["old epoch"] == 1


def test_gr_28_the_reigning_retransmitter_installs_another_acknowledger() -> None:
    bench = Bench(CR)
    bench.hear(submit(0), U)
    bench.wait(2 * 9 * 50 * MS + MS)
    epoch = bench.of(Takeover)[-1].epoch
    bench.clear()
    for member in (CR2, DA2, PR):
        bench.hear(granted(epoch), member)
    (install,) = bench.of(Takeover)
    assert (install.step, install.da, install.state.safe, install.state.top) == (INSTALL, DA2, 0, 1)
    # The standby fetches what the recorders may lack, and says when it has it.
    standby = Bench(DA2)
    standby.wait(10 * SECOND)
    standby.hear(Takeover(PREPARE, epoch, CR, 0, NO_STATE), CR)
    standby.clear()
    standby.hear(install, CR)
    assert [(dst, pdu) for dst, pdu, _ in standby.sends] == [(CR, Recover(((0, 1),), epoch))]
    for dst, pdu, _ in bench.hear(standby.of(Recover)[0], DA2):
        assert dst == DA2
        standby.hear(pdu, CR)
    (ready,) = standby.of(Grant)
    assert ready.step == INSTALL
    bench.hear(ready, DA2)
    for member in (DA2, CR2, PR):
        bench.hear(granted(epoch, step=ACCEPT), member)
    assert [(pdu.epoch, pdu.da, pdu.acked) for pdu in bench.of(Alive)] == [(epoch, DA2, 1)] * 2
    standby.clear()
    standby.hear(bench.of(Alive)[0], CR, LINE_B)
    assert standby.of(DaAck) == [DaAck(epoch, 1, 0)]
    # Acknowledgements of the old one count nothing.
    bench.hear(submit(1), U)
    bench.hear(DaAck(0, 2, 0), DA, LINE_B)
    assert bench.site.retransmitter is not None
    assert bench.site.retransmitter.acked == 1


# -- the rest ----------------------------------------------------------------------------------


def test_a_user_that_restarts_goes_on_where_its_application_was() -> None:
    stable = GrsbStable()
    stable.apply(Handled(3, 1))
    bench = Bench(U, stable=stable, position=4, inc=2)
    bench.hear(alive(6), CR)
    bench.wait(20 * MS)
    request = bench.of(ReplayReq)[-1]
    assert request.since == 1  # an open unit began there
    parts = {1: START, 2: SINGLE, 3: SINGLE, 4: SINGLE, 5: END}
    for gseq, mtype in parts.items():
        made = message(gseq, mtype=mtype, gid=1)
        bench.hear(ReplayData(request.request, gseq, made), PR)
    assert [tuple(one.bundle) for one in bench.deliveries] == [(b"m4",), (b"m1", b"m5")]


def test_what_no_correct_peer_sends_is_counted_and_dropped() -> None:
    bad: list[Pdu] = [
        Bcast(message(0), 5),
        Bcast(message(0, bundle=Bundle((), b"")), 0),
        Alive(0, 5, 3, 2, 0, 0, 0, 0),
        Recover(()),
        Recover(tuple((i, i + 1) for i in range(17))),
        ReplayReq(0, 9, 0, 3, (), (), (), 1),
        ReplayData(0, 9, message(3)),
        Grant(9, 0, 0, 0, 0, 0, NO_STATE),
        Takeover(1, 0, 0, 0, State(5, 3, 0)),
        Submit(0, 0, 0, ABORT, 0, 0, b"", Bundle.of(b"")),
    ]
    for me in range(7):
        bench = Bench(me)
        bench.clear()
        for pdu in bad:
            bench.hear(pdu, CR)
        bench.hear(alive(3), 99)
        assert bench.sends == []
        assert bench.site.drops == {"malformed": len(bad) + 1}


def test_broadcasts_of_somebody_who_cannot_reign_are_dropped() -> None:
    bench = Bench(U)
    bench.hear(Bcast(message(0, epoch=50), 0), V)
    assert bench.site.reign.epoch == 0
    assert bench.site.drops == {"not a retransmitter": 1}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"history": 5}, "history"),
        ({"window": 0}, "window"),
        ({"delivery": "later"}, "delivery"),
        ({"alive_ns": 4 * SECOND}, "alive_ns"),
        ({"overwrite_group": 5000}, "overwrite_group"),
        ({"rec_burst": 500}, "rec_burst"),
        ({"repair_gap_ns": -1}, "repair_gap_ns"),
    ],
)
def test_a_wrong_parameter_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field} = "):
        GrsbConfig(**change).check()


def test_wrong_roles_are_named() -> None:
    with pytest.raises(ConfigError, match="profile = big"):
        Roles.profile("big", 9)
    with pytest.raises(ConfigError, match="sites = 6 is not allowed: 7 or more"):
        Roles.profile(FAILSAFE, 6)
    fine: dict[str, Any] = {
        "sites": 5, "retransmitters": (0,), "acknowledgers": (1,), "recorders": (2,), "users": (3,),
    }  # fmt: skip
    Roles(**fine).check()
    for field, value in (
        ("acknowledgers", (0,)), ("recorders", ()), ("users", (3, 3)), ("users", (9,)),
        ("lines", 3), ("filters", {0: EVERYTHING}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^{field} = "):
            Roles(**(fine | {field: value})).check()


def test_an_idle_user_has_one_deadline() -> None:
    bench = Bench(U)
    assert bench.site.deadline == 3500 * MS
    bench.wait(4 * SECOND)
    assert bench.site.deadline == NEVER


def test_gr_27_a_member_without_its_disk_votes_again_when_all_others_have_answered() -> None:
    bench = Bench(PR, wiped=True, inc=3)
    asked = {dst for dst, pdu, _ in bench.wait(MS) if isinstance(pdu, Takeover)}
    assert asked == {CR, CR2, DA, DA2, PR2}
    assert {(pdu.step, pdu.epoch) for pdu in bench.of(Takeover)} == {(REJOIN, 3)}
    for member in (CR, CR2, DA, DA2):
        last = 6 if member == DA else 0
        bench.hear(Grant(REJOIN, 3, last, CR, DA, BLANK, State(0, 8, 0)), member)
    bench.hear(Grant(REJOIN, 2, 0, CR, DA, BLANK, State(0, 0, 0)), PR2)  # to an earlier start
    bench.hear(Takeover(PREPARE, 9, CR2, 0, NO_STATE), CR2)
    assert not bench.of(Grant)
    bench.hear(Grant(REJOIN, 3, 0, CR, DA, BLANK, State(0, 0, 0)), PR2)
    assert bench.told() == [("voting", ())]
    bench.wait(10 * SECOND)
    bench.hear(Takeover(PREPARE, 7, CR2, 0, NO_STATE), CR2)
    assert bench.of(Stale)[-1].epoch == 8
    bench.hear(Takeover(PREPARE, 13, CR2, 0, NO_STATE), CR2)
    assert (bench.of(Grant)[-1].epoch, bench.of(Grant)[-1].last_epoch) == (13, 6)


def test_gr_27_no_epoch_is_used_twice_not_even_across_a_crash() -> None:
    stable = GrsbStable()
    stable.apply(Accepted(GrsbSite(CR2, ROLES, GrsbConfig(), Random(1)).reign))
    stable.apply(Promised(7))  # its own, before it crashed
    assert candidate(Bench(CR2, stable=stable)) > 7
    wiped = Bench(CR2, wiped=True)
    wiped.wait(60 * SECOND)
    assert {pdu.step for pdu in wiped.of(Takeover)} == {REJOIN}


def test_gr_19_of_a_unit_with_a_refused_part_nothing_more_is_sent() -> None:
    bench = Bench(U, inc=1)
    bench.site.submit_unit([b"a", b"b", b"c"], bench.now)
    bench.site.submit(Bundle.of(b"next"), bench.now)
    bench.collect()
    bench.hear(SubmitAck(1, 0, STABLE, 5), CR)
    bench.hear(SubmitAck(1, 1, REFUSED, 0), CR)
    assert bench.told() == [("stable", (0, 1, 5)), ("refused", (1, 3))]
    last = bench.of(Submit)[-1]
    assert (last.sseq, last.bundle.data, last.mtype) == (1, b"next", SINGLE)


def test_gr_1_after_very_many_submissions_the_numbers_start_over_as_another_start() -> None:
    bench = Bench(U, inc=4)
    user = bench.site.user
    assert user is not None
    user.sseq = SUBMISSIONS_MAX - 1
    for text in (b"a", b"b"):
        bench.site.submit(Bundle.of(text), bench.now)
    bench.collect()
    bench.hear(SubmitAck(4, SUBMISSIONS_MAX - 1, STABLE, 17), CR)
    assert [(pdu.inc, pdu.sseq) for pdu in bench.of(Submit)] == [(4, SUBMISSIONS_MAX - 1), (5, 0)]


def test_gr_17_with_the_credit_used_up_the_next_stretch_is_asked_for_at_once() -> None:
    recorder = recording(30)
    user = Bench(U, GrsbConfig(credit=10))
    user.hear(alive(30), CR)
    user.wait(20 * MS)
    rounds = 0
    while user.texts() != [b"m%d" % i for i in range(30)]:
        (request,) = user.of(ReplayReq)
        user.clear()
        recorder.clear()
        recorder.hear(request, U)
        recorder.wait(3 * MS)
        for _, pdu, _ in list(recorder.sends):
            user.hear(pdu, PR)
        user.wait(3 * MS)
        rounds += 1
    assert rounds == 3


def test_gr_11_an_acknowledger_that_has_no_room_for_long_says_whom_it_waits_for() -> None:
    # GR-11: also recorders that it has given up, when nobody else has what they lack.
    config = GrsbConfig(da_buffer=4, overwrite_group=1)
    bench = Bench(DA, config)
    for gseq in range(4):
        bench.hear(Bcast(message(gseq), gseq), CR, LINE_B)
    for _ in range(3 * config.attempts):  # the retransmitter repeats, the recorders are silent
        bench.hear(Bcast(message(4), 4), CR, LINE_B)
        bench.wait(config.bcast_ns)
    assert bench.of(DaAck)[-1] == DaAck(0, 4, 0)  # that may happen when one is slow
    bench.wait(config.alive_timeout_ns)
    bench.hear(Bcast(message(4), 4), CR, LINE_B)
    assert bench.site.acknowledger is not None
    assert bench.site.acknowledger.suspected == {PR, PR2}
    assert bench.of(DaAck)[-1] == DaAck(0, 4, 0, (PR, PR2))
    assert bench.told()[-1] == ("waits", (PR, PR2))
    bench.hear(PollOk(4), PR)
    bench.hear(Bcast(message(4), 4), CR, LINE_B)
    assert bench.of(DaAck)[-1] == DaAck(0, 5, 4)
    assert bench.told()[-1] == ("waits", ())


def test_who_hears_whom_the_group_waits_for_tells_its_application() -> None:
    bench = Bench(U)
    bench.hear(DaAck(0, 0, 0, (PR, 99)), DA, LINE_B)  # nobody has that number
    assert bench.told() == [("waits", (PR,))]
    bench.hear(DaAck(0, 0, 0, (PR,)), DA, LINE_B)
    bench.hear(structs.replace(alive(0), waits=(CR2,)), CR)
    assert bench.site.waits == (PR, CR2)
    bench.hear(Bcast(message(0), 0), CR, LINE_B)  # something got its place after all
    assert bench.site.waits == (PR,)
    bench.hear(alive(1, epoch=6), CR)
    assert bench.told()[-1] == ("waits", ())


def test_a_member_without_its_disk_is_heard_whatever_the_number_of_its_start() -> None:
    # Starts are numbered by the second, epochs by take-overs: neither bounds the other.
    bench = Bench(CR)
    (answer,) = bench.hear(Takeover(REJOIN, 90_000_000, 0, 0, State(0, 0, 0)), PR)
    assert isinstance(answer[1], Grant)
    assert answer[1].epoch == 90_000_000
    wiped = Bench(PR, wiped=True, inc=90_000_000)
    wiped.hear(answer[1], CR)
    assert wiped.site.council is not None
    assert wiped.site.council.answers.keys() == {CR}
    assert bench.hear(Takeover(PREPARE, 90_000_000, 0, 0, State(0, 0, 0)), CR2) == []


def test_a_user_without_a_past_begins_nowhere_that_cannot_be() -> None:
    """The first sign of life was believed as it came, before any check, and kept on disk."""
    alive = Alive(epoch=3, start=0, top=6, acked=5, recorded=4, time=0, mode=DUAL, da=1)
    assert beginning(alive) == (5, 3)
    for change in (
        {"acked": 1 << 62, "top": (1 << 62) + 1}, {"acked": 7}, {"epoch": 1 << 40}, {"start": 6},
    ):  # fmt: skip
        assert beginning(structs.replace(alive, **change)) is None
    assert beginning(Poll(3)) is None
