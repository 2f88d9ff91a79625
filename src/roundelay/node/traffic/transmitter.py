"""What a node sends: sealed, cut into datagrams, on the medium and on the lines beside it."""

from __future__ import annotations

import secrets
from typing import Final

from roundelay.node.medium.interfaces import LARGEST_DATAGRAM
from roundelay.node.medium.media import EVERYBODY, Address, FanoutMedium, Medium
from roundelay.node.medium.second_channel import DatagramPath
from roundelay.node.membership.directory import Directory
from roundelay.wire import control, fragments
from roundelay.wire.envelope import CHECKSUM_SIZE, checksum
from roundelay.wire.seal import OVERHEAD, Seal

NO_CHECKSUM: Final = bytes(CHECKSUM_SIZE)


class Transmitter:
    """The way out of a node."""

    def __init__(self, medium: Medium, seal: Seal | None, directory: Directory) -> None:
        self.medium = medium
        self.seal = seal
        self.directory = directory
        self.stand_ins: dict[str, DatagramPath] = {}
        """Groups whose line A is out of order, and their line B."""
        self.second_lines: dict[str, DatagramPath] = {}
        """By group: its line B."""
        self.overhead = OVERHEAD if seal is not None else 0
        self._ident = secrets.randbits(32)
        self.measure()

    def measure(self) -> None:
        """The medium may take datagrams of another size than before."""
        self.room = min(self.medium.mtu, LARGEST_DATAGRAM) - self.overhead

    @property
    def address(self) -> Address:
        """Where others reach this node."""
        medium = self.medium
        return medium.advertised if isinstance(medium, FanoutMedium) else medium.address

    def send(self, data: bytes, hint: int = 0, to: Address | None = EVERYBODY) -> None:
        """To everybody, or to one, on the medium."""
        if len(data) <= self.room:
            self.medium.send(self.seal.seal(data) if self.seal else data, to, hint)
        else:
            self.medium.send_train(self._pieces(data, self.room), to, hint)

    def send_parts(self, parts: list[bytes], hint: int = 0) -> None:
        """A large PDU to everybody, its checksum still missing."""
        seal = self.seal
        if seal is None or self.medium.trains:
            parts.append(checksum(parts))
            self.send(b"".join(parts), hint)
            return
        # The seal tells more than the checksum would: nobody looks at that.
        parts.append(NO_CHECKSUM)
        for piece in fragments.split_parts(parts, self.room, self._next_ident()):
            self.medium.send(seal.seal_parts(piece), EVERYBODY, hint)

    def send_member(self, name: str, data: bytes, hint: int = 0) -> bool:
        """To the node of that name; False if nobody knows where it is."""
        known = self.directory.by_name.get(name)
        if known is None:
            return False
        self.send(data, hint, known.address)
        return True

    def send_line(
        self, line: DatagramPath, data: bytes, hint: int = 0, to: Address | None = EVERYBODY
    ) -> None:
        """The same on another line than the medium (`node.medium.second_channel`)."""
        room = min(self.room, line.mtu - self.overhead)
        if len(data) <= room:
            line.send(self.seal.seal(data) if self.seal else data, to, hint)
        else:
            line.send_train(self._pieces(data, room), to, hint)

    def send_autorm(self, data: bytes, hint: int) -> None:
        """What AutoRM has to say: also on the lines that stand in for the medium."""
        self.send(data, hint)
        for line in self.stand_ins.values():
            self.send_line(line, data, hint)

    def send_control(self, word: control.Control | control.Info) -> None:
        """What the node itself has to say, who it is and what it has: on second lines, too.

        Another one may hear nothing on the medium, which nobody else can know.
        """
        data = control.encode(word)
        self.send(data)
        for line in self.second_lines.values():
            self.send_line(line, data)

    def _next_ident(self) -> int:
        self._ident = (self._ident + 1) & 0xFFFFFFFF
        return self._ident

    def _pieces(self, data: bytes, room: int) -> list[bytes]:
        pieces = fragments.split(data, room, self._next_ident())
        return [self.seal.seal(piece) for piece in pieces] if self.seal else pieces
