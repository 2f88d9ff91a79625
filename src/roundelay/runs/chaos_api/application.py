"""The application of `roundelay chaos --api`: a program as a user would write it.

It knows the standard library and what `import roundelay` gives, and nothing else of ours.  It joins
a group, broadcasts messages of which no two are alike, and notes down what it was given and what
became of each broadcast: one JSON object a line, written at once, so that a SIGKILL loses nothing.
Those notes are all that the judge sees (`chaos_api.notes` describes the lines).

It is started with one JSON object as its argument:

    name        of the member; also the first part of the ids of its messages
    life        how often the member was started before; the second part
    log         the file to write
    group       what to join, and
    options     how: the options of `roundelay.join`
    since       [history, position] where an earlier life stopped reading, or null
    rate        broadcasts a second; 0: it only listens
    size        bytes of a message
    to          names to choose destinations from (service `selective`), or null
    tries       how often to try to join before giving up; 0: for ever

Words on its standard input: `go` (send), `settle` (send one last message, and no rest before it is
confirmed), `end` (leave).  When that input ends, so does the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys
import time
from typing import Any

import roundelay

UNDERWAY_MAX = 8
"""Broadcasts that may wait for their confirmation at once."""
AGAIN_S = 0.5
LEAVES = 0.02
"""How often the reading loop is left, and begun anew."""


def content(ident: str, size: int) -> bytes:
    """The one message with that id: nobody can send another by accident."""
    head = ident.encode() + b" "
    seed = hashlib.sha256(head).digest()
    return (head + seed * (size // len(seed) + 1))[: max(size, len(head) + 8)]


def ident_of(data: bytes) -> tuple[str, bool]:
    """The id of a message, and whether its bytes are those that were sent."""
    ident = data.split(b" ", 1)[0].decode("utf-8", "replace")
    return ident, content(ident, len(data)) == data


class NotesWriter:
    """The append-only log."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **more: Any) -> None:
        line = {"t": time.monotonic_ns(), "e": event, **more}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


