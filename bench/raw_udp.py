"""Raw UDP between Python processes: what `bench.throughput` compares live groups with.

One process multicasts datagrams as fast as it can; four receive them and cut them into messages:
a table of lengths, then the messages end to end.  Nothing is ordered, repeated or answered, and
what a receiver has no time for is lost.  Besides, the time of a round trip of one small datagram.

A child process that reads one JSON request a line and answers with one line; see `bench.children`.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping

GROUP = "239.255.66.78"
LOOPBACK = "127.0.0.1"
BUFFER_BYTES = 8 << 20
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
END = b"end"
HEAD = struct.Struct(">H")
PACE_NS = 100_000
"""How far ahead of its pace a sender may be."""
PATIENCE = struct.pack("ll", 10, 0)
"""A receiver that hears nothing for so long fails (struct timeval)."""
SLICES, STRUCT = "slices", "struct"


def enlarged(sock: socket.socket) -> socket.socket:
    for force, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        except OSError:
            sock.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
    return sock


def datagram(size: int, total: int) -> bytes:
    """Messages of `size` bytes with their table, `total` bytes at most."""
    count = (total - HEAD.size) // (size + 2)
    return HEAD.pack(count) + struct.pack(f">{count}H", *[size] * count) + bytes(size) * count


def by_slices(data: bytes) -> list[bytes]:
    """The messages, as anybody would cut them."""
    (count,) = HEAD.unpack_from(data)
    at = HEAD.size + 2 * count
    messages = []
    for size in struct.unpack_from(f">{count}H", data, HEAD.size):
        messages.append(data[at : at + size])
        at += size
    return messages


CODES = {size: f"{size}s" for size in range(2048)}


def by_struct(data: bytes) -> tuple[bytes, ...]:
    """The messages, as `Bundle.messages` cuts them."""
    (count,) = HEAD.unpack_from(data)
    sizes = struct.unpack_from(f">{count}H", data, HEAD.size)
    return struct.unpack_from("".join(map(CODES.__getitem__, sizes)), data, HEAD.size + 2 * count)


def receive(port: int, cut: str, begin_ns: int, until_ns: int) -> dict[str, float]:
    """What comes between the two times."""
    sock = enlarged(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((GROUP, port))
    member = socket.inet_aton(GROUP) + socket.inet_aton(LOOPBACK)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)
    parse = by_slices if cut == SLICES else by_struct
    clock, recv = time.monotonic_ns, sock.recv
    count = datagrams = cpu = 0
    while (data := recv(65535)) != END:
        messages = parse(data)
        if begin_ns <= clock() < until_ns:
            if not datagrams:
                cpu = time.process_time_ns()
            count += len(messages)
            datagrams += 1
    cpu = time.process_time_ns() - cpu
    sock.close()
    return {"count": count, "datagrams": datagrams, "cpu_s": cpu / 1e9}


def send(port: int, size: int, total: int, until_ns: int, rate: float) -> dict[str, float]:
    """`rate` datagrams a second; 0: as many as possible."""
    sock = enlarged(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
    data = datagram(size, total)
    sendto, clock, to = sock.sendto, time.monotonic_ns, (GROUP, port)
    sent, cpu, start = 0, time.process_time_ns(), clock()
    gap_ns = int(1e9 / rate) if rate else 0
    while (now := clock()) < until_ns:
        ahead = start + sent * gap_ns - now
        if ahead > PACE_NS:
            time.sleep(ahead / 1e9)
        sendto(data, to)
        sent += 1
    cpu = time.process_time_ns() - cpu
    for _ in range(20):  # the receivers' queues may be full at first
        time.sleep(0.02)
        sendto(END, to)
    return {"datagrams": sent, "datagram_bytes": len(data), "cpu_s": cpu / 1e9}


def echo(port: int) -> dict[str, float]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((LOOPBACK, port))
    while True:
        data, source = sock.recvfrom(2048)
        if data == END:
            return {}
        sock.sendto(data, source)


def ping(port: int, size: int, rate: float, seconds: float) -> dict[str, list[int]]:
    """Round trips, `rate` of them a second, in nanoseconds."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((LOOPBACK, port))
    sock.settimeout(1.0)
    data, times = bytes(size), []
    start = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        sent = time.monotonic_ns()
        sock.send(data)
        sock.recv(2048)
        times.append(time.monotonic_ns() - sent)
    sock.send(END)
    return {"times": times}


REQUESTS: dict[str, Callable[..., Mapping[str, object]]] = {
    "receive": receive,
    "send": send,
    "echo": echo,
    "ping": ping,
}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        do = REQUESTS[request.pop("do")]
        print(json.dumps(do(**request)), flush=True)


if __name__ == "__main__":
    main()
