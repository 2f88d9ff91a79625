"""The frontend protocol as an application speaks it, without sockets: bytes in, events out.

::

    protocol = ClientProtocol("127.0.0.1:6678")
    protocol.hello(name="me")
    protocol.join("token:orders")
    send(protocol.data_to_send())
    protocol.receive(data)
    for event in protocol.events():      # Batch, View, Missed, Settled, Answer, …
        ...

Everything that is asked of the node gathers until `data_to_send` takes it; what it says becomes
events in the order in which it says them.  `client.remote` drives this with asyncio,
`client.connection` by blocking calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError, PayloadTooLarge
from roundelay.core.position import LIVE, Since
from roundelay.node.frontend.packets import (
    CLOSING,
    REFUSED_JOIN,
    from_packet,
    portions,
    read_failure,
    read_receipt,
    read_received,
    send_packet,
)
from roundelay.node.node_api import NO_TAG, Batch, Missed, Receipt, Refusal, Send, View
from roundelay.wire.frontend import (
    MESSAGE_BYTES,
    PROTOCOL,
    Packet,
    Parser,
    head,
    json_packet,
    name_bytes,
    read_struct,
)
from roundelay.wire.frontend_replay import (
    Ended,
    ReplayRequest,
    more_packet,
    read_block,
    read_ended,
    replay_packet,
)


class Hello(Struct, frozen=True):
    """The node has answered our greeting."""

    node: str = ""
    """Its name: the sender of what is sent through it."""
    version: str = ""
    max_message: int = MESSAGE_BYTES
    """What it takes at most."""
    stop: bool = False
    """It heeds STOP."""
    options: bool = False
    """It takes options of a group (OPTS)."""


class Settled(Struct, frozen=True, gc=False):
    """What became of a `send`."""

    owner: Any
    """As the caller named it."""
    fate: Receipt | Refusal


class RequestFailed(Struct, frozen=True):
    """The node refuses something that was no `send`."""

    refusal: Refusal
    out: bool
    """It was a `join`, or the group is over: nothing more comes of it."""


class Answer(Struct, frozen=True):
    """To a question."""

    id: int
    answer: Any = None
    error: str | None = None


class Block(Struct, frozen=True, gc=False):
    """Of a replay: runs as in a block of a journal."""

    id: int
    data: bytes


class Room(Struct, frozen=True):
    """The node takes messages to the group again."""

    group: str


Event = Hello | Batch | View | Missed | Settled | RequestFailed | Answer | Block | Ended | Room


class _Sent(Struct):
    """A send that waits for its receipt; a large bundle goes in several parts."""

    owner: Any
    group: str
    tag: int
    parts: int
    receipt: Receipt | None = None
    refusal: Refusal | None = None
    arrived: int = 0


class ClientProtocol:
    """One connection to the node at `where`, as far as the protocol goes."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.greeting = Hello()
        """What the node said of itself."""
        self.joined: set[str] = set()
        self.stopped: set[str] = set()
        """Groups to which the node takes nothing for now."""
        self.closing = ""
        """Why the node says that it closes the connection; empty: it does not."""
        self.pending = 0
        """Bytes that wait for `data_to_send`."""
        self._parser = Parser.at_application()
        self._out: list[bytes] = []
        self._views: dict[str, View] = {}
        self._sent: dict[int, _Sent] = {}
        self._tags = count()
        self._numbers = count()

    # -- bytes -----------------------------------------------------------------------------

    def data_to_send(self) -> bytes:
        """All that waits to be sent, once."""
        data = b"".join(self._out)
        self._out.clear()
        self.pending = 0
        return data

    def receive(self, data: bytes) -> None:
        """Take in what the node has sent."""
        self._parser.feed(data)

    def events(self) -> Iterator[Event]:
        """What the node has said and nobody has taken yet.  MalformedPdu: it is no node."""
        readers = _READERS
        for packet in self._parser.packets():
            if packet.command in readers:
                event = readers[packet.command](self, packet)
                if event is not None:
                    yield event

    def lost(self, why: str) -> list[Settled]:
        """The connection has ended: nobody knows what became of what has no receipt."""
        sends = {id(sent): sent for sent in self._sent.values()}.values()
        self._sent.clear()
        reason = f"{self.ended(why)} before it answered"
        return [Settled(sent.owner, Refusal(sent.group, sent.tag, reason, True)) for sent in sends]

    def ended(self, why: str) -> str:
        """The beginning of every error that says so."""
        return f"the connection to the node at {self.where} has ended ({why})"

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self.pending += len(data)

    # -- what is asked of the node ---------------------------------------------------------

    def hello(self, name: str, **abilities: bool) -> None:
        """The first packet; `abilities` are those that the node must know of."""
        self._put(json_packet("HELO", "", {"name": name, "protocol": PROTOCOL, **abilities}))

    def join(self, group: str, since: Since = LIVE, options: dict[str, Any] | None = None) -> None:
        """Take part in a group; with `since`, what was before comes first."""
        name_bytes("group", group)
        if options and not self.greeting.options:
            allowed = f"none through the node at {self.where}, whose version does not know them"
            raise ConfigError(next(iter(options)), next(iter(options.values())), allowed)
        self.joined.add(group)
        if options:
            self._put(json_packet("OPTS", group, options))
        self._put(head("JOIN", group) if since.seq < 0 else from_packet(group, since))

    def leave(self, group: str) -> None:
        self.joined.discard(group)
        self._views.pop(group, None)
        self._put(head("LEAV", group))

    def check_size(self, bundle: Bundle) -> None:
        """Raise PayloadTooLarge for what the node would not take."""
        largest, most = max(bundle.sizes, default=0), self.greeting.max_message
        if largest > most:
            raise PayloadTooLarge(
                f"a message of {largest} bytes: the node at {self.where} takes at most {most}; "
                "split it, or start the node with a larger --max-message"
            )

    def send(self, send: Send, owner: Any = None) -> None:
        """Send, in parts if need be; with a tag, Settled follows for `owner` when the fate of all
        parts is known."""
        name_bytes("group", send.group)
        self.check_size(send.bundle)
        if not send.bundle.sizes:
            raise ConfigError("bundle", "empty", "one message or more")
        most = self.greeting.max_message
        parts = list(portions(send.bundle, most))
        if send.unit and len(parts) > 1:
            raise PayloadTooLarge(
                f"a unit of {len(send.bundle.data)} bytes: the node at {self.where} takes at most "
                f"{most}, of one conference and kind; send several"
            )
        sent = _Sent(owner, send.group, send.tag, len(parts))
        packets = []
        for part in parts:
            own = NO_TAG if send.tag == NO_TAG else next(self._tags)
            packets.append(send_packet(structs.replace(send, tag=own, bundle=part)))
            if send.tag != NO_TAG:
                self._sent[own] = sent
        for data in packets:
            self._put(data)

    def forget(self, owner: Any) -> None:
        """Nobody waits for what became of the sends of `owner`."""
        for tag in [tag for tag, sent in self._sent.items() if sent.owner is owner]:
            del self._sent[tag]

    def ask(self, what: str, of: str | None = None) -> int:
        """A question such as `members` of a group; the number of its Answer."""
        number = next(self._numbers)
        self._put(json_packet("ASKQ", "", {"id": number, "ask": what, "of": of}))
        return number

    def replay(self, group: str, request: ReplayRequest) -> int:
        """Ask for what is recorded; the number of its Blocks, and of the Ended behind them."""
        name_bytes("group", group)
        number = next(self._numbers)
        self._put(replay_packet(group, structs.replace(request, id=number)))
        return number

    def more(self, group: str, number: int, blocks: int) -> None:
        """So many more blocks of a replay may come; 0 ends it."""
        self._put(more_packet(group, number, blocks))

    def hold(self, group: str, stop: bool) -> None:
        """The application can take no more of the group now, or it can again."""
        if self.greeting.stop and group in self.joined:
            self._put(head("STOP" if stop else "GOON", group))

    # -- what the node says ----------------------------------------------------------------

    def _hello(self, packet: Packet) -> Hello:
        self.greeting = read_struct(packet, Hello)
        return self.greeting

    def _batch(self, packet: Packet) -> Batch | None:
        if packet.group not in self.joined:
            return None
        # What is delivered now belongs to the history that the last view named.
        view = self._views.get(packet.group)
        return read_received(packet, "" if view is None else view.history)

    def _view(self, packet: Packet) -> View | None:
        if packet.group not in self.joined:
            return None
        self._views[packet.group] = view = read_struct(packet, View)
        return view

    def last_view(self, group: str) -> View:
        """As the node said last; empty if it has said nothing."""
        return self._views.get(group) or View(group, "", (), "")

    def _missed(self, packet: Packet) -> Missed | None:
        return read_struct(packet, Missed) if packet.group in self.joined else None

    def _receipt(self, packet: Packet) -> Settled | None:
        receipt = read_receipt(packet)
        sent = self._sent.pop(receipt.tag, None)
        if sent is None:
            return None
        seq, given_up, before = receipt.seq, receipt.given_up, sent.receipt
        if before is not None:
            seq = max(before.seq, seq)
            given_up = tuple(dict.fromkeys((*before.given_up, *given_up)))
        told = {"group": sent.group, "tag": sent.tag, "seq": seq, "given_up": given_up}
        sent.receipt = structs.replace(receipt, **told)
        return self._arrived(sent)

    def _failure(self, packet: Packet) -> Settled | RequestFailed | None:
        refusal, flags = read_failure(packet)
        if flags & CLOSING:
            self.closing = refusal.reason
        sent = self._sent.pop(refusal.tag, None)
        if sent is not None:
            sent.refusal = structs.replace(refusal, group=sent.group, tag=sent.tag)
            return self._arrived(sent)
        out = bool(flags & REFUSED_JOIN)
        if out:
            self.joined.discard(packet.group)
        return RequestFailed(structs.replace(refusal, tag=NO_TAG), out)

    def _arrived(self, sent: _Sent) -> Settled | None:
        """The fate of one part is known: when that of all is, it is told as one."""
        sent.arrived += 1
        if sent.arrived < sent.parts:
            return None
        if sent.refusal is None:
            assert sent.receipt is not None
            return Settled(sent.owner, sent.receipt)
        if sent.receipt is None:
            return Settled(sent.owner, sent.refusal)
        reason = f"only a part was delivered: {sent.refusal.reason}"
        return Settled(sent.owner, Refusal(sent.group, sent.tag, reason, True))

    def _stop(self, packet: Packet) -> None:
        self.stopped.add(packet.group)

    def _go_on(self, packet: Packet) -> Room:
        self.stopped.discard(packet.group)
        return Room(packet.group)


_READERS: Final[dict[str, Callable[[ClientProtocol, Packet], Event | None]]] = {
    "HELO": ClientProtocol._hello,
    "RCVX": ClientProtocol._batch,
    "RCVC": ClientProtocol._batch,
    "RCVU": ClientProtocol._batch,
    "RPLB": lambda protocol, packet: Block(*read_block(packet)),
    "RPLE": lambda protocol, packet: read_ended(packet),
    "VIEW": ClientProtocol._view,
    "MISS": ClientProtocol._missed,
    "RCPT": ClientProtocol._receipt,
    "FAIL": ClientProtocol._failure,
    "STOP": ClientProtocol._stop,
    "GOON": ClientProtocol._go_on,
    "ANSW": lambda protocol, packet: read_struct(packet, Answer),
}
