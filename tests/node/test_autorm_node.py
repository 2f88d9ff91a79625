"""AutoRM at a node: queues that are all or nothing, names that come late."""

from __future__ import annotations

import os
from random import Random

import pytest

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.packets import CONFIRMATION, ZERO, Data, Heartbeat
from roundelay.core.bundle import Bundle
from roundelay.core.engine import SECOND
from roundelay.core.errors import PayloadTooLarge, QueueFull
from roundelay.node.autorm import AutoRm
from roundelay.node.directory import Directory
from roundelay.node.switchboard import Batch, Receipt, Refusal, View
from roundelay.wire.info import Info

ME, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"


class Ears:
    """An application that keeps what it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.receipts: list[int] = []
        self.views: list[tuple[str, ...]] = []
        self.room = 0

    def deliver(self, batch: Batch) -> None:
        self.got += [(batch.sender, data) for data in batch.bundle]

    def receipt(self, receipt: Receipt) -> None:
        self.receipts.append(receipt.tag)

    def refused(self, refusal: Refusal) -> None:
        raise AssertionError(refusal)

    def viewed(self, view: View) -> None:
        self.views.append(view.members)

    def writable(self, group: str) -> None:
        self.room += 1


def beamon(**config: int) -> tuple[AutoRm, Directory]:
    directory = Directory()
    directory.hear(Info("me", ME, ("127.0.0.1", 1)), ("127.0.0.1", 1), 0)
    return AutoRm(ME, AutoRmConfig(**config), Random(1), 0, directory), directory


def packet(seq: int, payload: bytes) -> Data:
    return Data(OTHER, ZERO, seq, 1, 0, CONFIRMATION, "g", payload)


def test_messages_wait_a_moment_for_the_name_of_their_sender() -> None:
    autorm, directory = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    for seq in (1, 2):
        autorm.beamon.receive(packet(seq, b"%d" % seq), seq)
        autorm.carry_out(seq)
    assert ears.got == []
    assert autorm.deadline <= SECOND + 1
    directory.hear(Info("other", OTHER, ("127.0.0.1", 2)), ("127.0.0.1", 2), 3)
    autorm.beamon.receive(packet(3, b"3"), 3)
    autorm.carry_out(3)
    assert ears.got == [("other", b"1"), ("other", b"2"), ("other", b"3")]


def test_a_node_of_the_paper_has_no_name_and_is_heard_all_the_same() -> None:
    autorm, _ = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    autorm.beamon.receive(packet(1, b"1"), 0)
    autorm.carry_out(0)
    assert ears.got == []
    autorm.carry_out(SECOND)
    autorm.beamon.receive(packet(2, b"2"), SECOND)
    autorm.carry_out(SECOND)
    assert ears.got == [(OTHER.hex(), b"1"), (OTHER.hex(), b"2")]


def test_what_waits_for_a_name_has_a_bound() -> None:
    autorm, _ = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    for seq in range(1, 2000):
        autorm.beamon.receive(packet(seq, bytes(1000)), 1)
        autorm.carry_out(1)
        assert autorm.unnamed_bytes <= 1 << 20
    assert len(ears.got) > 1000


def test_a_bundle_is_queued_whole_or_not_at_all() -> None:
    autorm, _ = beamon(queue_bytes=10_000)
    ears = Ears()
    autorm.join(ears, "g", 0)
    autorm.beamon.receive(Heartbeat(OTHER, 2, ("g",)), 0)  # somebody who has to answer first
    autorm.send(ears, "g", Bundle.of(bytes(4000)), 1, False, 0)
    before = autorm.beamon.queued_bytes
    with pytest.raises(QueueFull):
        autorm.send(ears, "g", Bundle.of(bytes(3000), bytes(3000)), 2, False, 0)
    assert autorm.beamon.queued_bytes == before
    with pytest.raises(PayloadTooLarge, match="send them in parts"):
        autorm.send(ears, "g", Bundle.of(*[bytes(1000)] * 10), 3, False, 0)
    assert autorm.beamon.queued_bytes == before
    known = [(one.application, one.group, one.tag) for one in autorm.tags.values()]
    assert known == [(ears, "g", 1)]  # that of the first is still known
    # It gives up on the silent one at last, tells the sender, and there is room again.
    now = 0
    while not ears.receipts:
        now = max(now + 1, autorm.beamon.deadline)
        autorm.beamon.on_timer(now)
        autorm.carry_out(now)
    assert ears.receipts == [1]
    assert ears.room == 1
    autorm.send(ears, "g", Bundle.of(bytes(3000), bytes(3000)), 2, False, now)


def test_a_message_that_is_too_large_leaves_those_before_it_unsent() -> None:
    autorm, _ = beamon(max_message=1000)
    ears = Ears()
    with pytest.raises(PayloadTooLarge, match="a message of 1001 bytes"):
        autorm.send(ears, "g", Bundle.of(b"small", os.urandom(1001)), 1, False, 0)
    assert not autorm.beamon.queued_bytes
    assert not autorm.tags


def test_a_view_follows_heartbeats_and_names() -> None:
    autorm, directory = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    autorm.beamon.receive(Heartbeat(OTHER, 2, ()), 1)
    autorm.look = True
    autorm.carry_out(1)
    autorm.beamon.receive(Heartbeat(OTHER, 2, ("g",)), 2)
    autorm.look = True
    autorm.carry_out(2)
    directory.hear(Info("other", OTHER, ("127.0.0.1", 2)), ("127.0.0.1", 2), 3)
    autorm.look = True
    autorm.carry_out(3)
    assert ears.views[-1] == ("me", "other")
    assert ears.views[0] == ("me",)
