"""What Nakamura and Takizawa claim of the TO and PO protocols, claim by claim.

Each test ends with a comment naming the section.  Where the paper has to be corrected to hold, the
test says so; docs/cluster.md lists all deviations.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import EAGER, ClusterConfig
from roundelay.core.cluster.pdu import Dt, Null, Retx, ToDt, ToNull, ToRst
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import ACKNOWLEDGED, EVERYONE
from tests.core.cluster_net import MS, Net, Watcher, alone, pdu, sends, text, watched

ALL = [PoSite, ToSite, ToChannelSite]
TOTAL = [ToSite, ToChannelSite]


def busy_run(kind: type[Any], loss: float = 0.15, seed: int = 1, sites: int = 4) -> Net:
    """Everybody sends, copies get lost, and the network falls silent again."""
    net = Net(kind, sites, loss=loss, jitter_ns=8 * MS, seed=seed)
    Watcher(net)
    for k in range(40):
        net.submit(k % sites, f"{k}")
        net.run(6 * MS)
    net.settle()
    return net


def isolated(kind: type[Any], sites: int, **changes: Any) -> Net:
    net = Net(kind, sites, ack_ns=0, stat_ns=10_000 * MS, **changes)
    net.submit(0, "p")
    net.settle()
    return net


def submit(site: Any, *messages: str) -> None:
    for message in messages:
        site.submit(Bundle.of(message.encode()), 0)


# -- 1, 2: the services ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOTAL)
def test_under_to_every_entity_receives_all_messages_in_the_same_order(kind: type[Any]) -> None:
    net = busy_run(watched(kind))
    assert net.log(0) == net.log(1) == net.log(2) == net.log(3)
    assert len(net.log(0)) == 40
    # §1, §2


def test_under_po_every_entity_receives_the_messages_of_one_entity_in_the_same_order() -> None:
    net = busy_run(watched(PoSite))
    for source in net.group:
        sent = [message for origin, message, _ in net.submitted if origin == source]
        assert all(net.log(site, source) == sent for site in net.group)
    # §1, §2


@pytest.mark.parametrize("kind", ALL)
def test_each_entity_decides_correct_receipt_by_itself(kind: type[Any]) -> None:
    """A twin that is shown what a member received, and when, comes to the same decisions."""
    shown: dict[int, list[tuple[Any, ...]]] = defaultdict(list)

    class Shown(kind):  # type: ignore[misc]
        def receive(self, pdu: Any, source: int, now: int, *given: int) -> None:
            shown[self.me].append(("receive", pdu, source, now))
            super().receive(pdu, source, now)

        def on_timer(self, now: int) -> None:
            shown[self.me].append(("on_timer", now))
            super().on_timer(now)

        def submit(self, bundle: Bundle, now: int) -> None:
            shown[self.me].append(("submit", bundle, now))
            super().submit(bundle, now)

    net = Net(Shown, 3, loss=0.1, seed=2)
    for k in range(12):
        net.submit(k % 3, f"{k}")
        net.run(6 * MS)
    net.settle()
    for me in net.group:
        twin = kind(me, net.group, net.config, Random(f"2/{me}"))
        decided = []
        for verb, *arguments in shown[me]:
            getattr(twin, verb)(*arguments)
            decided += [text(delivery.bundle) for delivery in twin.take().deliveries]
        assert decided == net.log(me)
    # §2


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_pre_acknowledged_means_that_every_destination_has_received_it(
    kind: type[Any], seed: int
) -> None:
    """The watcher compares each step with what the others hold."""
    net = busy_run(watched(kind), loss=0.05 + 0.1 * seed, seed=seed)
    assert net[0].watcher.stages["preacknowledged"] > 0
    # §2, definition, (2)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_means_that_every_destination_knows_that(kind: type[Any], seed: int) -> None:
    net = busy_run(watched(kind), loss=0.05 + 0.1 * seed, seed=10 + seed)
    assert net[0].watcher.stages["acknowledged"] >= 40 * 4
    # §2, definition, (3)


@pytest.mark.parametrize("kind", ALL)
def test_an_entity_receives_the_pdus_that_it_broadcasts_itself(kind: type[Any]) -> None:
    net = busy_run(watched(kind))
    for site in net.group:
        own = [message for origin, message, _ in net.submitted if origin == site]
        assert net.log(site, site) == own
    # §2, assumption


def test_a_cluster_has_more_than_two_entities_and_two_will_do() -> None:
    for sites in (2, 3, 12):
        for kind in ALL:
            net = Net(kind, sites)
            net.submit(0, "p")
            net.settle()
            net.check()
    # §2: n > 2 there; the other paper has n ≥ 2


def test_on_one_channel_everybody_sees_the_same_sequence_but_for_what_is_lost() -> None:
    """The service TO starts from, as the tests' bus provides it."""
    seen: dict[int, list[Any]] = defaultdict(list)

    class Seen(ToChannelSite):
        def receive(self, pdu: Any, source: int, now: int, *given: int) -> None:
            seen[self.me].append(pdu)
            super().receive(pdu, source, now)

    net = Net(Seen, 3, loss=0.2, seed=3)
    for k in range(10):
        net.submit(k % 3, f"{k}")
        net.run(5 * MS)
    net.settle()
    channel = [sent.pdu for sent in net.sent]
    for log in seen.values():
        places = iter(channel)
        assert all(any(arrived is sent for sent in places) for arrived in log)
        assert len(log) < len(channel)
    # §2, definition of 1C


