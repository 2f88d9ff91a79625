"""Small groups of live nodes, one of every service, that leave traces for `bench.verify --live`.

All nodes of a group run in this process, through a switch that loses, doubles and reorders
datagrams; what each delivers goes into a trace of its own, as with `roundelay node --trace`.  A
looker-on marks the end once everybody has everything, so what must hold in the end is judged, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import roundelay
from roundelay.client.group import Group
from roundelay.core.events import END, MARK, NO_REF, NOBODY
from roundelay.faultnet.switch import Switch
from roundelay.node.driver.tracing import Tracing
from roundelay.trace.live import LiveTrace, live_files

SERVICES = (
    "resilient", "total", "partial", "selective", "reliable", "fifo", "journal", "wide",
)  # fmt: skip
WEATHER = {"loss": 0.05, "duplicate": 0.02, "reorder": 0.02}
PATIENCE_S = 120.0
GROUP = "g"

THREE = ("a", "b", "c")
JOURNAL = ("r", "d", "p", "ann", "bob")
"""A retransmitter, an acknowledger, a recorder and two users."""
WIDE = (("a1", "a2", "a3"), ("b1", "b2", "b3"))
"""Two networks; the first of each has its roles, the others are users."""


class Seat:
    """One member: its node, and what it has delivered."""

    def __init__(self, name: str, group: Group, tracing: Tracing) -> None:
        self.name, self.group, self.tracing = name, group, tracing
        self.got = 0
        self.reader = asyncio.create_task(self.read())

    async def read(self) -> None:
        async for _ in self.group:
            self.got += 1


async def run(service: str, folder: Path, each: int, rules: dict[str, float] | None = None) -> Path:
    """Where the traces of such a group are, in which every user has sent `each` messages."""
    traces = folder / "traces"
    switch = Switch(seed=7, rules=[WEATHER if rules is None else rules])
    await switch.start()
    names, users, config = _roles(service, folder)
    seats: list[Seat] = []
    try:
        for name in names:
            options: dict[str, Any] = {"dir": folder / name} if config else {}
            tracing = Tracing(traces, name)
            group = await roundelay.join(
                GROUP, service=service, name=name, via="{}:{}".format(*switch.address),
                insecure=True, timeout=PATIENCE_S, tracer=tracing, **options, **config,
            )  # fmt: skip
            seats.append(Seat(name, group, tracing))
        await _until(lambda: all(_together(seat, names, bool(config)) for seat in seats), "a group")
        speakers = [seat for seat in seats if seat.name in users]
        for number in range(each):
            for seat in speakers:
                await _speak(seat, service, number)
            await asyncio.sleep(0.002)  # so that not all of it goes into one bundle
        due = {seat: _due(seat.name, service, each, users) for seat in speakers}
        await _until(lambda: all(seat.got >= count for seat, count in due.items()), "deliveries")
        # Here the traces end: that somebody leaves is news, too, which he does not wait for.
        for seat in seats:
            seat.tracing.close()
    finally:
        for seat in seats:
            seat.reader.cancel()
            await seat.group.leave()
        await switch.close()
    _mark_end(traces)
    return traces


def _roles(service: str, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]:
    """All names, those of users, and what a member has to be told."""
    if service not in ("journal", "wide"):
        return THREE, THREE, {}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "group.toml"
    if service == "journal":
        file.write_text(f'profile = "separate"\nmembers = {list(JOURNAL)}\n'.replace("'", '"'))
        return JOURNAL, JOURNAL[3:], {"config": file}
    networks = [f"[[networks]]\nmembers = {list(network)}\n" for network in WIDE]
    file.write_text("\n".join(networks).replace("'", '"'))
    names = tuple(name for network in WIDE for name in network)
    return names, tuple(name for network in WIDE for name in network[1:]), {"config": file}


async def _speak(seat: Seat, service: str, number: int) -> None:
    text = f"{seat.name} {number}".encode()
    if service == "selective":
        await seat.group.send(text, to=_destinations(number, seat.name))
    else:
        await seat.group.post([text])


def _destinations(number: int, sender: str) -> set[str]:
    """Whom a selective message is for."""
    return {THREE[0], THREE[number % 3], sender}


def _due(name: str, service: str, each: int, users: tuple[str, ...]) -> int:
    """How many messages a user gets."""
    if service != "selective":
        return each * len(users)
    goes_to = (_destinations(number, sender) for number in range(each) for sender in users)
    return sum(name in them for them in goes_to)


def _together(seat: Seat, names: tuple[str, ...], fixed: bool) -> bool:
    view = seat.group.view
    return view.state == "open" and (fixed or set(view.members) == set(names))


async def _until(condition: Callable[[], bool], what: str) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"waited {PATIENCE_S:.0f} s for {what}"
        await asyncio.sleep(0.02)


def _mark_end(traces: Path) -> None:
    """Say that the group has settled: what should have been delivered has been.

    A group without a fixed roster leaves traces of smaller ones that it had before: the end is
    that of the largest.
    """
    sites: dict[str, set[int]] = {}
    for file in live_files(traces):
        sites.setdefault(file.header.group, set()).add(file.header.site)
    last = max(sites, key=lambda group: len(sites[group]))
    with LiveTrace(traces, group=last, name="looker-on", site=NOBODY) as looker:
        looker.append((0, NOBODY, MARK, NO_REF, NOBODY, END))
