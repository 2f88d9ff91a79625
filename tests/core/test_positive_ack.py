"""The positive-acknowledgement engine: rules PA-1 … PA-5, tests PA-T1 … PA-T3."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.cost import x_b_positive_ack
from roundelay.core.engine import ACCEPTED, EVERYONE, MS, NEVER, Notice, Pdu
from roundelay.core.errors import ConfigError, PayloadTooLarge, QueueFull
from roundelay.core.limits import UNLIMITED
from roundelay.core.notices import notice
from roundelay.core.positive_ack import (
    BLOCK,
    PaAck,
    PaB,
    PositiveAckConfig,
    PositiveAckSite,
    PositiveAckStable,
    Reserved,
)
from roundelay.core.token.pdu import TlHint
from tests.core.sends import sends_of

DELAY = 1 * MS

Lose = Callable[[int, int, Pdu], bool]
"""(source, destination, pdu) → whether this copy is lost."""


def nothing_lost(source: int, destination: int, pdu: Pdu) -> bool:
    return False


def lossy(probability: float, rng: Random) -> Lose:
    return lambda source, destination, pdu: rng.random() < probability


class Net:
    """Sites on one wire with a constant delay, in virtual time.  Counts every transmission once."""

    def __init__(
        self, sites: int, config: PositiveAckConfig, lose: Lose = nothing_lost, delay: int = DELAY
    ) -> None:
        self.group = tuple(range(sites))
        self.config = config
        self.lose = lose
        self.delay = delay
        self.now = 0
        self.count = 0
        self.pdus = 0
        self.heap: list[tuple[int, int, Any]] = []
        self.engines = {me: self.make(me) for me in self.group}
        self.disks = {me: PositiveAckStable() for me in self.group}
        self.delivered: dict[int, list[tuple[int, int, bytes]]] = {me: [] for me in self.group}
        self.notices: dict[int, list[Notice]] = {me: [] for me in self.group}
        self.down: set[int] = set()

    def make(self, me: int, stable: PositiveAckStable | None = None) -> PositiveAckSite:
        return PositiveAckSite(me, self.group, self.config, Random(me), self.now, stable=stable)

    def at(self, time: int, event: Any) -> None:
        self.count += 1
        heappush(self.heap, (time, self.count, event))

    def submit(self, site: int, *messages: bytes) -> None:
        self.engines[site].submit(Bundle.of(*messages), self.now)
        self.carry_out(site)

    def carry_out(self, site: int) -> None:
        engine = self.engines[site]
        engine.check_invariants()
        out = engine.take()
        for record in out.persists:
            self.disks[site].apply(record)
        for destination, pdu in sends_of(out):
            self.pdus += 1
            receivers = engine.others if destination == EVERYONE else (destination,)
            for receiver in receivers:
                if not self.lose(site, receiver, pdu):
                    self.at(self.now + self.delay, ("arrive", site, receiver, pdu))
        for delivery in out.deliveries:
            assert (delivery.seq, delivery.stage) == (-1, ACCEPTED)
            for message in delivery.bundle:
                self.delivered[site].append((delivery.source, delivery.number, message))
        self.notices[site] += out.notices
        usage, caps = engine.usage(), engine.caps()
        assert usage.keys() == caps.keys()
        assert all(usage[name] <= caps[name] for name in caps)
        true_deadline = min((m.due for m in engine.outstanding.values()), default=NEVER)
        assert engine.deadline <= true_deadline
        if engine.deadline < NEVER:
            self.at(engine.deadline, ("timer", site, engine))

    def run(self, until: int = NEVER) -> None:
        while self.heap and self.heap[0][0] <= until:
            self.now, _, event = heappop(self.heap)
            if event[0] == "arrive":
                _, source, site, pdu = event
                if site not in self.down:
                    self.engines[site].receive(pdu, source, self.now)
                    self.carry_out(site)
            elif event[0] == "timer":
                _, site, engine = event
                current = site not in self.down and self.engines[site] is engine
                if current and engine.deadline <= self.now:
                    engine.on_timer(self.now)
                    assert engine.deadline > self.now
                    self.carry_out(site)
            else:
                event[1]()
        if until < NEVER:
            self.now = until

    def sets(self) -> list[set[tuple[int, int, bytes]]]:
        return [set(self.delivered[site]) for site in self.group]


def config(**changes: object) -> PositiveAckConfig:
    return PositiveAckConfig(**changes)  # type: ignore[arg-type]


def site(me: int = 0, sites: int = 3, now: int = 0, **changes: object) -> PositiveAckSite:
    return PositiveAckSite(me, tuple(range(sites)), config(**changes), Random(0), now)


def b(s: int, n: int, low: int | None = None, data: bytes = b"x") -> PaB:
    return PaB(s, n, Bundle.of(data), n if low is None else low)


def numbers(engine: PositiveAckSite) -> list[tuple[int, int]]:
    return [(d.source, d.number) for d in engine.take().deliveries]


# ------------------------------------------------------------------------ the paper's claims


@pytest.mark.parametrize("pipeline", [1, 8])
@pytest.mark.parametrize("sites", [2, 3, 10])
@pytest.mark.parametrize("gap_ns", [0, 1 * MS, 70 * MS])
def test_pa_t1_a_broadcast_costs_n_messages_at_any_load(
    sites: int, pipeline: int, gap_ns: int
) -> None:
    net = Net(sites, config(pipeline=pipeline))
    rng = Random(1)
    broadcasts = 100
    for i in range(broadcasts):
        source = rng.randrange(sites)
        net.at(i * gap_ns, ("call", lambda s=source, i=i: net.submit(s, b"%d" % i)))
    net.run()
    assert net.pdus == broadcasts * sites
    assert all(len(log) == broadcasts for log in net.delivered.values())
    assert all(len(seen) == broadcasts for seen in net.sets())


def test_pa_t2_two_receivers_may_see_two_messages_in_either_order() -> None:
    """CM84 Fig. 2: S_A's M1 is lost at R_j, S_B's M2 arrives at both, M1 is repeated."""
    s_a, s_b, r_i, r_j = range(4)
    first_copy = True

    def lose(source: int, destination: int, pdu: Pdu) -> bool:
        nonlocal first_copy
        if isinstance(pdu, PaB) and source == s_a and destination == r_j and first_copy:
            first_copy = False
            return True
        return False

    net = Net(4, config(), lose)
    net.submit(s_a, b"M1")
    net.run(10 * MS)
    net.submit(s_b, b"M2")
    net.run()
    assert [message for _, _, message in net.delivered[r_i]] == [b"M1", b"M2"]
    assert [message for _, _, message in net.delivered[r_j]] == [b"M2", b"M1"]
    assert net.pdus == 4 + 4 + 1  # the repetition is one unicast; its answer replaces the lost one


@pytest.mark.parametrize("sites, broadcasts", [(3, 20_000), (10, 5_000), (30, 2_000)])
@pytest.mark.parametrize("loss", [0.01, 0.1, 0.2])
def test_pa_t3_messages_per_broadcast_follow_x_b(sites: int, broadcasts: int, loss: float) -> None:
    rng = Random(f"{sites} {loss}")
    net = Net(sites, PositiveAckConfig.paper(), lossy(loss, rng))
    time = 0
    for _ in range(broadcasts):
        time += int(rng.expovariate(1 / (20 * MS)))
        source = rng.randrange(sites)
        net.at(time, ("call", lambda s=source: net.submit(s, b"m")))
    net.run()
    assert all(len(log) == broadcasts for log in net.delivered.values())
    assert all(len(seen) == broadcasts for seen in net.sets())
    assert net.pdus / broadcasts == pytest.approx(x_b_positive_ack(sites, loss), rel=0.02)


# ------------------------------------------------------------------------ PA-1: submit


def test_a_site_receives_its_own_message_and_multicasts_it_once() -> None:
    engine = site()
    engine.submit(Bundle.of(b"x"), 5)
    out = engine.take()
    assert sends_of(out) == [(EVERYONE, b(0, 0))]
    assert [(d.seq, d.source, d.number, d.stage) for d in out.deliveries] == [(-1, 0, 0, ACCEPTED)]
    assert engine.deadline == 5 + engine.config.resend_ns


def test_the_pipeline_limits_the_numbers_under_way() -> None:
    engine = site(pipeline=2)
    for i in range(4):
        engine.submit(Bundle.of(b"%d" % i), 0)
    assert numbers(engine) == [(0, 0), (0, 1)]
    for receiver in (1, 2):  # number 1 is done, but 0 is not: 2 would be out of its span
        engine.receive(PaAck(0, 1, receiver), receiver, 1)
    assert numbers(engine) == []
    for receiver in (1, 2):
        engine.receive(PaAck(0, 0, receiver), receiver, 2)
    out = engine.take()
    assert sends_of(out) == [(EVERYONE, b(0, 2, 2, b"2")), (EVERYONE, b(0, 3, 2, b"3"))]


def test_waiting_messages_share_a_pdu_when_bundling() -> None:
    engine = site(sites=2, bundle=True, max_payload=6)
    for message in (b"a", b"bb", b"cc", b"dd", b"eee"):
        engine.submit(Bundle.of(message), 0)
    engine.receive(PaAck(0, 0, 1), 1, 1)
    engine.receive(PaAck(0, 1, 1), 1, 2)
    bundles = [list(d.bundle) for d in engine.take().deliveries]
    assert bundles == [[b"a"], [b"bb", b"cc", b"dd"], [b"eee"]]


def test_a_bundle_is_full_when_the_wire_can_count_no_more_messages() -> None:
    engine = site(sites=2, bundle=True)
    half = Bundle((0,) * (MESSAGES_MAX // 2), b"")
    for _ in range(4):
        engine.submit(half, 0)
    engine.receive(PaAck(0, 0, 1), 1, 1)
    assert [len(d.bundle) for d in engine.take().deliveries] == [len(half), 2 * len(half)]
    with pytest.raises(PayloadTooLarge, match="at most 65535"):
        engine.submit(Bundle((0,) * (MESSAGES_MAX + 1), b""), 0)


def test_a_refused_submission_changes_nothing() -> None:
    engine = site(own_limit=2, max_payload=3)
    with pytest.raises(PayloadTooLarge, match="max_payload = 3"):
        engine.submit(Bundle.of(b"four"), 0)
    assert not engine.take()
    engine.submit(Bundle.of(b"1"), 0)
    engine.submit(Bundle.of(b"2"), 0)
    engine.take()
    before = engine.usage()
    with pytest.raises(QueueFull, match="own_limit"):
        engine.submit(Bundle.of(b"3"), 0)
    assert engine.usage() == before
    assert not engine.take()


def test_a_group_of_one_delivers_and_sends_nothing() -> None:
    engine = site(sites=1)
    engine.submit(Bundle.of(b"a"), 0)
    engine.submit(Bundle.of(b"b"), 0)
    out = engine.take()
    assert sends_of(out) == []
    assert [d.number for d in out.deliveries] == [0, 1]
    assert engine.deadline == NEVER


# ------------------------------------------------------------------------ PA-2: receive


def test_every_copy_is_acknowledged_and_the_first_is_delivered() -> None:
    engine = site(1)
    for _ in range(3):
        engine.receive(b(0, 0), 0, 0)
    out = engine.take()
    assert sends_of(out) == [(0, PaAck(0, 0, 1))] * 3
    assert [(d.source, d.number) for d in out.deliveries] == [(0, 0)]


def test_what_no_member_sends_is_counted_and_dropped() -> None:
    engine = site(0)
    engine.submit(Bundle.of(b"x"), 0)
    engine.take()
    for pdu, source in [
        (b(7, 0), 7),  # a stranger
        (b(2, 0), 1),  # somebody else's message
        (b(1, 5, 4), 1),  # beyond the pipeline
        (b(1, 5, 6), 1),
        (PaAck(0, 0, 2), 1),  # somebody else's acknowledgement
        (PaAck(1, 0, 2), 2),
        (PaAck(0, 1, 2), 2),  # of what was never sent
        (TlHint((0, 0)), 1),  # another protocol's
    ]:
        engine.receive(pdu, source, 1)
    assert not engine.take()
    assert engine.drops == {"not a member": 1, "bad message": 3, "bad ack": 3, "unknown pdu": 1}
    assert engine.outstanding[0].awaited == {1, 2}


# ------------------------------------------------------------------------ PA-3: copies


def test_only_receivers_that_have_not_answered_get_copies() -> None:
    engine = site(sites=4)
    engine.submit(Bundle.of(b"x"), 0)
    engine.receive(PaAck(0, 0, 2), 2, 1)
    engine.take()
    engine.on_timer(50 * MS)
    assert sends_of(engine.take()) == [(1, b(0, 0)), (3, b(0, 0))]
    engine.receive(PaAck(0, 0, 3), 3, 51 * MS)
    engine.on_timer(100 * MS)
    assert sends_of(engine.take()) == [(1, b(0, 0))]
    engine.receive(PaAck(0, 0, 1), 1, 101 * MS)
    engine.on_timer(150 * MS)
    assert not engine.take()
    assert engine.deadline == NEVER
    engine.receive(PaAck(0, 0, 1), 1, 151 * MS)  # the answer to a copy
    assert not engine.take()
    assert engine.drops == {}


def test_an_early_timer_does_nothing_but_find_the_deadline() -> None:
    engine = site(sites=2, pipeline=3)
    for now in (0, 10 * MS, 20 * MS):
        engine.submit(Bundle.of(b"x"), now)
    engine.receive(PaAck(0, 0, 1), 1, 21 * MS)
    engine.take()
    assert engine.deadline <= 60 * MS
    engine.on_timer(22 * MS)
    assert engine.deadline == 60 * MS
    assert not engine.take()
    engine.on_timer(65 * MS)
    assert [pdu.n for _, pdu in sends_of(engine.take()) if isinstance(pdu, PaB)] == [1]
    assert engine.deadline == 70 * MS


def test_a_site_that_slept_sends_one_copy_and_not_all_it_owes() -> None:
    engine = site(sites=2)
    engine.submit(Bundle.of(b"x"), 0)
    engine.take()
    engine.on_timer(1000 * MS)
    engine.on_timer(1001 * MS)
    assert sends_of(engine.take()) == [(1, b(0, 0))]
    assert engine.deadline == 1050 * MS


# ------------------------------------------------------------------------ PA-4: giving up


def test_a_silent_receiver_is_suspected_after_r_copies_and_no_longer_awaited() -> None:
    net = Net(3, config(attempts=2))
    net.down.add(2)
    net.submit(0, b"one")
    net.submit(0, b"two")
    net.run()
    # Each message: the multicast, one answer, two copies.
    assert net.pdus == 2 * (1 + 1 + 2)
    assert net.notices[0] == [notice("suspect", 2)]  # once per silence, not per message
    assert [message for _, _, message in net.delivered[1]] == [b"one", b"two"]
    net.down.clear()
    net.submit(0, b"three")
    net.run()
    assert [message for _, _, message in net.delivered[2]] == [b"three"]
    assert net.engines[0].suspected == set()
    net.down.add(2)
    net.submit(0, b"four")
    net.run()
    assert net.notices[0] == [notice("suspect", 2)] * 2


def test_a_message_of_a_suspect_clears_it() -> None:
    net = Net(2, config(attempts=0))
    net.down.add(1)
    net.submit(0, b"x")
    net.run()
    assert net.engines[0].suspected == {1}
    net.down.clear()
    net.submit(1, b"y")
    net.run()
    assert net.engines[0].suspected == set()


def test_a_receiver_that_was_given_up_on_is_told_what_it_missed() -> None:
    net = Net(3, config(attempts=1))
    net.submit(0, b"a")
    net.run()
    net.down.add(2)
    net.submit(0, b"b")
    net.submit(0, b"c")
    net.run()
    net.down.clear()
    net.submit(0, b"d")
    net.run()
    assert [message for _, _, message in net.delivered[2]] == [b"a", b"d"]
    assert net.notices[2] == [notice("missed", 0, 1, 3)]
    assert net.notices[1] == []


# ------------------------------------------------------------------------ PA-5: fifo


def test_without_fifo_numbers_are_handed_over_as_they_come() -> None:
    engine = site(1, pipeline=4)
    for n in (2, 0, 3, 1, 2):
        engine.receive(b(0, n, 0), 0, 0)
    assert numbers(engine) == [(0, 2), (0, 0), (0, 3), (0, 1)]


def test_with_fifo_a_number_waits_for_its_predecessors() -> None:
    engine = site(1, pipeline=4, fifo=True)
    engine.receive(b(0, 2, 0), 0, 0)
    engine.receive(b(0, 1, 0), 0, 0)
    assert numbers(engine) == []
    engine.receive(b(0, 0, 0), 0, 0)
    engine.receive(b(0, 2, 0), 0, 0)
    assert numbers(engine) == [(0, 0), (0, 1), (0, 2)]


def test_with_fifo_what_waits_for_a_lost_number_is_released() -> None:
    engine = site(1, pipeline=6, fifo=True)
    for n in (5, 3, 1):
        engine.receive(b(0, n, 0), 0, 0)
    engine.receive(b(0, 7, 5), 0, 0)  # 0, 2 and 4 will not come: the source gave up on us
    out = engine.take()
    assert [d.number for d in out.deliveries] == [1, 3, 5]
    assert out.notices == [notice("missed", 0, 0, 5)]
    engine.receive(b(0, 6, 6), 0, 0)
    assert numbers(engine) == [(0, 6), (0, 7)]
    engine.receive(b(0, 4, 0), 0, 0)  # a late copy: answered, not delivered
    out = engine.take()
    assert sends_of(out) == [(0, PaAck(0, 4, 1))]
    assert out.deliveries == []


# ------------------------------------------------------------------------ memory and restart


def test_the_memory_of_a_receiver_is_bounded_however_many_numbers_it_misses() -> None:
    rng = Random(3)
    net = Net(3, config(attempts=1, pipeline=8, resend_ns=4 * MS), lossy(0.5, rng))
    for i in range(3000):
        net.at(i * MS // 2, ("call", lambda i=i: net.submit(i % 3, b"x")))
    net.run()  # Net compares usage with caps at every step
    assert any(notice.kind == "missed" for log in net.notices.values() for notice in log)
    assert all(len(set(log)) == len(log) for log in net.delivered.values())
    for engine in net.engines.values():
        assert engine.usage()["own"] == 0
        assert sum(len(seen.above) for seen in engine.seen.values()) <= 2 * 7


@pytest.mark.parametrize("keeps_disk", [True, False])
def test_numbers_never_repeat_after_a_restart(keeps_disk: bool) -> None:
    net = Net(3, config(attempts=2))
    for text in (b"a", b"b"):
        net.submit(0, text)
    net.run(net.now + DELAY // 2)  # under way when the source dies
    net.now += 7
    net.engines[0] = net.make(0, net.disks[0] if keeps_disk else None)
    net.submit(0, b"c")
    net.run()
    assert net.delivered[1] == net.delivered[2]
    assert [message for _, _, message in net.delivered[1]] == [b"a", b"c"]
    used = [number for _, number, _ in net.delivered[0]]
    assert len(set(used)) == len(used) == 2


def test_a_restart_with_a_clock_that_ran_back_counts_on_from_the_disk() -> None:
    disk = PositiveAckStable()
    first = PositiveAckSite(0, (0, 1), config(), Random(0), 10**18)
    for n in range(3):
        first.submit(Bundle.of(b"x"), 10**18)
        first.receive(PaAck(0, 10**18 + n, 1), 1, 10**18)
    out = first.take()
    assert out.persists == [Reserved(10**18 + BLOCK)]  # one record for a block of numbers
    for record in out.persists:
        disk.apply(record)
    second = PositiveAckSite(0, (0, 1), config(), Random(0), 5, stable=disk)
    second.submit(Bundle.of(b"y"), 5)
    out = second.take()
    assert [d.number for d in out.deliveries] == [10**18 + BLOCK]
    assert out.persists == [Reserved(10**18 + 2 * BLOCK)]


def test_a_new_block_is_reserved_before_its_first_number_is_used() -> None:
    engine = site(sites=1)
    for _ in range(3):
        engine.submit(Bundle.of(b"x"), 0)
    engine.next_num = engine.low = BLOCK - 1
    engine.submit(Bundle.of(b"x"), 0)
    assert engine.take().persists == [Reserved(BLOCK)]
    engine.submit(Bundle.of(b"x"), 0)
    assert engine.take().persists == [Reserved(2 * BLOCK)]


def test_stable_storage_takes_its_own_records_only() -> None:
    stable = PositiveAckStable()
    stable.apply(Reserved(9))
    stable.apply(Reserved(4))
    assert stable.upto == 9
    with pytest.raises(TypeError, match="not a record"):
        stable.apply(b(0, 0))


def test_a_restarted_receiver_begins_where_its_sources_are() -> None:
    net = Net(3, config())
    for _ in range(5):
        net.submit(0, b"old")
    net.run()
    net.engines[2] = net.make(2)
    net.delivered[2].clear()
    net.submit(0, b"new")
    net.run()
    assert [message for _, _, message in net.delivered[2]] == [b"new"]
    assert net.notices[2] == []


# ------------------------------------------------------------------------ against a dumb model


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 5),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.4]),
)
def test_every_message_reaches_every_site_once(
    sites: int, pipeline: int, fifo: bool, bundle: bool, seed: int, loss: float
) -> None:
    """VALID, AGREE, INTEG, FIFO and QUIET, with loss, duplicates and reordering."""
    rng = Random(seed)
    setting = config(pipeline=pipeline, fifo=fifo, bundle=bundle, attempts=UNLIMITED)
    net = Net(sites, setting, lossy(loss, rng))
    sent: dict[int, list[bytes]] = {source: [] for source in net.group}

    class Jitter(int):
        """A delay that differs each time it is added."""

        def __radd__(self, now: int) -> int:
            return now + rng.randrange(1, 80 * MS)

    net.delay = Jitter()
    for i in range(40):
        source = rng.randrange(sites)
        message = b"%d/%d" % (source, i)
        sent[source].append(message)
        time = i * 3 * MS
        net.at(time, ("call", lambda s=source, m=message: net.submit(s, m)))
    net.run()  # ends: nothing is under way and no timer is armed
    for log in net.delivered.values():
        for source in net.group:
            got = [message for s, _, message in log if s == source]
            assert sorted(got) == sorted(sent[source])
            if fifo:
                assert got == sent[source]


# ------------------------------------------------------------------------ configuration


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"resend_ns": 0}, "resend_ns = 0 is not allowed: a whole number from 1 up"),
        ({"attempts": -1}, "attempts = -1 is not allowed: a whole number from 0 up"),
        ({"pipeline": 0}, "pipeline = 0 is not allowed: a whole number from 1 to 4096"),
        (
            {"pipeline": 9, "own_limit": 8},
            "pipeline = 9 is not allowed: a whole number from 1 to 8",
        ),
        ({"own_limit": 0}, "own_limit = 0 is not allowed: a whole number from 1 up"),
        ({"max_payload": 0}, "max_payload = 0 is not allowed: a whole number from 1 up"),
        ({"attempts": 1.5}, "attempts = 1.5 is not allowed: a whole number from 0 up"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**changes).check(3)
    assert str(caught.value) == message


def test_a_site_must_be_in_its_group_and_the_group_not_empty() -> None:
    with pytest.raises(ConfigError, match="me = 3"):
        site(3)
    with pytest.raises(ConfigError, match="sites = 0"):
        site(0, 0)


def test_the_paper_profile_never_gives_up() -> None:
    paper = PositiveAckConfig.paper(unit_ns=7, pipeline=2).check(30)
    assert (paper.resend_ns, paper.attempts, paper.pipeline) == (7, UNLIMITED, 2)
