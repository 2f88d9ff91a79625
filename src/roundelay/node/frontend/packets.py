"""Packets of an application behind a socket, as its node means them."""

from __future__ import annotations

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.errors import MalformedPdu
from roundelay.node.node_api import NO_TAG, UNIT, Batch, Missed, View
from roundelay.wire.frontend import BAD_BODY, Packet, json_packet, plain_packets, read_json
from roundelay.wire.frontend_messages import Send, portions, read_send, received_packet

# -- from the application ------------------------------------------------------------------


class OutgoingPacket(Struct):
    """What one packet asked to be sent, or several that were gathered."""

    group: str
    send: Send
    gathered: bool = False
    """The bundle was made here, of messages that were sent one by one."""


def gathered(group: str, messages: list[bytes]) -> OutgoingPacket:
    """Messages that arrived together, as one bundle."""
    return OutgoingPacket(group, Send(NO_TAG, Bundle.of(*messages)), len(messages) > 1)


def singly(item: OutgoingPacket) -> list[OutgoingPacket]:
    """Its messages one by one; backwards, as `extendleft` wants them."""
    return [gathered(item.group, [message]) for message in reversed(list(item.send.bundle))]


def read_outgoing(packet: Packet, largest: int) -> OutgoingPacket | None:
    """What `packet` asks to be sent; None: it asks for something else."""
    group, command = packet.group, packet.command
    if command == "SNDS":
        return OutgoingPacket(group, Send(NO_TAG, Bundle.of(packet.message), someone=True))
    if command in ("SNDR", "SNDO", "SNDD", "SNDC", "SNDU"):
        return OutgoingPacket(group, read_send(packet, largest))
    return None


# -- to the application --------------------------------------------------------------------


def batch_packets(batch: Batch, extended: bool, units: bool, largest: int) -> bytes:
    """A delivery, as an application hears of it that knows the `extended` commands, and `units`."""
    if not extended:
        return plain_packets("RCVE", batch.group, batch.bundle)
    if batch.unit == UNIT:
        conference, kind, _ = batch.bundle.runs()[0]
        pieces = [batch.bundle] if units else map(Bundle.of, batch.bundle)
        return b"".join(_received(batch, batch.seq, conference, kind, piece) for piece in pieces)
    parts = []
    seq = batch.seq
    for conference, kind, bundle in batch.bundle.by_mark():
        for part in portions(bundle, largest):
            parts.append(_received(batch, seq, conference, kind, part))
            seq += len(part) if seq >= 0 else 0
    return b"".join(parts)


def _received(batch: Batch, seq: int, conference: int, kind: int, part: Bundle) -> bytes:
    """`part` is all of a unit or, for who does not know units, one message of it."""
    unit = batch.unit == UNIT and part is batch.bundle
    place = batch.group, seq, batch.time, batch.sender
    return received_packet(*place, part, conference=conference, kind=kind, unit=unit)


def view_packet(view: View) -> bytes:
    """VIEW: a JSON object."""
    content = structs.asdict(view)
    return json_packet("VIEW", content.pop("group"), content)


def miss_packet(missed: Missed) -> bytes:
    """MISS: a JSON object; `was`, `final` and `epoch` only where they say something."""
    content: dict[str, object] = {"lo": missed.lo, "hi": missed.hi, "history": missed.history}
    if missed.was:
        content["was"] = missed.was
    if missed.final:
        content["final"] = True
    if missed.epoch >= 0:
        content["epoch"] = missed.epoch
    return json_packet("MISS", missed.group, content)


def read_missed(packet: Packet) -> Missed:
    """What `miss_packet` has written."""
    content = read_json(packet)
    lo, hi = content.get("lo"), content.get("hi")
    if type(lo) is not int or type(hi) is not int:
        raise MalformedPdu(BAD_BODY, "MISS without positions")
    history, was = str(content.get("history", "")), str(content.get("was", ""))
    epoch = content.get("epoch", -1)
    if type(epoch) is not int:
        raise MalformedPdu(BAD_BODY, "MISS with an epoch that is no number")
    return Missed(packet.group, lo, hi, history, was, content.get("final") is True, epoch)