def test_on_several_channels_only_the_sequence_of_one_sender_is_the_same() -> None:
    seen: dict[int, list[Any]] = defaultdict(list)

    class Seen(PoSite):
        def receive(self, pdu: Any, source: int, now: int, *given: int) -> None:
            seen[self.me].append(pdu)
            super().receive(pdu, source, now)

    net = Net(Seen, 4, jitter_ns=10 * MS, seed=3)
    for k in range(12):
        net.submit(k % 4, f"{k}")
        net.run(MS)
    net.settle()
    for source in range(4):
        sequences = [
            [p for p in log if p.src == source] for me, log in seen.items() if me != source
        ]
        assert sequences[0] == sequences[1] == sequences[2]
    of_two = [[p for p in seen[me] if p.src in (0, 1)] for me in (2, 3)]
    assert of_two[0] != of_two[1]
    # §2, definition of MC


# -- 3: logs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_receipt_logs_are_legal(kind: type[Any]) -> None:
    """What a sender sent earlier, every member accepted earlier."""
    accepted: dict[int, list[Any]] = defaultdict(list)

    class Noted(kind):  # type: ignore[misc]
        def accept(self, pdu: Any, now: int) -> None:
            accepted[self.me].append(pdu)
            super().accept(pdu, now)

    net = Net(Noted, 4, loss=0.2, jitter_ns=8 * MS, seed=4)
    for k in range(30):
        net.submit(k % 4, f"{k}")
        net.run(4 * MS)
    net.settle()
    for log in accepted.values():
        for source in range(4):
            numbers = [(p.epoch, p.seq) for p in log if p.src == source]
            assert numbers == sorted(set(numbers))
    # §3, definition of a legal log


def test_a_receipt_log_is_three_stretches_one_after_the_other() -> None:
    """Acknowledged, pre-acknowledged, received: at every moment, for every source."""

    class Looked(PoSite):
        def advance(self, now: int) -> None:
            super().advance(now)
            for j in self.everyone:
                done = [d.number for d in self.out.deliveries if d.source == j]
                numbers = done + [p.seq for p in (*self.prl[j], *self.rrl[j])]
                assert numbers == sorted(set(numbers))
                assert all(p.seq < min(self.al[j]) for p in self.prl[j])
                assert all(p.seq >= min(self.al[j]) for p in self.rrl[j])
                assert all(p.seq >= min(self.pal[j]) for p in self.prl[j])

    net = busy_run(watched(Looked))
    net.check()
    # §3, §5


