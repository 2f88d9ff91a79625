"""The client's side of the frontend protocol without any socket: bytes in, events out."""

from __future__ import annotations

from typing import Any

import pytest

from roundelay.client.protocol import (
    Answer,
    ClientProtocol,
    Event,
    Hello,
    RequestFailed,
    Room,
    Settled,
)
from roundelay.core.bundle import Bundle
from roundelay.core.errors import MalformedPdu, PayloadTooLarge
from roundelay.node.frontend.packets import (
    CLOSING,
    REFUSED_JOIN,
    fail_packet,
    receipt_packet,
    received_packet,
)
from roundelay.node.node_api import Batch, Receipt, Refusal, Send, View
from roundelay.wire.frontend import Packet, Parser, head, json_packet

GROUP = "token:g"


def greeted(**hello: Any) -> ClientProtocol:
    protocol = ClientProtocol("here")
    protocol.hello("me")
    said(protocol, json_packet("HELO", "", {"node": "a", "version": "1", **hello}))
    protocol.data_to_send()
    return protocol


def said(protocol: ClientProtocol, *data: bytes) -> list[Event]:
    protocol.receive(b"".join(data))
    return list(protocol.events())


def sent(protocol: ClientProtocol) -> list[Packet]:
    parser = Parser.at_node()
    parser.extend()
    parser.feed(protocol.data_to_send())
    return list(parser.packets())


def test_a_greeting_a_question_and_their_answers() -> None:
    protocol = ClientProtocol("here")
    protocol.hello("me", units=True)
    number = protocol.ask("groups")
    assert [packet.command for packet in sent(protocol)] == ["HELO", "ASKQ"]
    assert protocol.data_to_send() == b""
    assert protocol.pending == 0
    hello = json_packet("HELO", "", {"node": "a", "version": "1"})
    answer = json_packet("ANSW", "", {"id": number, "answer": [1]})
    both = hello + answer
    assert said(protocol, both[:7]) == []  # as it comes
    assert said(protocol, both[7:]) == [Hello("a", "1"), Answer(number, [1])]


def test_what_comes_of_a_group_belongs_to_the_history_of_its_last_view() -> None:
    protocol = greeted()
    delivery = received_packet(Batch(GROUP, 3, "ann", 5, Bundle.of(b"x")))
    assert said(protocol, delivery) == []  # it has not joined
    protocol.join(GROUP)
    view = {"version": "1", "members": ["a"], "state": "open", "history": "h", "position": 3}
    assert said(protocol, json_packet("VIEW", GROUP, view), delivery) == [
        View(GROUP, "1", ("a",), "open", "h", 3),
        Batch(GROUP, 3, "ann", 5, Bundle.of(b"x"), history="h"),
    ]
    protocol.leave(GROUP)
    assert said(protocol, delivery) == []


def test_parts_of_one_bundle_have_one_fate() -> None:
    protocol = greeted(max_message=10)
    protocol.send(Send(GROUP, Bundle.of(b"12345678", b"12345678"), 7), owner="me")
    assert len(sent(protocol)) == 2
    assert said(protocol, receipt_packet(Receipt(GROUP, 0, 3, 9))) == []
    assert said(protocol, receipt_packet(Receipt(GROUP, 1, 4, 9))) == [
        Settled("me", Receipt(GROUP, 7, 4, 9))
    ]
    protocol.send(Send(GROUP, Bundle.of(b"12345678", b"12345678"), 8), owner="me")
    said(protocol, receipt_packet(Receipt(GROUP, 2, 5, 9)))
    assert said(protocol, fail_packet(GROUP, 3, 0, "no")) == [
        Settled("me", Refusal(GROUP, 8, "only a part was delivered: no", True))
    ]
    with pytest.raises(PayloadTooLarge):
        protocol.send(Send(GROUP, Bundle.of(bytes(11)), -1))


def test_nobody_knows_what_became_of_what_was_under_way_when_the_connection_ended() -> None:
    protocol = greeted()
    protocol.send(Send(GROUP, Bundle.of(b"x"), 1), owner="me")
    protocol.send(Send(GROUP, Bundle.of(b"y"), 1), owner="other")
    protocol.forget("other")
    (settled,) = protocol.lost("cut")
    assert settled.owner == "me"
    assert isinstance(settled.fate, Refusal)
    assert settled.fate.indeterminate
    assert protocol.lost("cut") == []


def test_a_refused_join_room_and_a_node_that_closes() -> None:
    protocol = greeted(stop=True)
    protocol.join(GROUP)
    protocol.hold(GROUP, True)
    assert [packet.command for packet in sent(protocol)] == ["JOIN", "STOP"]
    assert said(protocol, head("STOP", GROUP)) == []
    assert protocol.stopped == {GROUP}
    assert said(protocol, head("GOON", GROUP)) == [Room(GROUP)]
    assert not protocol.stopped
    refused = fail_packet(GROUP, -1, REFUSED_JOIN, "full")
    assert said(protocol, refused) == [RequestFailed(Refusal(GROUP, -1, "full", False), True)]
    assert not protocol.joined
    assert said(protocol, fail_packet("", -1, CLOSING, "bye"))
    assert protocol.closing == "bye"
    with pytest.raises(MalformedPdu):
        said(protocol, b"\xff" * 64)
