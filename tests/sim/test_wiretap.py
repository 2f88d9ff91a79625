"""The tap complains about what no correct member sends, and about nothing else."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.cluster.pdu import Dt, Null, Retx, Rst, SpoDt, SpoRetx, SpoStat, Stat, ToDt
from roundelay.core.engine import EVERYONE, Pdu
from roundelay.sim.network.wiretap import WireTap

A = Bundle.of(b"a")


def complaints(*pdus: Pdu, repeats: bool = True) -> list[str]:
    """The rules that these PDUs break, each sent by the member it says."""
    found: list[str] = []
    tap = WireTap(lambda rule, detail, site: found.append(rule), repeats)
    for pdu in pdus:
        sender: Any = getattr(pdu, "by", getattr(pdu, "src", 0))
        tap.sent(0, sender, EVERYONE, pdu)
    return found


def dt(src: int, seq: int, *ack: int, epoch: int = 0) -> Dt:
    return Dt(epoch, src, seq, ack, 10, A)


def spo(src: int, seq: int, dst: int, *pseq: int) -> SpoDt:
    return SpoDt(0, src, seq, (1,) * len(pseq), 10, A, dst, pseq)


def test_ordinary_traffic_is_fine() -> None:
    assert not complaints(
        dt(0, 1, 1, 1), dt(1, 1, 2, 1), Null(0, 0, 2, (2, 2), 10, NOTHING, False), dt(1, 2, 3, 2),
        Stat(0, 0, 3, (3, 3), (3, 3), (3, 3), 10, True), Retx(0, 0, 1, 1, 2), dt(1, 1, 2, 1),
        Rst(1, 0, (3, 3), 1, 0), dt(0, 1, 1, 1, epoch=1),
    )  # fmt: skip


def test_a_pdu_sent_again_is_the_same_pdu() -> None:
    assert complaints(dt(0, 1, 1, 1), dt(0, 1, 1, 2)) == ["TR-6"]


def test_in_channel_mode_nothing_is_sent_again_within_an_epoch() -> None:
    one = ToDt(0, 0, 1, (1, 1), 10, A)
    assert complaints(one, one, repeats=False) == ["TR-6"]
    assert not complaints(one, ToDt(1, 0, 1, (1, 1), 10, A), repeats=False)


def test_numbers_follow_each_other() -> None:
    assert complaints(dt(0, 1, 1, 1), dt(0, 3, 1, 1)) == ["I8"]


def test_acknowledgements_never_fall() -> None:
    assert complaints(dt(1, 1, 1, 1), dt(0, 1, 1, 2), dt(0, 2, 1, 1)) == ["I8"]


def test_nobody_acknowledges_what_was_never_sent() -> None:
    assert complaints(dt(1, 1, 1, 1), dt(0, 1, 1, 3)) == ["I8"]
    assert complaints(dt(1, 1, 1, 1), Stat(0, 0, 1, (1, 1), (1, 3), (1, 3), 10, True)) == ["I8"]


def test_a_member_asks_only_for_what_was_meant_for_it() -> None:
    both = (spo(0, 1, 0b010, 1, 1, 1), spo(0, 2, 0b100, 1, 2, 1))
    assert not complaints(*both, SpoRetx(0, 1, 0, 1, 1), SpoRetx(0, 2, 0, 1, 1))
    assert complaints(*both, SpoRetx(0, 1, 0, 1, 2)) == ["I8"]
    assert complaints(both[0], SpoRetx(0, 1, 0, 2, 2)) == ["I8"]
    assert "I8" in complaints(SpoRetx(0, 2, 0, 1, 1))
    assert complaints(dt(0, 1, 1, 1), Retx(0, 1, 0, 2, 2)) == ["I8"]


def test_a_member_that_is_never_addressed_asks_for_no_repair() -> None:
    one = spo(0, 1, 0b010, 1, 1, 1)
    poll = {k: SpoStat(0, k, 1, (1,) * 3, (1,) * 3, (1,) * 3, 10, True) for k in range(3)}
    assert complaints(one, poll[2]) == ["SPO-T7"]
    assert complaints(one, SpoRetx(0, 2, 0, 1, 1)) == ["I8", "SPO-T7"]
    assert not complaints(one, poll[0], poll[1], structs.replace(poll[2], poll=False))
    assert not complaints(one, spo(1, 1, 0b100, 1, 1, 1), poll[2])


def test_requests_are_counted_by_site() -> None:
    tap = WireTap(lambda rule, detail, site: None)
    tap.sent(0, 7, 0, Retx(0, 1, 0, 1, 1))
    assert tap.asked == {7: 1}
