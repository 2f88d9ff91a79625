"""Broadcasts that have to wait keep the order in which they were called."""

from __future__ import annotations

import asyncio

from roundelay.client.group import Group
from tests.node.board import LocalBoard


async def test_a_broadcast_does_not_overtake_one_that_waits_for_room() -> None:
    board = LocalBoard(queue=1)
    group = Group("token:g", board)
    board.join(group, group.name)
    board.group(group.name).shut = True
    calls = [asyncio.create_task(group.broadcast(b"%d" % number)) for number in range(4)]
    await asyncio.sleep(0.01)  # the first is queued, the others wait for room
    board.open(group.name)
    last = await group.broadcast(b"4")  # there is room by now
    assert [(await call).seq for call in calls] == [0, 1, 2, 3]
    assert last.seq == 4


async def test_one_that_waits_and_is_cancelled_lets_the_next_go() -> None:
    board = LocalBoard(queue=1)
    group = Group("token:g", board)
    board.join(group, group.name)
    board.group(group.name).shut = True
    calls = [asyncio.create_task(group.broadcast(b"%d" % number)) for number in range(3)]
    await asyncio.sleep(0.01)
    calls[1].cancel()
    board.open(group.name)
    assert [(await calls[number]).seq for number in (0, 2)] == [0, 1]