def test_logs_agree_up_to_the_failure_point_and_to_goes_back_to_it() -> None:
    """What stands before it is delivered as it stands, what stands behind is sent again."""
    net = Net(ToChannelSite, 3)
    net.submit(0, "a", "b")
    net.run(3 * MS)
    lost = net.lose(ToDt, dst=2, times=1)
    net.submit(1, "c", "d")
    net.run_until(lambda: net[2].rst == 1)
    (c,) = lost.lost
    assert text(c.pdu.bundle) == "c"
    logs = [[text(p.bundle) for p in site.in_logs() if p.bundle.sizes] for site in net]
    assert logs == [["a", "b", "c", "d"], ["a", "b", "c", "d"], ["a", "b"]]
    net.settle()
    net.check(total=True)
    again = [text(p.bundle) for p in net.pdus(ToDt) if p.epoch == 1]
    assert again == ["c", "d"]
    # §3, definition of the failure point; the procedure is our reconstruction


# -- 4: what TO costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("sites", range(3, 13))
def test_at_best_2n_pdus_acknowledge_a_pdu(kind: type[Any], sites: int) -> None:
    net = isolated(kind, sites)
    net.check()
    assert len(net.sent) == 1 + (sites - 1) + sites
    # §4


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("sites", range(3, 13))
def test_at_worst_n_squared_less_n_plus_1_pdus_do(kind: type[Any], sites: int) -> None:
    net = isolated(kind, sites, policy=EAGER)
    net.check()
    assert len(net.sent) == 1 + (sites - 1) + (sites - 1) * (sites - 1)
    # §4


def test_at_best_everybody_waits_for_the_last_acknowledgement_before_it_sends_again() -> None:
    net = isolated(ToSite, 5)
    rounds = defaultdict(list)
    for sent in net.sent:
        rounds[sent.time].append(sent.src)
    senders = {time: sorted(who) for time, who in rounds.items()}
    assert senders == {0: [0], MS: [1, 2, 3, 4], 2 * MS: [0, 1, 2, 3, 4]}
    # §4


def test_at_worst_everybody_answers_each_acknowledgement() -> None:
    net = isolated(ToSite, 5, policy=EAGER)
    per_member = [len(net.pdus(src=site)) for site in net.group]
    assert per_member == [1 + 4, 1 + 3, 1 + 3, 1 + 3, 1 + 3]
    # §4: (n − 1)² = 4 + 4·3 answers


def test_2n_needs_a_pdu_to_acknowledge_itself_and_for_two_entities_three_are_enough() -> None:
    for kind in ALL:
        assert len(isolated(kind, 2).sent) == 3
    # §4: for n = 2 the worst case there, 3, is below the best, 4


@pytest.mark.parametrize("kind", [PoSite, ToSite])
@pytest.mark.parametrize("sites", range(3, 13))
def test_in_parallel_three_rounds_are_enough(kind: type[Any], sites: int) -> None:
    net = isolated(kind, sites)
    assert {got.time for log in net.got.values() for got in log} == {3 * MS}
    # §4


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("sites", range(3, 13))
def test_one_after_the_other_2n_rounds_at_best(kind: type[Any], sites: int) -> None:
    net = isolated(kind, sites, bus=True)
    assert max(got.time for log in net.got.values() for got in log) == 2 * sites * MS
    # §4


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("sites", range(3, 9))
def test_one_after_the_other_n_squared_less_n_plus_1_rounds_at_worst(
    kind: type[Any], sites: int
) -> None:
    net = isolated(kind, sites, bus=True, policy=EAGER)
    assert net.free_at == (sites * sites - sites + 1) * MS
    # §4


# -- 5: PO -----------------------------------------------------------------------------------------


def test_every_pdu_tells_its_source_its_number_what_is_expected_and_the_buffers_left() -> None:
    site = alone(PoSite, me=1)
    site.receive(pdu(PoSite, 0, 1, (1, 1, 1), "q"), 0, 0)
    submit(site, "p")
    ((dst, p),) = sends(site)
    assert dst == EVERYONE
    assert (p.src, p.seq, p.ack) == (1, 1, (2, 1, 1))
    assert p.buf == 64 * 9 - 1  # q takes one
    # §5, SRC, SEQ, A_j, BUF


@pytest.mark.parametrize("kind", ALL)
def test_at_the_start_everybody_expects_everybodys_initial_number(kind: type[Any]) -> None:
    site = alone(kind, sites=4)
    assert site.seq == 1
    assert site.treq == [1] * 4
    assert site.al == site.pal == [[1] * 4 for _ in range(4)]
    # §5, ISS


