"""The medium that is our own switch: everything goes to it, everything comes from it."""

from __future__ import annotations

import asyncio

from roundelay.core.errors import MalformedPdu
from roundelay.node.medium.interfaces import LOOPBACK
from roundelay.node.medium.media import EVERYBODY, Address, Medium, udp_socket
from roundelay.wire import switch_header


class SwitchMedium(Medium):
    """A port of the switch at `switch`."""

    def __init__(self, switch: Address, name: str) -> None:
        own = LOOPBACK if switch[0].startswith("127.") else "0.0.0.0"
        super().__init__(udp_socket((own, 0), "own address"), switch_header.DATAGRAM_MAX)
        self.switch = switch
        self.name = name
        self._hello: asyncio.TimerHandle | None = None

    def describe(self) -> str:
        return f"switch:{self.switch[0]}:{self.switch[1]}"

    def start(self, received, drained) -> None:  # type: ignore[no-untyped-def]
        self._handed = received
        super().start(self._unwrap, drained)
        self._say_hello()

    def stop(self) -> None:
        if self._hello is not None:
            self._hello.cancel()
        super().stop()

    def _say_hello(self) -> None:
        super().send(switch_header.hello(self.name), self.switch)
        loop = asyncio.get_running_loop()
        self._hello = loop.call_later(switch_header.HELLO_EVERY_S, self._say_hello)

    def _unwrap(self, data: bytes, source: Address) -> None:
        if source != self.switch:
            self.count("not from the switch")
            return
        try:
            kind, sender, datagram = switch_header.arrived(data)
        except MalformedPdu as error:
            self.count(error.reason)
            return
        if kind == switch_header.HELLO:
            self.address = sender  # how the switch, and so everybody, knows us
        else:
            self._handed(datagram, sender)

    def send(self, data: bytes | memoryview, to: Address | None = EVERYBODY, hint: int = 0) -> None:
        if to is EVERYBODY:
            super().send(switch_header.multicast(data, hint), self.switch)
        else:
            super().send(switch_header.unicast(data, to, hint), self.switch)

    def send_b(self, data: bytes, to: Address | None = EVERYBODY, hint: int = 0) -> None:
        """On line B (`node.medium.second_channel`)."""
        if to is EVERYBODY:
            datagram = switch_header.multicast(data, hint, switch_header.MULTICAST_B)
        else:
            datagram = switch_header.unicast(data, to, hint, switch_header.UNICAST_B)
        super().send(datagram, self.switch)
