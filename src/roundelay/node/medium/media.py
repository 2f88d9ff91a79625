"""The medium: datagrams to everybody or to one, over real sockets.

Three ways to reach everybody, one interface: multicast where the network has it, unicast fan-out
to known peers where it has not, and our own switch (`roundelay switch`), which loses, delays and
cuts on purpose.  Each medium receives on one or two sockets, drains up to 64 datagrams per
wake-up, and tells its owner when a batch is through, so that the owner flushes once per batch.

`hint` says what a datagram carries (`wire.switch_header.hint_of`); only the switch looks at it.  A
datagram that the kernel will not take now is dropped and counted: to the protocols above that
is loss like any other.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from roundelay.core.errors import ConfigError
from roundelay.node.medium.interfaces import LARGEST_DATAGRAM, Interface

Address = tuple[str, int]

EVERYBODY: Final = None
"""Where a datagram goes that is not for one node alone."""

DRAIN: Final = 64
"""Datagrams taken per wake-up, so that timers and applications get their turn."""
BUFFER_BYTES: Final = 8 << 20
"""Asked of the kernel for each socket: room for a burst while Python is busy."""
LENT_LEAST: Final = 4096
"""Below, a copy costs less than a view."""
IP_MULTICAST_ALL: Final = 49
SO_RCVBUFFORCE: Final = 33
SO_SNDBUFFORCE: Final = 32
SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SEGMENTS_MAX: Final = 64
"""Segments the kernel takes in one send."""
SEGMENT_SIZE: Final = struct.Struct("H")
SO_ATTACH_FILTER: Final = 26
FILTER_STEP: Final = struct.Struct("HBBI")  # struct sock_filter
FILTER: Final = struct.Struct("HP")  # struct sock_fprog


def enlarge(sock: socket.socket) -> None:
    """Larger buffers, as far as we may."""
    for force, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        except OSError:
            sock.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)


def udp_socket(address: Address, what: str) -> socket.socket:
    """A bound UDP socket, or an error that says what is wrong with the address."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        enlarge(sock)
        sock.bind(address)
    except OSError as error:
        sock.close()
        allowed = f"an address of this machine with a free port ({error.strerror})"
        raise ConfigError(what, f"{address[0]}:{address[1]}", allowed) from None
    return sock


def check_multicast(group: Address) -> None:
    """ConfigError unless `group` can be a medium."""
    if not 224 <= int(group[0].split(".")[0]) <= 239:
        raise ConfigError("multicast", group[0], "an address from 224.0.0.0 to 239.255.255.255")
    if not group[1]:
        raise ConfigError("multicast", f"{group[0]}:0", "a port from 1 to 65535, the same for all")


