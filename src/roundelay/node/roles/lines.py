"""How the PDUs of a member leave: on the node's medium (line A), on line B, or in its network.

The second line is line B of a `journal` group (`node.medium.second_channel`), or the multicast
group of the member's network in a `wide` one.
"""

from __future__ import annotations

import time
from typing import Any

from roundelay.core.engine import EVERYONE, Pdu
from roundelay.core.grsb.pdu import LINE_A, LINE_B, PollOk
from roundelay.core.grsb.ways import Ways
from roundelay.node.driver.failpoints import Failpoint
from roundelay.node.medium.second_channel import SecondLine, open_line
from roundelay.node.roles.member import RoleMember
from roundelay.node.roles.persistence import Persistence
from roundelay.node.roles.status import silent_line
from roundelay.wire.codec import encode


class Lines:
    """The lines of one member in one group."""

    def __init__(self, member: RoleMember, persistence: Persistence) -> None:
        self.member = member
        self.node: Any = member.node
        self.persistence = persistence
        self.group_id = 0
        """Of our datagrams; 0: no history yet."""
        self.chan_seq = time.time_ns() // 1_000_000 & 0xFFFFFFFF
        self.sent = 0
        self.failpoint = Failpoint.from_environment()
        if self.failpoint is not None:
            self.node.log("warning", "group.failpoint", group=member.group, at=self.failpoint.text)
        self.second: SecondLine | None = None
        if member.roles.lines == 2:
            self.second = open_line(self.node, member.file.line_b, member.file.interface_b)
            self.node.transmitter.second_lines[member.group] = self.second.line

    def open_network(self) -> None:
        """Be heard in the member's network."""
        where = self.member.network_line()
        if where and self.second is None:
            self.second = open_line(self.node, where, "")

    def admits(self, sender: int, chan_seq: int = 0, life: int = 0) -> bool:
        """Whether a PDU is of another member."""
        member = sender < len(self.member.roster) and sender != self.member.me
        if not member:
            self.node.drop("sender is no other member")
        return member

    def transmit(self, destination: int, pdu: Pdu, line: int, now: int = 0) -> None:
        """Send `pdu` to a member or to EVERYONE; a recorder says only what is on disk."""
        if type(pdu) is PollOk:
            journal = self.persistence.journals.get(self.member.of_line(line))
            upto = None if journal is None else journal.durable(pdu.upto)
            if upto is None:
                return
            pdu = PollOk(upto)
        self.chan_seq = (self.chan_seq + 1) & 0xFFFFFFFF
        data = encode(
            pdu, sender=self.member.me, group_id=self.group_id, chan_seq=self.chan_seq, line=line,
            life=self.node.identity.tag,
        )  # fmt: skip
        self.sent += 1
        hint = data[2] << 8 | data[3]
        if destination != EVERYONE:
            self._unicast(destination, data, hint, line)
        else:
            self._multicast(data, hint, line)
        if self.failpoint is not None:
            self.failpoint.sent(hint)

    def _unicast(self, site: int, data: bytes, hint: int, line: int = LINE_A) -> None:
        name = self.member.roster[site]
        if line == LINE_B and self.second is not None:
            address = self.second.met.get(name)
            if address is not None:
                self.node.transmitter.send_line(self.second.line, data, hint, address)
                return
        if not self.node.transmitter.send_member(name, data, hint):
            self.node.drop("address of a member not known yet")

    def _multicast(self, data: bytes, hint: int, line: int) -> None:
        neighbours = self.member.neighbours
        if self.second is not None and (line == LINE_B or neighbours is not None):
            self.node.transmitter.send_line(self.second.line, data, hint)
        elif neighbours is None:
            self.node.transmitter.send(data, hint)
        else:
            for site in neighbours:
                self._unicast(site, data, hint)

    def stand_in(self, ways: Ways | None, now: int) -> None:
        """GR-24: while line A may be out of order the node itself is heard on line B, too.

        Also when nothing is heard on either, or not yet: whoever has just started is not known
        there, and gets no answer before it is.
        """
        stand_ins, group = self.node.transmitter.stand_ins, self.member.group
        if (
            self.second is not None
            and self.member.roles.lines == 2
            and (
                ways is None
                or silent_line(ways) == LINE_A
                or ways.heard[LINE_A] + ways.config.alive_timeout_ns < now
            )
        ):
            stand_ins[group] = self.second.line
        else:
            stand_ins.pop(group, None)

    def close(self) -> None:
        for lines in (self.node.transmitter.stand_ins, self.node.transmitter.second_lines):
            lines.pop(self.member.group, None)
        if self.second is not None:
            self.second.close()
