"""CM84, appendix: the analytical model, and what it assumes of the implementation."""

from __future__ import annotations

from math import exp, inf

import pytest

from roundelay.core import cost
from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.token.pdu import Ack, B, RetxAck, RetxMsg, RetxReq
from tests.core.ring import MS, Ring
from tests.paper.measure import T, positive_ack, token

TAUS = (0.01, 0.1, 1.0, 10.0)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("level", [1, 2, 4])
def test_acknowledgements_and_token_transfers_per_broadcast_are_y_a(level: int, tau: float) -> None:
    # Y_a = (1 − e^(−Lτ)) / (1 − e^(−τ))
    measured = token(10, level, tau=tau, messages=1200)
    assert measured.kinds["Ack"] / 1200 == pytest.approx(cost.y_a(level, tau), rel=0.04)


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("level", [1, 2])
def test_confirmations_per_broadcast_are_y_c(level: int, tau: float) -> None:
    # Y_c = e^(−Lτ): they come out only because a holder waits T before it confirms.
    measured = token(10, level, tau=tau, messages=2000)
    assert measured.kinds["Confirm"] / 2000 == pytest.approx(exp(-level * tau), abs=0.025)


def test_a_broadcast_message_is_transmitted_hardly_more_than_once() -> None:
    # n_b = 1: no repetition while token transfers are heard, and the token moves on to a site
    # that has the message.
    for sites, tau in ((10, 10.0), (10, 0.1), (30, 10.0)):
        # A lost transfer must be repeated before the sources lose patience: t_b above t_tok.
        measured = token(sites, tau=tau, loss=0.1, messages=600, resend_ns=T + T // 10)
        assert measured.kinds["B"] / 600 < 1.15


def test_a_site_never_loses_the_messages_it_transmits() -> None:
    measured = token(3, tau=1.0, loss=0.3, messages=300)
    for sent in (B, Ack):
        assert measured.kinds[sent.__name__]
    ring = Ring(3, idle_ns=NEVER)
    ring.lose(B)
    ring.submit(0, "mine")  # 0 has the token: it stamps its own message though nobody hears it
    assert ring.stamped_by(0) == ["mine"]


def test_a_rebroadcast_acknowledgement_does_not_replace_a_request() -> None:
    # A site that has seen a higher timestamp requests what it misses, at once.
    ring = Ring(4, bundle=False, request_delay_ns=0, idle_ns=NEVER)
    ring.lose(lambda pdu: isinstance(pdu, Ack) and pdu.ts == 0, dst=3)
    ring.submit(2, "a", "b")
    ring.settle()
    assert [pdu.ts for pdu in ring.pdus(RetxReq, src=3)] == [0]


def test_retransmissions_are_point_to_point() -> None:
    ring = Ring(4, request_delay_ns=0, idle_ns=NEVER)
    ring.lose(B, dst=3, times=1)
    ring.lose(Ack, dst=2, times=1)
    ring.submit(1, "x")
    ring.run(300 * MS)
    answers = [sent for sent in ring.sent if isinstance(sent.pdu, (RetxAck, RetxMsg))]
    assert answers
    assert all(sent.dst != EVERYONE for sent in answers)


@pytest.mark.parametrize("sites", [3, 10, 30])
@pytest.mark.parametrize("level", [1, 2, 4])
@pytest.mark.parametrize("tau", TAUS)
def test_without_loss_x_p_is_one_plus_acknowledgements_plus_confirmations(
    sites: int, level: int, tau: float
) -> None:
    closed = 1 + (1 - exp(-(level + 1) * tau)) / (1 - exp(-tau))
    assert cost.x_p_token(sites, level, tau, 0.0) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("level", [1, 2, 4])
def test_the_limits_of_x_p_are_2_and_2_plus_l(level: int) -> None:
    assert cost.x_p_token(10, level, 1e3, 0.0) == pytest.approx(2)
    assert cost.x_p_token(10, level, 1e-9, 0.0) == pytest.approx(2 + level)


def test_there_are_fewer_messages_when_the_system_is_busy_than_when_it_is_idle() -> None:
    for level in (1, 2, 4):
        for loss in (0.0, 0.05, 0.2):
            last = inf
            for tau in TAUS:
                assert cost.x_p_token(10, level, tau, loss) < last
                last = cost.x_p_token(10, level, tau, loss)


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("sites", [3, 10, 30])
def test_x_b_in_its_two_forms(sites: int, loss: float) -> None:
    closed = 1 + (sites - 1) * (1 + loss - loss**2) / (1 - loss) ** 2
    assert cost.x_b_positive_ack(sites, loss) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize("tau", [0.1, 10.0])
def test_without_errors_positive_acknowledgement_needs_n_messages_however_busy(tau: float) -> None:
    assert positive_ack(10, tau=tau, messages=100).per_message == 10
    assert cost.x_b_positive_ack(10, 0.0) == 10


@pytest.mark.parametrize("sites, loss", [(3, 0.05), (10, 0.05), (10, 0.1), (10, 0.2), (30, 0.1)])
def test_positive_acknowledgement_tracks_x_b(sites: int, loss: float) -> None:
    measured = positive_ack(sites, loss=loss, messages=2000)
    assert measured.per_message == pytest.approx(cost.x_b_positive_ack(sites, loss), rel=0.02)


@pytest.mark.parametrize("loss", [0.05, 0.1, 0.2])
def test_a_repaired_loss_costs_n_r_messages(loss: float) -> None:
    # n_r = 1/(1 − P_e)² requests and 1/(1 − P_e) answers; some answers are given twice, or
    # without a request.
    assert cost.n_r(loss) == pytest.approx((2 - loss) / (1 - loss) ** 2)
    measured = token(10, tau=0.1, loss=loss, messages=1000)
    requests = measured.kinds["RetxReq"]
    answers = measured.kinds["RetxAck"] + measured.kinds["RetxMsg"]
    expected = cost.n_requests(loss) / cost.n_a(loss)
    assert requests / answers == pytest.approx(expected, rel=0.12)