def test_an_entity_sends_only_if_the_flow_condition_holds() -> None:
    for window, free, under_way in (
        (5, 576, 5),
        (5, 2 * 9 * 3, 3),
        (9, 2 * 9 * 8 + 17, 8),
        (5, 0, 1),
    ):
        site = alone(PoSite, window=window, share=2)
        site.receive(pdu(PoSite, 2, 1, (1, 1, 1), buf=free), 2, 0)
        submit(site, *"abcdefghij")
        assert len(sends(site)) == under_way
    # §5, flow condition: min(W, minF / (C·n²)), at least 1; outstanding data, not all PDUs


def test_the_window_opens_as_the_minimum_of_al_moves() -> None:
    site = alone(PoSite, window=2)
    submit(site, *"abcd")
    assert len(sends(site)) == 2
    site.receive(pdu(PoSite, 1, 1, (3, 1, 1)), 1, 0)
    assert not sends(site)
    site.receive(pdu(PoSite, 2, 1, (3, 1, 1)), 2, 0)
    assert len(sends(site)) == 2
    # §5, flow condition


def test_transmission_stamps_broadcasts_and_appends_to_the_sending_log() -> None:
    site = alone(PoSite)
    submit(site, "a", "b")
    stamped = [p for _, p in sends(site)]
    assert [(p.seq, p.ack[0]) for p in stamped] == [(1, 1), (2, 2)]
    assert list(site.sl.values()) == stamped
    assert site.seq == 3
    # §5, transmission action


@pytest.mark.parametrize(
    "arriving, meets_it",
    [
        (pdu(PoSite, 1, 2, (1, 2, 2), "p"), True),
        (pdu(PoSite, 1, 3, (1, 3, 2), "p"), False),  # SEQ ≠ REQ_j
        (pdu(PoSite, 1, 2, (1, 2, 3), "p"), False),  # A_h > REQ_h
    ],
)
def test_the_receipt_condition(arriving: Any, meets_it: bool) -> None:
    site = alone(PoSite)
    site.receive(pdu(PoSite, 1, 1, (1, 1, 1), "first of 1"), 1, 0)
    site.receive(pdu(PoSite, 2, 1, (1, 1, 1), "first of 2"), 2, 0)
    site.receive(arriving, 1, 0)
    assert (site.treq[1] == 3) is meets_it
    # §5, receipt condition; what fails it is kept here, for it may be merely early


def test_vectors_never_fall_so_the_lower_bound_of_the_receipt_condition_holds() -> None:
    net = busy_run(watched(PoSite), loss=0.2)
    last: dict[tuple[int, int], tuple[int, ...]] = {}
    for p in net.firsts(Dt) + net.firsts(Null):
        last[p.src, p.seq] = p.ack
    for (src, seq), ack in last.items():
        if (src, seq + 1) in last:
            assert all(a <= b for a, b in zip(ack, last[src, seq + 1], strict=True))
    # §5, receipt condition, AL_hj ≤ p.A_h


def test_the_pack_condition_is_that_everybody_is_known_to_expect_a_later_one() -> None:
    site = alone(PoSite)
    p = pdu(PoSite, 1, 1, (1, 1, 1), "p")
    site.receive(p, 1, 0)
    assert (list(site.rrl[1]), list(site.prl[1])) == ([p], [])
    assert min(site.al[1]) == 1
    site.receive(pdu(PoSite, 2, 1, (1, 2, 1)), 2, 0)
    assert min(site.al[1]) == 2
    assert (list(site.rrl[1]), list(site.prl[1])) == ([], [p])
    # §5, PACK condition


