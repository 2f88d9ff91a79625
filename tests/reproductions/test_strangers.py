"""Addresses from hearsay, and files where everybody can write (issue 11, line 15)."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from pathlib import Path

import pyarrow as pa
import pytest

from roundelay.core.errors import ConfigError
from roundelay.pipeline.sink import STAGED, parse
from roundelay.pipeline.sink.stage import Stage
from roundelay.wire import control
from tests.reproductions.processes import Application, Machine, together, until

SECRET = "what members tell each other"


def bound() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


def free_ports(count: int) -> list[int]:
    sockets = [bound() for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def heard(listener: socket.socket, seconds: float) -> list[bytes]:
    """All that comes within this time."""
    found = []
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([listener], [], [], left)[0]:
            found.append(listener.recv(65536))
    return found


def test_who_is_only_named_by_somebody_is_not_sent_what_members_say() -> None:
    """Whoever an INFO named was sent everything from then on, and never had to answer."""
    with bound() as victim, bound() as liar, Machine() as machine:
        ports = free_ports(2)
        here = ("127.0.0.1", ports[0])
        seeds = "{}:{}".format(*here)
        members = [
            Application(
                name, service="fifo", insecure=True, listen=f"127.0.0.1:{port}", seeds=seeds
            )
            for name, port in zip("ab", ports, strict=True)
        ]
        machine.programs += members
        together(*members)
        member = members[0]
        named = victim.getsockname()
        lie = control.Info("x", os.urandom(16), named, (), (named,))
        liar.sendto(control.encode(lie), here)
        until(lambda: select.select([victim], [], [], 0)[0], "it is asked whether it is there")
        member.say(*(f"{SECRET} {number}" for number in range(3)))
        until(lambda: len(members[1].given) == 3, "members are told")
        found = heard(victim, 1.0)
        told = [one for one in found if SECRET.encode() in one]
        assert not told, f"{len(told)} messages were sent to one who never answered"


def test_rows_of_the_sink_do_not_go_through_a_link_that_somebody_laid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder had one name for everybody, and was used as it was found."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    for name in ("roundelay-stage", f"roundelay-{os.getuid()}"):
        (tmp_path / name).symlink_to(elsewhere)
    rows = pa.RecordBatch.from_pylist([{"data": b"x", "conference": 0, "kind": 0}], schema=STAGED)
    options = {"node": "127.0.0.1:6678", "group": "token:orders"}
    with contextlib.suppress(ConfigError):
        Stage(parse(options, streaming=False).folder).write(0, [rows], STAGED)
    assert [one.name for one in elsewhere.rglob("*.arrow")] == []
