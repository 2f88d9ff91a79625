"""What a node gets from the medium, and what it gives to it: sealed, split, and sorted by group."""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import SECOND
from roundelay.core.errors import MalformedPdu
from roundelay.node.acquaintance import Acquaintances
from roundelay.node.directory import Directory, address_of, tag_of
from roundelay.node.hints import HINTS, NAME_TAKEN, NO_KEY
from roundelay.node.identity import ANSWER, ANSWERS, YIELD, Identity
from roundelay.node.lines import Line
from roundelay.node.media import Address, FanoutMedium, Medium
from roundelay.node.one_channel import for_hub
from roundelay.node.places import Driven, Place
from roundelay.wire import beamon, fragments, info, quick, seal
from roundelay.wire.codec import (
    CHECKSUM,
    ENGINE_PDU,
    Envelope,
    checksum,
    decode,
    decode_pieces,
)

if TYPE_CHECKING:
    from roundelay.node.autorm import AutoRm
    from roundelay.node.faults import Faults
    from roundelay.node.recorders import Recorders

GROUP_ID: Final = struct.Struct(">I")
GROUP_ID_AT: Final = 8
SMALL: Final = 4096
"""Bytes of a datagram that is looked at by the quick way first."""
NO_CHECKSUM: Final = bytes(CHECKSUM.size)


