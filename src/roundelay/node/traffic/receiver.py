"""What arrives at a node: the one place that looks into a datagram.

Each is opened, put together with its other pieces, decoded, and handed to the engine it is for, to
AutoRM, or to the control channel.  Nothing in it is believed before it is checked; what cannot be
used is counted by reason and dropped.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

from roundelay.core.errors import MalformedPdu
from roundelay.core.events import NOBODY
from roundelay.node.group_host import GroupDriver
from roundelay.node.medium.drop_advice import NO_KEY
from roundelay.node.medium.media import Address
from roundelay.node.medium.one_channel import for_hub
from roundelay.node.traffic.control_channel import FORMER
from roundelay.wire import beamon, control, fragments
from roundelay.wire.codec import decode, decode_pieces
from roundelay.wire.envelope import ENGINE_PDU, Envelope
from roundelay.wire.seal import Seal

if TYPE_CHECKING:
    from roundelay.node.node import Node

GROUP_ID: Final = struct.Struct(">I")
GROUP_ID_AT: Final = 8
GROUP_ID_END: Final = GROUP_ID_AT + GROUP_ID.size
SMALL: Final = 4096
"""Bytes below which a datagram is opened into a copy of its own."""
SEALED: Final = b"\x20"
FRAGMENT: Final = bytes([fragments.FRAGMENT])
ENGINE: Final = bytes([ENGINE_PDU])


class Receiver:
    """The way into a node."""

    def __init__(self, node: Node, seal: Seal | None) -> None:
        self.node = node
        self.schedule = node.schedule
        self.seal = seal
        self.reassembly = fragments.FragmentReassembly()

    def receive(self, data: bytes | memoryview, source: Address) -> None:
        """One datagram from the medium."""
        node, seal = self.node, self.seal
        driver: GroupDriver | None = None
        received: Envelope | None = None
        packet: bytes | None = None
        try:
            if seal is None:
                if data[:1] == SEALED:
                    raise MalformedPdu(NO_KEY)
            elif len(data) < SMALL:
                data = seal.open(data)
            else:
                data = seal.open_large(data)
            packet = data if type(data) is bytes else None
            if packet is None or packet[:1] == FRAGMENT:
                received, packet = self._assemble(data, source)
            if received is None:
                if packet is None:
                    return  # pieces of it are missing
                if packet[:1] != ENGINE:
                    self._hear(packet, source)
                    return
                if len(packet) < GROUP_ID_END:
                    raise MalformedPdu("short")
                if GROUP_ID.unpack_from(packet, GROUP_ID_AT)[0] not in self.schedule.drivers:
                    node.drop("group not hosted here")
                    return
                received = decode(packet, seal is not None)
            group, life = received.group_id, received.life
            if life in node.directory.past:
                node.drop(FORMER)
                return
            driver = self.schedule.touched[group] = self.schedule.drivers[group]
            hub, now = driver.hub, time.monotonic_ns()
            pdu, sender, chan_seq = received.pdu, received.sender, received.chan_seq
            if hub is not None and packet and hub.here and for_hub(chan_seq):
                hub.relay(packet, pdu, sender, chan_seq, now, life)
            else:
                driver.receive(pdu, sender, chan_seq, now, received.line, life)
        except MalformedPdu as error:
            node.drop(error.reason)
        except Exception as error:
            self._broken(driver, error)

    def _broken(self, driver: GroupDriver | None, error: Exception) -> None:
        """An invariant is broken: of that group and of no other, or of the node."""
        try:
            if driver is None:
                raise error
            self.node.faults.fail_group(driver.spec.name, error)
        except Exception as fault:  # stop rather than go on wrongly
            self.node.fail(fault)

    def _assemble(
        self, data: bytes | memoryview, source: Address
    ) -> tuple[Envelope | None, bytes | None]:
        """A large packet, or a piece of one: return the PDU in it, if it is one that need not be
        whole for that, or the packet; neither while pieces of it are missing."""
        seal = self.seal
        pieces: list[bytes | memoryview] | None = [data]
        if data[0] == fragments.FRAGMENT:
            # Sealed pieces are put together by the sender's boot id: addresses may be reused.
            peer = source if seal is None else seal.opened
            pieces = self.reassembly.collect(peer, data, time.monotonic_ns())
        if pieces is None:
            return None, None
        envelope = packet = driver = None
        first = pieces[0]
        if first[0] == ENGINE_PDU and len(first) >= GROUP_ID_END:
            driver = self.schedule.drivers.get(*GROUP_ID.unpack_from(first, GROUP_ID_AT))
        if driver is not None and driver.hub is None:
            envelope = decode_pieces(pieces, seal is not None)
        else:
            packet = b"".join(pieces)
        if seal is not None:
            for piece in pieces:
                seal.give_back(piece)
        return envelope, packet

    def _hear(self, data: bytes, source: Address) -> None:
        """A packet that is not for an engine of a group: AutoRM's, or of the nodes themselves."""
        node, kind = self.node, data[0] if data else -1
        self.schedule.node_touched = True
        now = time.monotonic_ns()
        if kind in (1, 2, 3):
            node.autorm.beamon.receive(beamon.decode(data), NOBODY, now)
            node.autorm.look = node.autorm.look or kind == beamon.HEARTBEAT
        elif kind in (control.INFO, control.PROBE, control.CONTROL):
            node.control.hear(control.decode(data), source, now)
        else:
            raise MalformedPdu("packet type", str(kind))