class Application:
    """One member's program."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.notes = NotesWriter(orders["log"])
        self.dice = random.Random(f"{orders['name']}/{orders['life']}")
        self.go, self.settle, self.end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.number = 0
        since = orders["since"] or [None, None]
        self.history: str = since[0] or ""
        self.next: int | None = since[1]
        self.settled = False
        self.underway: set[asyncio.Task[bool]] = set()

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> int:
        orders = self.orders
        self.notes.write("started", name=orders["name"], life=orders["life"], pid=os.getpid(),
                         since=orders["since"])  # fmt: skip
        listener = asyncio.create_task(self.listen())
        tries = 0
        while not self.end.is_set():
            try:
                await self.take_part()
            except roundelay.NoSuchPosition as error:
                self.failed("join", error)
                self.start_over(error)
            except Exception as error:
                self.failed("join", error)
            tries += 1
            if orders["tries"] and tries >= orders["tries"]:
                break
            await self.first(self.end, seconds=AGAIN_S)
        listener.cancel()
        self.notes.write("left")
        return 0

    async def take_part(self) -> None:
        """Join, and stay as long as it lasts."""
        options = dict(self.orders["options"])
        if self.next is not None:
            options["since"] = self.position()
        self.notes.write("joining", since=None if self.next is None else [self.history, self.next])
        async with roundelay.join(self.orders["group"], **options) as group:
            self.notes.write("joined")
            reader = asyncio.create_task(self.read(group))
            tasks = [asyncio.create_task(self.watch(group)), asyncio.create_task(self.load(group))]
            ended = asyncio.create_task(self.end.wait())
            try:
                await asyncio.wait({reader, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*tasks, ended, reader, *self.underway):
                    task.cancel()
                await asyncio.gather(*tasks, ended, reader, *self.underway, return_exceptions=True)

    def position(self) -> Any:
        """Where to go on reading."""
        if self.next is None or not self.history:
            return self.next
        return roundelay.Position(self.history, self.next)

    def start_over(self, error: Any) -> None:
        """The group goes on in another history, from where that parts from ours, or anew."""
        present = error.present.history
        own, base = self.history.partition("@")[0], 0
        for branch in present.split("@")[1:]:
            parent, _, shared = branch.partition(":")
            if parent == own:
                base = int(shared)
        self.history, self.next = present, base

    # -- reading -------------------------------------------------------------------------------

    async def read(self, group: Any) -> None:
        """Until it is over; what is not read when the loop is left is there when it begins anew."""
        while True:
            try:
                async for message in group:
                    self.given(group, message)
                    if self.dice.random() < LEAVES:
                        break
                else:
                    if not self.end.is_set():
                        self.notes.write("over")
                    return
            except roundelay.MissingMessages as error:  # gone, and we were told: go on behind them
                self.failed("read", error)
                self.next = error.last + 1
            except roundelay.LeftOut as error:
                self.failed("read", error)
            except roundelay.NoSuchPosition as error:
                self.failed("read", error)
                self.start_over(error)
                return
            except Exception as error:
                self.failed("read", error)
                return

    def given(self, group: Any, message: Any) -> None:
        ident, intact = ident_of(message.data)
        line: dict[str, Any] = {"seq": message.seq, "from": message.sender, "id": ident}
        if message.seq is not None:
            position = group.position
            history = position.history if position is not None else group.history
            line["h"] = self.history = history
        if not intact:
            line["damaged"] = True
        self.notes.write("given", **line)
        if message.seq is not None:
            self.next = message.seq + 1

    async def watch(self, group: Any) -> None:
        async for view in group.views():
            self.notes.write("view", members=view.members, state=view.state, h=view.history)

    # -- sending -------------------------------------------------------------------------------

    async def load(self, group: Any) -> None:
        """Broadcast at the rate that was ordered; in the end, one last message."""
        rate = self.orders["rate"]
        if not rate:
            return
        await self.first(self.go, self.settle)
        while not self.settle.is_set():
            if len(self.underway) < UNDERWAY_MAX:
                task = asyncio.create_task(self.broadcast(group))
                self.underway.add(task)
                task.add_done_callback(self.underway.discard)
            await self.first(self.settle, seconds=self.dice.expovariate(rate))
        await asyncio.gather(*self.underway, return_exceptions=True)
        self.notes.write("settling")
        while not self.settled:
            self.settled = await self.broadcast(group, last=True)
            if not self.settled:
                await asyncio.sleep(AGAIN_S)

    async def broadcast(self, group: Any, last: bool = False) -> bool:
        """One message, and what became of it."""
        self.number += 1
        ident = f"{self.orders['name']}.{self.orders['life']}.{self.number}"
        names = self.orders["to"]
        data = content(ident, self.orders["size"])
        to = None
        if names:
            to = names if last else self.dice.sample(names, self.dice.randint(1, len(names)))
        more: dict[str, Any] = {"to": sorted(to)} if to else {}
        if last:
            more["last"] = True
        self.notes.write("sent", id=ident, members=group.view.members, **more)
        try:
            receipt = await (group.send(data, to=to) if to else group.broadcast(data))
        except roundelay.Indeterminate as error:
            self.notes.write("indeterminate", id=ident, why=str(error))
        except roundelay.Refused as error:
            self.notes.write("refused", id=ident, why=str(error))
        except Exception as error:
            self.notes.write("failed", id=ident, kind=type(error).__name__, why=str(error))
        else:
            line: dict[str, Any] = {"id": ident, "seq": receipt.seq, "members": group.view.members}
            if receipt.seq is not None:
                line["h"] = receipt.history
            given_up = getattr(receipt, "given_up", None)
            if given_up is not None:
                line["given_up"] = sorted(given_up)
            self.notes.write("confirmed", **line)
            return True
        return False

    # -- small things --------------------------------------------------------------------------

    def failed(self, where: str, error: BaseException) -> None:
        line: dict[str, Any] = {"where": where, "kind": type(error).__name__, "why": str(error)}
        for field in ("first", "last"):
            if isinstance(value := getattr(error, field, None), int):
                line[field] = value
        self.notes.write("error", **line)

    async def first(self, *events: asyncio.Event, seconds: float | None = None) -> None:
        """Wait for one of these events, or so long."""
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def listen(self) -> None:
        """Do what we are told; end with those who tell us."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        words = {b"go": self.go, b"settle": self.settle, b"end": self.end}
        while line := await reader.readline():
            event = words.get(line.strip())
            if event is not None:
                event.set()
        os._exit(0)


def main() -> None:
    sys.exit(asyncio.run(Application(json.loads(sys.argv[1])).run()))


if __name__ == "__main__":
    main()
