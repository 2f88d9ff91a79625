"""Sockets to listen on for frontends, or one clear line why not."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress

from roundelay.core.errors import ConfigError
from roundelay.wire.frontend import Address


async def tcp_socket(
    loop: asyncio.AbstractEventLoop, endpoint: Address, open_to_network: bool
) -> socket.socket:
    try:
        candidates = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        allowed = f"a host that is known here ({error.strerror or error})"
        raise ConfigError("frontend", endpoint, allowed) from None
    # One address only, and IPv4 where a name has both: that is what others will try first.
    candidates.sort(key=lambda candidate: candidate[0] != socket.AF_INET)
    family, kind, protocol, _, where = candidates[0]
    if not (ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback or open_to_network):
        raise ConfigError(
            "frontend",
            endpoint,
            "a loopback address or unix:PATH; frontends are not encrypted, and with "
            "--frontend-open anybody who reaches this address can read and send",
        )
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.bind(where)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigError("frontend", endpoint, _bindable(endpoint.port, error)) from None
    return sock


def _bindable(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another port; something listens on port {port} already"
    if error.errno == errno.EADDRNOTAVAIL:
        return "an address of this machine"
    if error.errno == errno.EACCES:
        return f"a port from 1024 up; port {port} needs a privilege"
    return f"an address that can be listened on ({error.strerror or error})"


def unix_socket(path: str) -> socket.socket:
    _clear_the_way(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(path)
        os.chmod(path, 0o600)  # before it listens, so nobody else can come in between
        sock.listen(128)
    except OSError as error:
        sock.close()
        allowed = f"a path where a socket can be made ({error.strerror or error})"
        raise ConfigError("frontend", f"unix:{path}", allowed) from None
    return sock


def _clear_the_way(path: str) -> None:
    """Remove a socket that nobody listens on any more, and nothing else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError("frontend", f"unix:{path}", "a path where there is no other file")
    except OSError:
        return  # nothing there, or `bind` says what is wrong
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError:
            pass  # it is alive but busy, or not ours to touch
    raise ConfigError(
        "frontend", f"unix:{path}", "another path; something listens on this one already"
    )