class Traffic(ABC):
    """The part of a node that deals with datagrams."""

    name: str
    identity: Identity
    acquaintances: Acquaintances | None
    uuid: bytes
    rng: Random
    medium: Medium
    drops: dict[str, int]
    directory: Directory
    reassembly: fragments.Reassembly
    hosted: dict[int, Driven]
    assemblies: dict[str, Place]
    recorders: Recorders
    faults: Faults
    autorm: AutoRm
    stand_ins: dict[str, Line]
    second_lines: dict[str, Line]
    """Groups whose line A is out of order, and their line B."""
    _seal: seal.Seal | None
    _ident: int
    _touched: dict[int, Driven]
    _beside: bool
    _info_due: int
    _room: int

    @abstractmethod
    def _drained(self) -> None:
        """All that had arrived was handed over."""

    @abstractmethod
    def _fail(self, error: BaseException) -> None: ...

    @abstractmethod
    def _info(self) -> info.Info: ...

    @abstractmethod
    def _arm(self, due: int, move: bool = False) -> None: ...

    @abstractmethod
    def log(self, level: str, event: str, **fields: object) -> None: ...

    # -- what arrives ----------------------------------------------------------------------

    @property
    def _address(self) -> Address:
        medium = self.medium
        return medium.advertised if isinstance(medium, FanoutMedium) else medium.address

    def drop(self, reason: str) -> None:
        count = self.drops[reason] = self.drops.get(reason, 0) + 1
        hint = HINTS.get(reason)
        if hint is None or count != hint.after:
            return
        if not hint.alone or self.directory.by_name.keys() <= {self.name}:
            self.log("warning", hint.event, reason=reason, hint=hint.text)

    def _datagram(self, data: bytes | memoryview, source: Address) -> None:
        """One datagram from the medium: nothing in it is believed before it is checked."""
        sealed, outer = self._seal, data
        try:
            if sealed is not None:
                if len(outer) < SMALL:
                    opened: bytes = sealed.open(outer)
                    found = quick.read(opened)
                    if found is not None:
                        group, pdu, sender, chan_seq, life = found
                        hosted = self.hosted.get(group)
                        if hosted is not None and hosted.hub is None:
                            self._touched[group] = hosted
                            try:
                                now = time.monotonic_ns()
                                hosted.receive(pdu, sender, chan_seq, now, 0, life)
                            except MalformedPdu:
                                raise
                            except Exception as error:  # of that group, and of no other
                                self.faults.group(hosted.spec.name, error)
                            return
                    data = opened
                else:
                    data = sealed.open_large(outer)
            elif data[:1] == b"\x20":
                raise MalformedPdu(NO_KEY)
            if type(data) is bytes and data[:1] != b"\x11":
                self._packet(data, source, intact=sealed is not None)
                return
            pieces: list[bytes | memoryview] | None = [data]
            if data[0] == fragments.FRAGMENT:
                # Sealed pieces are put together by the sender's boot id: addresses may be reused.
                peer = source if sealed is None else sealed.opened
                pieces = self.reassembly.collect(peer, data, time.monotonic_ns())
            if pieces is not None:
                self._pieces_packet(pieces, source, intact=sealed is not None)
                if sealed is not None:
                    for piece in pieces:
                        sealed.give_back(piece)
        except MalformedPdu as error:
            self.drop(error.reason)
        except Exception as error:  # a broken invariant: stop rather than go on wrongly
            self._fail(error)

    def _pieces_packet(
        self, pieces: list[bytes | memoryview], source: Address, intact: bool
    ) -> None:
        """A large packet; nothing of it may refer to `pieces` afterwards."""
        first = pieces[0]
        if first[0] == ENGINE_PDU and len(first) >= GROUP_ID_AT + GROUP_ID.size:
            (group,) = GROUP_ID.unpack_from(first, GROUP_ID_AT)
            hosted = self.hosted.get(group)
            if hosted is not None and hosted.hub is None:
                envelope = decode_pieces(pieces, intact)
                self._touched[group] = hosted
                self._hand_over(hosted, envelope)
                return
        self._packet(b"".join(pieces), source, intact)

    def _packet(self, data: bytes, source: Address, intact: bool = False) -> None:
        kind = data[0] if data else -1
        if kind == ENGINE_PDU:
            if len(data) < GROUP_ID_AT + GROUP_ID.size:
                raise MalformedPdu("short")
            (group,) = GROUP_ID.unpack_from(data, GROUP_ID_AT)
            hosted = self.hosted.get(group)
            if hosted is None:
                self.drop("group not hosted here")
                return
            envelope = decode(data, intact)
            self._touched[group] = hosted
            self._hand_over(hosted, envelope, data)
            return
        self._beside = True
        if kind in (1, 2, 3):
            self.autorm.beamon.receive(beamon.decode(data), time.monotonic_ns())
            self.autorm.look = self.autorm.look or kind == beamon.HEARTBEAT
        elif kind in (info.INFO, info.PROBE, info.CONTROL):
            self._own_packet(info.decode(data), source)
        else:
            raise MalformedPdu("packet type", str(kind))

    def _hand_over(self, hosted: Driven, found: Envelope, data: bytes = b"") -> None:
        """To the group; `data` is the whole packet, where the group may have a hub."""
        if found.life in self.directory.past:
            self.drop("of an earlier life of its sender")
            return
        now = time.monotonic_ns()
        hub = hosted.hub
        try:
            if data and hub is not None and hub.here and for_hub(found.chan_seq):
                hosted.relay(data, found.pdu, found.sender, found.chan_seq, now, found.life)
            else:
                hosted.receive(found.pdu, found.sender, found.chan_seq, now, found.line, found.life)
        except MalformedPdu:
            raise
        except Exception as error:  # of that group, and of no other
            self.faults.group(hosted.spec.name, error)

    def _own_packet(self, body: Any, source: Address) -> None:
        now = time.monotonic_ns()
        if isinstance(body, info.Info):
            if body.uuid == self.uuid:
                return
            address = address_of(body, source)
            if body.name == self.name:
                self._namesake(body, address)
                return
            if body.claims or self.directory.outlived(body, now):
                if body.claims and isinstance(self.medium, FanoutMedium):
                    # Who has the name may not be among its seeds: it hears of our peers.
                    self.send_to(address, info.encode(self._info()))
                    self._hear_of(body, address, now)
                return
            if self.directory.hear(body, source, now):
                self.autorm.look = True
                self._info_due = min(self._info_due, now + self.rng.randrange(SECOND // 20))
                self._arm(self._info_due)
            self._hear_of(body, address, now)
            for assembly in list(self.assemblies.values()):
                self.faults.within(assembly, assembly.heard, body, now)
        elif isinstance(body, info.Ask) and self._outlived(body):
            self.drop("of an earlier life of its sender")
        elif isinstance(body, info.Ask | info.Start):
            concerned = self.assemblies.get(body.group)
            if concerned is not None:
                self.faults.within(concerned, concerned.told, body, now)
        elif isinstance(body, info.Knock):
            self._knocked(body, source, now)
        elif isinstance(body, info.Recorded | info.Kept | info.Wanted | info.Synced):
            self.faults.aside("recorders", self.recorders.hear, body, now)

    def _outlived(self, ask: info.Ask) -> bool:
        """Whether another life has that name by now: a roster goes by names, and with the old one
        in it the other would be shut out."""
        if not ask.life:
            return False
        if ask.name == self.name:
            return ask.life != self.uuid
        return tag_of(ask.life) in self.directory.past

    def _hear_of(self, body: info.Info, address: Address, now: int) -> None:
        """Without multicast: who spoke, and whom it knows."""
        if self.acquaintances is not None:
            self.acquaintances.spoke(address, now)
            for peer in body.peers:
                self.acquaintances.named(peer, now)

    def _knocked(self, knock: info.Knock, source: Address, now: int) -> None:
        if not knock.back:
            self.send_to(source, info.encode(info.Knock(knock.token, back=True)))
        elif self.acquaintances is not None and self.acquaintances.answered(knock.token, now):
            self._info_due = min(self._info_due, now)  # it has not heard of us yet
            self._arm(self._info_due)

    def _namesake(self, body: info.Info, address: Address) -> None:
        """Somebody else says that our name is its own (`node.identity`)."""
        self.directory.bury(body.uuid, body.name)  # as long as we go on, the name is ours
        if self.identity.fresh:
            self.identity.look(any(one.delivered for one in self.hosted.values()))
        verdict = self.identity.meet(body, address)
        if verdict == ANSWER:
            self.drop(NAME_TAKEN)
            answer = info.encode(self._info())
            for _ in range(ANSWERS if body.claims else 1):
                self.send_to(address, answer)
        elif verdict == YIELD:
            assert self.identity.rival is not None
            self._fail(self.identity.rival)

    # -- what is sent ------------------------------------------------------------------------

    def send_everyone(self, data: bytes, hint: int = 0) -> None:
        for_all = self.medium
        if len(data) <= self._room:
            for_all.multicast(self._seal.seal(data) if self._seal else data, hint)
        else:
            for_all.multicast_train(self._pieces(data), hint)

    def send_parts(self, parts: list[bytes], hint: int = 0) -> None:
        """A large PDU to everybody, its checksum still missing."""
        sealed = self._seal
        if sealed is None or self.medium.trains:
            parts.append(checksum(parts))
            self.send_everyone(b"".join(parts), hint)
            return
        # The seal tells more than the checksum would: nobody looks at that.
        parts.append(NO_CHECKSUM)
        self._ident = (self._ident + 1) & 0xFFFFFFFF
        for piece in fragments.split_parts(parts, self._room, self._ident):
            self.medium.multicast(sealed.seal_parts(piece), hint)

    def say_everyone(self, data: bytes, hint: int = 0) -> None:
        """What AutoRM has to say: also on the lines that stand in for the medium."""
        self.send_everyone(data, hint)
        for line in self.stand_ins.values():
            self.send_line(line, data, hint)

    def tell_everyone(self, data: bytes) -> None:
        """What the node itself has to say, who it is and what it has: on second lines, too.

        Another one may hear nothing on the medium, which nobody else can know.
        """
        self.send_everyone(data)
        for line in self.second_lines.values():
            self.send_line(line, data)

    def send_line(self, line: Line, data: bytes, hint: int = 0, to: Address | None = None) -> None:
        """To everybody, or one, on another line than the medium (`node.lines`)."""
        room = min(self._room, line.mtu - (seal.OVERHEAD if self._seal else 0))
        if len(data) > room:
            pieces = self._pieces(data, room)
            if to is None:
                line.multicast_train(pieces, hint)
            else:
                line.unicast_train(pieces, to, hint)
            return
        sealed = self._seal.seal(data) if self._seal else data
        if to is None:
            line.multicast(sealed, hint)
        else:
            line.unicast(sealed, to, hint)

    def attach(self, medium: Medium) -> None:
        """What arrives there is for us as well."""
        medium.start(self._datagram, self._drained)

    def send_to(self, address: Address, data: bytes, hint: int = 0) -> None:
        if len(data) <= self._room:
            self.medium.unicast(self._seal.seal(data) if self._seal else data, address, hint)
        else:
            self.medium.unicast_train(self._pieces(data), address, hint)

    def send_member(self, name: str, data: bytes, hint: int = 0) -> bool:
        """To the node of that name; False if nobody knows where it is."""
        known = self.directory.by_name.get(name)
        if known is None:
            return False
        self.send_to(known.address, data, hint)
        return True

    def _pieces(self, data: bytes, room: int = 0) -> list[bytes]:
        self._ident = (self._ident + 1) & 0xFFFFFFFF
        pieces = fragments.split(data, room or self._room, self._ident)
        return [self._seal.seal(piece) for piece in pieces] if self._seal else pieces