class ByTheLetter(PoSite):
    """Keeps the receipt log as a whole and evaluates the printed ACK condition on it.

    q pre-acknowledges p on E_h iff q is of E_h, stands behind p and p.SEQ < q.A_src; p does so
    itself on its own source (TR-2).
    """

    compared = 0

    def reset_state(self) -> None:
        super().reset_state()
        self.whole: list[Any] = []
        self.known_everywhere: set[tuple[int, int]] = set()

    def enter(self, pdu: Any, now: int) -> None:
        self.whole.append(pdu)
        super().enter(pdu, now)

    def note_preacknowledged(self, pdu: Any) -> None:
        self.known_everywhere.add((pdu.src, pdu.seq))
        super().note_preacknowledged(pdu)

    def printed(self, p: Any) -> bool:
        behind = self.whole[self.whole.index(p) + 1 :]
        for h in self.everyone:
            if h == p.src:
                first = p
            else:
                first = next((q for q in behind if q.src == h and p.seq < q.ack[p.src]), None)
            if first is None or (first.src, first.seq) not in self.known_everywhere:
                return False
        return True

    def reached(self, pdu: Any, stage: str, now: int) -> None:
        if stage == ACKNOWLEDGED:
            assert self.printed(pdu), "acknowledged too early"
            ByTheLetter.compared += 1
        super().reached(pdu, stage, now)

    def advance(self, now: int) -> None:
        super().advance(now)
        for log in self.prl:
            if log:
                assert not self.printed(log[0]), "acknowledged too late"
                ByTheLetter.compared += 1


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_the_ack_condition_is_that_each_first_acknowledgement_is_pre_acknowledged(
    loss: float,
) -> None:
    """PO-7 compares numbers of PAL; that is the printed condition, at every step."""
    before = ByTheLetter.compared
    net = Net(ByTheLetter, 3, loss=loss, jitter_ns=8 * MS, seed=5)
    for k in range(24):
        net.submit(k % 3, f"{k}")
        net.run(5 * MS)
    net.settle()
    net.check()
    assert ByTheLetter.compared - before > 24 * 3
    # §5, ACK condition


def test_the_receipt_action_moves_whatever_the_new_pdu_allows() -> None:
    """One arrival pre-acknowledges a PDU of another source and acknowledges a third one."""
    site = alone(PoSite)
    for arriving in (
        pdu(PoSite, 1, 1, (1, 1, 1), "p"),
        pdu(PoSite, 2, 1, (1, 2, 1)),
    ):
        site.receive(arriving, arriving.src, 0)
    site.on_timer(5 * MS)
    site.receive(pdu(PoSite, 1, 2, (2, 2, 2), "q"), 1, 5 * MS)
    assert not site.take().deliveries
    site.receive(pdu(PoSite, 2, 2, (2, 3, 2)), 2, 5 * MS)
    assert [text(d.bundle) for d in site.take().deliveries] == ["p"]
    assert [text(p.bundle) for p in site.prl[1]] == ["q"]
    # §5, receipt action


def test_lost_pdus_are_detected_by_numbers_and_by_others_acknowledgements() -> None:
    by_number = alone(PoSite)
    by_number.receive(pdu(PoSite, 1, 2, (1, 2, 1), "second"), 1, 0)
    assert sends(by_number) == [(1, Retx(0, 0, 1, 1, 1))]
    by_others = alone(PoSite)
    by_others.receive(pdu(PoSite, 2, 1, (1, 2, 1)), 2, 0)
    by_others.on_timer(30 * MS)
    assert sends(by_others) == [(1, Retx(0, 0, 1, 1, 1))]
    # §5; there "as in TO", which on several channels would take the late for lost


def test_on_one_channel_the_same_evidence_is_final() -> None:
    for arriving in (
        pdu(ToChannelSite, 1, 2, (1, 2, 1), "second"),
        pdu(ToChannelSite, 2, 1, (1, 2, 1)),
    ):
        site = alone(ToChannelSite)
        site.receive(arriving, arriving.src, 0)
        assert [type(p) for _, p in sends(site)] == [ToRst]
    # §5 with §2


def test_no_entity_is_special() -> None:
    """Whoever sends, whoever loses: the same number of PDUs, and nobody sends more than others."""
    for source in range(4):
        net = Net(PoSite, 4)
        net.submit(source, "p")
        net.settle()
        assert [len(net.pdus(src=site)) for site in net.group] == [2, 2, 2, 2]
    # §2, distributed control; §6


@pytest.mark.parametrize("kind", TOTAL)
def test_with_nobody_sending_data_nulls_carry_the_acknowledgements(kind: type[Any]) -> None:
    net = isolated(kind, 3)
    assert net.kinds() == {"ToDt": 1, "ToNull": 5}
    assert all(isinstance(p, (ToDt, ToNull)) for p in net.pdus())
    assert ClusterConfig().policy == "deferred"
    # not in the paper: without such PDUs nothing would be acknowledged after the last message