class Medium(ABC):
    """Datagrams in and out.  `received` gets (data, source) of each, `drained` ends a batch."""

    burst: int = 0
    """Bytes that may arrive at once where only a lack of room loses any; 0: others get lost too."""

    def __init__(self, sock: socket.socket, mtu: int) -> None:
        self.sock = sock
        self.mtu = mtu
        """Bytes in one datagram."""
        self.address: Address = sock.getsockname()
        """Where peers reach us."""
        self.everybody: Address = self.address
        """The address under which one datagram reaches all, where there is one."""
        self.counts: dict[str, int] = {"sent": 0, "received": 0, "bytes_out": 0, "bytes_in": 0}
        self.trains = mtu < LARGEST_DATAGRAM // 2  # otherwise no two of them fit one read
        self.offload = self.trains and self._try_offload(sock)
        self._sockets = [sock]
        self._loop: asyncio.AbstractEventLoop | None = None
        self.lend = False
        """Hand over views of one buffer, which are good until `received` returns."""
        self._buffer = memoryview(bytearray(65536))
        self.received: Callable[[Any, Address], None] = lambda data, source: None
        self.drained: Callable[[], None] = lambda: None

    # -- life ------------------------------------------------------------------------------

    def start(self, received: Callable[[Any, Address], None], drained: Callable[[], None]) -> None:
        """Hand over what arrives from now on, in the running event loop."""
        self.received, self.drained = received, drained
        self._loop = asyncio.get_running_loop()
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._readable, sock)

    def stop(self) -> None:
        """Hand over nothing more."""
        for sock in self._sockets:
            if self._loop is not None:
                self._loop.remove_reader(sock.fileno())
        self._loop = None

    def close(self) -> None:
        self.stop()
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    def _take_over(self, fresh: Medium) -> None:
        """Go on with the sockets of `fresh`, which is not used any more."""
        loop = self._loop
        self.close()
        self.sock, self._sockets, fresh._sockets = fresh.sock, fresh._sockets, []
        self.address, self.mtu = fresh.address, fresh.mtu
        self.trains, self.offload, self.burst = fresh.trains, fresh.offload, fresh.burst
        if loop is not None:
            self.start(self.received, self.drained)

    @abstractmethod
    def describe(self) -> str:
        """In a few words, without blanks."""

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- in --------------------------------------------------------------------------------

    def _try_offload(self, sock: socket.socket) -> bool:
        """UDP_GRO: the kernel hands over a train of equal datagrams at once, where it can."""
        try:
            sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        except OSError:
            return False
        return True

    def _readable(self, sock: socket.socket) -> None:
        """What has come: one datagram at a time, or a train of them of one size."""
        counts, mine, received = self.counts, self.address, self.received
        trains, lend, buffer = self.trains, self.lend, self._buffer
        data: bytes | memoryview
        ancillary: list[tuple[int, int, bytes]] = []
        for _ in range(DRAIN):
            try:
                if trains:
                    data, ancillary, _, source = sock.recvmsg(65535, 64)
                    size = len(data)
                elif lend:
                    size, source = sock.recvfrom_into(buffer)
                    data = buffer[:size] if size > LENT_LEAST else bytes(buffer[:size])
                else:
                    data, source = sock.recvfrom(65535)
                    size = len(data)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.count("receive error")  # an ICMP answer to something we sent
                continue
            if source == mine:
                continue  # multicast returns our own
            counts["received"] += 1
            counts["bytes_in"] += size
            each = size
            for level, kind, value in ancillary:
                if level == SOL_UDP and kind == UDP_GRO:
                    (each,) = SEGMENT_SIZE.unpack_from(value)
            if each >= size:
                received(data, source)
            else:
                for start in range(0, size, each):
                    received(data[start : start + each], source)
        self.drained()

    # -- out -------------------------------------------------------------------------------

    def send(self, data: bytes | memoryview, to: Address | None = EVERYBODY, hint: int = 0) -> None:
        """One datagram, to one node or to everybody but ourselves."""
        try:
            self.sock.sendto(data, to or self.everybody)
        except (BlockingIOError, InterruptedError):
            self.count("send buffer full")
        except OSError as error:
            self.count(f"send: {error.strerror}")
        else:
            self.counts["sent"] += 1
            self.counts["bytes_out"] += len(data)

    def send_train(self, parts: list[bytes], to: Address | None = EVERYBODY, hint: int = 0) -> None:
        """Several datagrams of one size (the last may be shorter).

        UDP_SEGMENT: one system call for many of them, where the kernel can."""
        size = len(parts[0])
        if not self.offload or len(parts) == 1:
            for part in parts:
                self.send(part, to, hint)
            return
        address = to or self.everybody
        each = max(1, min(SEGMENTS_MAX, LARGEST_DATAGRAM // size))
        for start in range(0, len(parts), each):
            run = parts[start : start + each]
            try:
                segments = [(SOL_UDP, UDP_SEGMENT, SEGMENT_SIZE.pack(size))]
                self.sock.sendmsg(run, segments, 0, address)
            except (BlockingIOError, InterruptedError):
                self.count("send buffer full")
            except OSError:
                self.offload = False  # this route cannot; it was worth a try
                for part in run:
                    self.send(part, to, hint)
            else:
                self.counts["sent"] += len(run)
                self.counts["bytes_out"] += sum(map(len, run))


class MulticastMedium(Medium):
    """One IPv4 multicast group on one interface; unicast beside it."""

    def __init__(self, group: Address, interface: Interface, ttl: int = 1) -> None:
        check_multicast(group)
        sock = udp_socket((interface.address, 0), "interface address")
        super().__init__(sock, interface.datagram)
        self.group = self.everybody = group
        self.interface = interface
        self.ttl = ttl
        own = socket.inet_aton(interface.address)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sockets.append(listener)
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            enlarge(listener)
            if interface.loopback:  # the kernel counts its own overhead as well
                self.burst = listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
            listener.bind(group)
            member = socket.inet_aton(group[0]) + own
            listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            listener.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
            if self.trains:
                self._try_offload(listener)
        except OSError as error:
            self.close()
            allowed = (
                f"a group that {interface.name} lets us join ({error.strerror}); "
                "or give seeds for unicast fan-out"
            )
            raise ConfigError("multicast", f"{group[0]}:{group[1]}", allowed) from None

    def reopen(self, interface: Interface) -> None:
        """Go on with the address that `interface` has now."""
        fresh = MulticastMedium(self.group, interface, self.ttl)
        fresh.mtu = min(fresh.mtu, self.mtu)
        fresh.ignore_own()
        self.interface = interface
        self._take_over(fresh)

    def ignore_own(self) -> None:
        """Let the kernel drop what comes back to us, before it wakes us up, where it can."""
        host, port = self.address
        (own,) = struct.unpack("!I", socket.inet_aton(host))
        steps = (
            (0x20, 0, 0, 0xFFF00000 + 12),  # the source in the IP header:
            (0x15, 0, 3, own),  # is it our address?
            (0x28, 0, 0, 0),  # the source in the UDP header:
            (0x15, 0, 1, port),  # is it our port?
            (0x06, 0, 0, 0),  # then drop it,
            (0x06, 0, 0, 0xFFFFFFFF),  # otherwise take it whole
        )
        program = ctypes.create_string_buffer(b"".join(FILTER_STEP.pack(*step) for step in steps))
        listener = self._sockets[1]
        with suppress(OSError):  # without it, `_readable` does the same
            value = FILTER.pack(len(steps), ctypes.addressof(program))
            listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, value)

    def describe(self) -> str:
        return f"multicast:{self.group[0]}:{self.group[1]}@{self.interface.name}"


class FanoutMedium(Medium):
    """Unicast to every known peer; `peers` starts as the seeds and grows as nodes are heard."""

    PEERS_MAX: Final = 256

    def __init__(
        self, address: Address, seeds: Iterable[Address], mtu: int, advertise: Address | None = None
    ) -> None:
        super().__init__(udp_socket(address, "listen address"), mtu)
        self.advertised = advertise or self.address
        self.seeds = [seed for seed in seeds if seed not in (self.address, self.advertised)]
        self.peers: dict[Address, None] = dict.fromkeys(self.seeds)

    def describe(self) -> str:
        return f"fanout:{self.advertised[0]}:{self.advertised[1]}"

    def reopen(self, interface: Interface) -> None:
        """Go on with the address that `interface` has now, on the same port if it is free."""
        advertise = None if self.advertised == self.address else self.advertised
        try:
            fresh = FanoutMedium((interface.address, self.address[1]), (), self.mtu, advertise)
        except ConfigError:
            fresh = FanoutMedium((interface.address, 0), (), self.mtu, advertise)
        self.advertised = fresh.advertised
        self._take_over(fresh)

    def meet(self, peer: Address) -> None:
        """`peer` is a node that should hear everything we say."""
        if peer in (self.address, self.advertised) or peer in self.peers:
            return
        if len(self.peers) >= self.PEERS_MAX:
            self.count("too many peers")
            return
        self.peers[peer] = None

    def part(self, peer: Address) -> None:
        """`peer` is dead; seeds are kept, for they may come back under the same address."""
        if peer not in self.seeds:
            self.peers.pop(peer, None)

    def send(self, data: bytes | memoryview, to: Address | None = EVERYBODY, hint: int = 0) -> None:
        for peer in self.peers if to is EVERYBODY else (to,):
            super().send(data, peer, hint)

    def send_train(self, parts: list[bytes], to: Address | None = EVERYBODY, hint: int = 0) -> None:
        for peer in self.peers if to is EVERYBODY else (to,):
            super().send_train(parts, peer, hint)
