"""AutoRM at a node: queues that are all or nothing, names that come late."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.packets import CONFIRMATION, ZERO, Acknowledgement, Data, Heartbeat
from roundelay.core.bundle import Bundle
from roundelay.core.engine import SECOND
from roundelay.core.errors import PayloadTooLarge, QueueFull
from roundelay.node.autorm import AutoRm
from roundelay.node.membership.directory import Directory
from roundelay.node.node_api import Batch, Missed, Receipt, Refusal, Send, Subscriber, View
from roundelay.wire.control import Info

ME, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"


class Ears(Subscriber):
    """An application that keeps what it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.receipts: list[int] = []
        self.given_up: list[str] = []
        self.views: list[tuple[str, ...]] = []
        self.room = 0

    def deliver(self, batch: Batch) -> None:
        self.got += [(batch.sender, data) for data in batch.bundle]

    def receipt(self, receipt: Receipt) -> None:
        self.receipts.append(receipt.tag)
        self.given_up += receipt.given_up

    def refused(self, refusal: Refusal) -> None:
        raise AssertionError(refusal)

    def viewed(self, view: View) -> None:
        self.views.append(view.members)

    def writable(self, group: str) -> None:
        self.room += 1

    def missed(self, missed: Missed) -> None:
        raise AssertionError(missed)


def beamon(**config: Any) -> tuple[AutoRm, Directory]:
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
        autorm.beamon.receive(packet(seq, b"%d" % seq), 0, seq)
        autorm.carry_out(seq)
    assert ears.got == []
    assert autorm.deadline <= SECOND + 1
    directory.hear(Info("other", OTHER, ("127.0.0.1", 2)), ("127.0.0.1", 2), 3)
    autorm.beamon.receive(packet(3, b"3"), 0, 3)
    autorm.carry_out(3)
    assert ears.got == [("other", b"1"), ("other", b"2"), ("other", b"3")]


def test_a_node_of_the_paper_has_no_name_and_is_heard_all_the_same() -> None:
    autorm, _ = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    autorm.beamon.receive(packet(1, b"1"), 0, 0)
    autorm.carry_out(0)
    assert ears.got == []
    autorm.carry_out(SECOND)
    autorm.beamon.receive(packet(2, b"2"), 0, SECOND)
    autorm.carry_out(SECOND)
    assert ears.got == [(OTHER.hex(), b"1"), (OTHER.hex(), b"2")]


def test_what_waits_for_a_name_has_a_bound() -> None:
    autorm, _ = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    for seq in range(1, 2000):
        autorm.beamon.receive(packet(seq, bytes(1000)), 0, 1)
        autorm.carry_out(1)
        assert autorm.unnamed_bytes <= 1 << 20
    assert len(ears.got) > 1000


def test_a_bundle_is_queued_whole_or_not_at_all() -> None:
    autorm, _ = beamon(queue_bytes=10_000)
    ears = Ears()
    autorm.join(ears, "g", 0)
    autorm.beamon.receive(Heartbeat(OTHER, 2, ("g",)), 0, 0)  # somebody who has to answer first
    autorm.send(ears, Send("g", Bundle.of(bytes(4000)), 1), 0)
    before = autorm.beamon.queued_bytes
    with pytest.raises(QueueFull):
        autorm.send(ears, Send("g", Bundle.of(bytes(3000), bytes(3000)), 2), 0)
    assert autorm.beamon.queued_bytes == before
    with pytest.raises(PayloadTooLarge, match="send them in parts"):
        autorm.send(ears, Send("g", Bundle.of(*[bytes(1000)] * 10), 3), 0)
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
    autorm.send(ears, Send("g", Bundle.of(bytes(3000), bytes(3000)), 2), now)


def test_a_message_that_is_too_large_leaves_those_before_it_unsent() -> None:
    autorm, _ = beamon(max_message=1000)
    ears = Ears()
    with pytest.raises(PayloadTooLarge, match="a message of 1001 bytes"):
        autorm.send(ears, Send("g", Bundle.of(b"small", os.urandom(1001)), 1), 0)
    assert not autorm.beamon.queued_bytes
    assert not autorm.tags


def test_a_view_follows_heartbeats_and_names() -> None:
    autorm, directory = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    autorm.beamon.receive(Heartbeat(OTHER, 2, ()), 0, 1)
    autorm.look = True
    autorm.carry_out(1)
    autorm.beamon.receive(Heartbeat(OTHER, 2, ("g",)), 0, 2)
    autorm.look = True
    autorm.carry_out(2)
    directory.hear(Info("other", OTHER, ("127.0.0.1", 2)), ("127.0.0.1", 2), 3)
    autorm.look = True
    autorm.carry_out(3)
    assert ears.views[-1] == ("me", "other")
    assert ears.views[0] == ("me",)


def test_a_life_that_was_replaced_keeps_the_name_under_which_it_sent() -> None:
    """Its messages came as those of its id, in hexadecimal, and so it was called in views."""
    autorm, directory = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    later = bytes(15) + b"\3"
    directory.hear(Info("other", OTHER, ("127.0.0.1", 2), birth=1), ("127.0.0.1", 2), 1)
    for uuid in (OTHER, later):
        autorm.beamon.receive(Heartbeat(uuid, 3, ("g",)), 0, 2)
    directory.hear(Info("other", later, ("127.0.0.1", 3), birth=2), ("127.0.0.1", 3), 2)
    autorm.beamon.receive(packet(1, b"1"), 0, 3)
    autorm.look = True
    autorm.carry_out(3)
    assert ears.got == [("other", b"1")]
    assert ears.views[-1] == ("me", "other")
    # Who says that it gave up a member: not if the member has the message in its later life.
    autorm.send(ears, Send("g", Bundle.of(b"mine"), 7), 4)
    transfer = next(iter(autorm.beamon.active.values()))
    for now in range(4, 60):
        at = now * SECOND // 10
        autorm.beamon.receive(Heartbeat(later, 3, ("g",)), 0, at)
        autorm.beamon.receive(Acknowledgement(later, ME, transfer.seq, 0, ()), 0, at)
        autorm.beamon.on_timer(at)
        autorm.carry_out(at)
    assert ears.receipts == [7]
    assert ears.given_up == []


def test_a_life_that_is_first_heard_of_when_it_is_replaced_has_its_name() -> None:
    autorm, directory = beamon()
    ears = Ears()
    autorm.join(ears, "g", 0)
    later = Info("other", bytes(15) + b"\3", ("127.0.0.1", 3), birth=2)
    directory.hear(later, ("127.0.0.1", 3), 1)
    autorm.beamon.receive(packet(1, b"1"), 0, 2)
    autorm.carry_out(2)
    assert ears.got == []
    assert directory.outlived(Info("other", OTHER, ("127.0.0.1", 2), birth=1), 3)
    autorm.carry_out(3)
    assert ears.got == [("other", b"1")]
