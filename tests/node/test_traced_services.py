"""Every service, live, over multicast, fan-out and the switch: its order property on the trace."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from roundelay.core.events import END, MARK, NO_REF, NOBODY
from roundelay.node.driver.tracing import Tracing
from roundelay.trace import LiveTrace, check_trace, merge, read
from roundelay.trace.checkers.promises import Submission
from roundelay.trace.live import live_files
from tests.node.live import Net, delivered, together

MEDIA = ["multicast", "fanout", "switch"]
SERVICES = {
    "resilient": "total",
    "total": "total",
    "partial": "fifo",
    "selective": "fifo",
    "reliable": "none",
    "fifo": "fifo",
}
EACH = 20


def roster_of_three(folder: Path) -> str:
    """The name under which the group's last roster left its traces."""
    sites: dict[str, set[int]] = {}
    for file in live_files(folder):
        sites.setdefault(file.header.group, set()).add(file.header.site)
    (found,) = [group for group, members in sites.items() if len(members) == 3]
    return found


def say_end(folder: Path, group: str) -> None:
    """The run has settled: what should have been delivered has been."""
    with LiveTrace(folder, group=group, name="test", site=NOBODY) as looker:
        looker.append((0, NOBODY, MARK, NO_REF, NOBODY, END))


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("service", SERVICES)
async def test_the_order_property_of_a_service_holds_on_its_trace(
    service: str, medium: str, tmp_path: Path
) -> None:
    tracings = {name: Tracing(tmp_path, name) for name in "abc"}

    rules = [{"loss": 0.1, "duplicate": 0.05}]
    async with Net(medium, rules=rules if medium == "switch" else ()) as net:
        members = []
        for name in "abc":
            members.append(await net.join(name, service=service, tracer=tracings[name]))
        await together(members)
        for number in range(EACH):
            for member in members:
                await member.group.post([f"{member.name} {number}".encode()])
        await delivered(members, 3 * EACH)
        for tracing in tracings.values():
            tracing.close()
    group = roster_of_three(tmp_path)
    say_end(tmp_path, group)
    merged = merge(tmp_path, tmp_path / "trace.parquet", group=group)
    checker = check_trace(merged.path)
    assert checker.order == SERVICES[service]
    assert checker.violations == []
    assert checker.everywhere >= 3 * EACH
    rows = list(read(merged.path))
    sent = {row.ref: row for row in rows if row.event == "SEND"}
    arrived = [row for row in rows if row.event == "RECEIVE"]
    assert arrived or service == "fifo"  # of AutoRM a trace has no packets
    for row in arrived:
        if row.ref in sent:
            assert (sent[row.ref].site, sent[row.ref].time < row.time) == (row.peer, True)


@pytest.mark.parametrize("medium", MEDIA)
async def test_a_selective_group_delivers_all_and_only_what_is_destined(
    medium: str, tmp_path: Path
) -> None:
    """Message k of everybody goes to a and to the member k mod 3 (and to its sender)."""
    tracings = {name: Tracing(tmp_path, name) for name in "abc"}

    async with Net(medium) as net:
        members = []
        for name in "abc":
            members.append(await net.join(name, service="selective", tracer=tracings[name]))
        await together(members)
        for number in range(EACH):
            for member in members:
                to = {"a", "abc"[number % 3]}
                await member.group.send(f"{member.name} {number}".encode(), to=to)
        await delivered(members[:1], 3 * EACH)
        for tracing in tracings.values():
            tracing.close()
    group = roster_of_three(tmp_path)
    say_end(tmp_path, group)

    def destinations(submission: Submission) -> Collection[int]:
        return {0, submission.index % 3, submission.site}

    merged = merge(tmp_path, tmp_path / "trace.parquet", group=group)
    checker = check_trace(merged.path, destinations=destinations)
    assert checker.violations == []
    assert checker.committed == 3 * EACH
