"""The machine's network interfaces: by name or address, with their MTU."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Final

from msgspec import Struct

from roundelay.core.errors import ConfigError

SIOCGIFADDR: Final = 0x8915
SIOCGIFMTU: Final = 0x8921
UDP_OVERHEAD: Final = 28
"""IPv4 and UDP headers."""
LARGEST_DATAGRAM: Final = 65507
LOOPBACK: Final = "127.0.0.1"


class Interface(Struct, frozen=True):
    """An interface that has an IPv4 address."""

    name: str
    address: str
    mtu: int

    @property
    def datagram(self) -> int:
        """Bytes that fit one datagram without IP fragments."""
        return min(LARGEST_DATAGRAM, self.mtu - UDP_OVERHEAD)

    @property
    def loopback(self) -> bool:
        return self.address.startswith("127.")


def _ask(sock: socket.socket, request: int, name: str) -> bytes:
    query = struct.pack("16s16x", name.encode()[:15])
    return fcntl.ioctl(sock.fileno(), request, query)


def interfaces() -> list[Interface]:
    """All of them; those without an IPv4 address are of no use here."""
    usable = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                address = socket.inet_ntoa(_ask(sock, SIOCGIFADDR, name)[20:24])
                (mtu,) = struct.unpack_from("i", _ask(sock, SIOCGIFMTU, name), 16)
            except OSError:
                continue
            usable.append(Interface(name, address, mtu))
    return usable


def find(text: str) -> Interface:
    """The interface with that name or address."""
    known = interfaces()
    for interface in known:
        if text in (interface.name, interface.address):
            return interface
    choices = ", ".join(f"{interface.name} ({interface.address})" for interface in known)
    raise ConfigError("interface", text, f"one of {choices}")


def preferred() -> list[Interface]:
    """In the order in which to try them: the one that leads outside, the others, loopback last."""
    known = interfaces()
    outside = ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # an address for documentation: nothing is sent
            outside = sock.getsockname()[0]
        except OSError:
            pass
    return sorted(known, key=lambda each: (each.loopback, each.address != outside, each.name))


def parse_address(text: str, field: str) -> tuple[str, int]:
    """`HOST:PORT`, with HOST resolved to an IPv4 address.

    >>> parse_address("127.0.0.1:6677", "multicast")
    ('127.0.0.1', 6677)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(field, text, "HOST:PORT with a port from 0 to 65535")
    try:
        return socket.gethostbyname(host), int(port)
    except (OSError, UnicodeError) as error:
        raise ConfigError(field, text, f"a host that can be resolved ({error})") from None
