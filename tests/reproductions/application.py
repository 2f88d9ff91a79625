"""A program as a user would write it: it knows `roundelay.join` and the standard library.

It is started with one JSON object, the group and the options of `join`, and prints one JSON object
a line: `joined`, `view`, `given`, and what became of each broadcast, `confirmed` or `failed`.
Each line on its standard input is broadcast, all that come together at once, without waiting for
each other.  When that input ends, so does the program.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import roundelay


def note(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


async def read(group: Any) -> None:
    async for message in group:
        text = message.data.decode()
        note("given", data=text, seq=message.seq, sender=message.sender)


async def watch(group: Any) -> None:
    async for view in group.views():
        note("view", members=list(view.members), state=view.state)


async def say(group: Any, text: str) -> None:
    try:
        receipt = await group.broadcast(text.encode())
    except Exception as error:
        note("failed", data=text, kind=type(error).__name__, why=str(error))
    else:
        note("confirmed", data=text, seq=receipt.seq, receipt=repr(receipt))


async def main() -> None:
    orders = json.loads(sys.argv[1])
    try:
        group = await roundelay.join(orders.pop("group"), **orders)
    except roundelay.RoundelayError as error:
        note("refused", kind=type(error).__name__, why=str(error))
        return
    note("joined")
    tasks = {asyncio.create_task(one(group)) for one in (read, watch)}
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await lines.readline():
        tasks.add(asyncio.create_task(say(group, line.decode().strip())))


if __name__ == "__main__":
    asyncio.run(main())
