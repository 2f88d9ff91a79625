"""Whatever is heard, in whatever order: a Beamon does not raise, and keeps its bounds."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.autorm.beamon import AutoRmDelivery, Beamon
from roundelay.core.autorm.packets import ZERO, Acknowledgement, Data, Heartbeat
from roundelay.core.engine import MS
from roundelay.core.errors import QueueFull
from roundelay.wire.beamon import decode, encode
from tests.core.beamons import config, uuid
from tests.core.sends import packets_of

who = st.integers(0, 4).map(uuid)
whom = st.integers(0, 2).map(uuid) | st.just(ZERO)
groups = st.sampled_from(["a", "b", "c"])
seqs = st.integers(1, 6) | st.sampled_from([1 << 31, (1 << 32) - 1])
large = st.sampled_from([0, 1, 2, 3, 7, 100, 1 << 31, (1 << 32) - 2])

heartbeats = st.builds(
    Heartbeat, who, st.sampled_from([0, 1, 5, 65535]), st.lists(groups, max_size=3).map(tuple)
)
datas = st.builds(
    lambda source, to, seq, number, more, flags, group, size: Data(
        source, to, seq, number + more, number, flags, group, bytes(size)
    ),
    who, whom, seqs, large, st.integers(1, 3), st.integers(0, 3), groups,
    st.sampled_from([0, 1, 300]),
)  # fmt: skip
acknowledgements = st.builds(
    lambda source, seq, missing, beyond: Acknowledgement(
        source, uuid(0), seq, max(missing, default=0) + beyond, tuple(sorted(missing))
    ),
    who, seqs, st.sets(st.integers(0, 12), max_size=6), st.integers(0, 3),
)  # fmt: skip
sends = st.tuples(groups, st.sampled_from([0, 5, 700, 4000]), st.booleans())
steps = st.one_of(heartbeats, datas, acknowledgements, groups, sends, st.none())


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(steps, st.sampled_from([0, 1, 20, 150, 3000])), max_size=60),
    st.sampled_from(["node", "group"]),
    st.booleans(),
)
def test_a_peer_cannot_make_a_beamon_raise_or_exceed_its_bounds(
    history: Any, scope: str, failover: bool
) -> None:
    one = Beamon(
        0,
        (),
        config(
            serial_scope=scope, someone_failover=failover, mtu=576, max_message=5000, nodes_max=3,
            sources_max=2, history=2, queue_bytes=6000, reassembly_peer=6000,
            reassembly_total=7000, max_retries=2, burst=3,
        ),
        Random(1),
        uuid=uuid(0),
    )  # fmt: skip
    now = 0
    for step, wait in history:
        now += wait * MS
        if step is None:
            one.on_timer(now)
        elif isinstance(step, str):
            if step in one.groups:
                one.leave(step, now)
            else:
                one.join(step, now)
        elif isinstance(step, tuple):
            group, size, someone = step
            with suppress(QueueFull):
                (one.send_someone if someone else one.send_everyone)(group, bytes(size), now, 1)
        else:
            one.receive(step, 0, now)
        one.check_invariants()
        out = one.take()
        for packet in packets_of(out):  # and what it says others can read
            assert decode(encode(packet)) == packet
            assert len(encode(packet)) <= 576 - 28
        for delivery in out.deliveries:
            assert isinstance(delivery, AutoRmDelivery)
            assert delivery.group in one.groups or isinstance(step, str)
        caps = one.caps()
        for name, used in one.usage().items():
            assert 0 <= used <= caps[name], name
    # Left alone it ends what it has begun.
    limit = now + 600_000 * MS
    while not one.idle:
        now = max(now, one.deadline)
        assert now < limit
        one.on_timer(now)
        one.check_invariants()
        one.take()
    assert one.queued_bytes == 0


@pytest.mark.parametrize("scope", ["node", "group"])
def test_left_alone_for_long_everything_is_forgotten_but_what_was_delivered(scope: str) -> None:
    one = Beamon(0, (), config(serial_scope=scope), Random(1), uuid=uuid(0))
    one.join("a", 0)
    one.receive(Heartbeat(uuid(1), 2, ("a",)), 0, 0)
    one.receive(Data(uuid(1), ZERO, 1, 1, 0, 2, "a", b"x"), 0, 0)
    one.receive(Data(uuid(1), ZERO, 2, 9, 0, 2, "a", b"x"), 0, 0)
    one.send_everyone("a", b"y", 0)
    while one.deadline < 60_000 * MS:
        one.on_timer(one.deadline)
        one.take()
    used = one.usage()
    assert used.pop("sources") == 1
    assert set(used.values()) == {0}
