"""Reading recorded messages from a node, without asyncio: for readers in processes of their own.

::

    with RecorderClient("127.0.0.1:6678", "token:orders") as recorder:
        where = recorder.status()                  # where.first, where.next
        for run in recorder.read(where.first, where.next, conference=7, sender="ann"):
            run.position, run.time, run.sender, run.bundle        # roundelay.journal.format.Run

A client is one connection and does one thing at a time; several of them, in as many processes or
machines, read ranges of positions side by side.  Whoever asks for a range gets each record of it
exactly once, in order.  What the node does not record itself it fetches from other recorders of
the group, and it goes on with another one when one fails in the middle; so only what nobody has
is left, and in its place comes a run with the flag GAP (never a silent hole).  Records whose
heads alone were kept come with the flag HEADS_ONLY, as in a journal.

Blocks come on credit: at most `blocks` of about 256 KiB are on their way, so a reader that pauses
holds up nobody, and needs that much memory and no more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.client.connection import TIMEOUT_S, NodeConnection
from roundelay.client.protocol import Block
from roundelay.client.since import request_of
from roundelay.core.errors import ConnectionLost, Refused, UsageError
from roundelay.core.selection import POSITION_MAX
from roundelay.journal.format import Run
from roundelay.node.recording.transfer import runs_of
from roundelay.wire.frontend import DEFAULT
from roundelay.wire.frontend_replay import CREDIT_BLOCKS, Ended

ENTER_S: Final = 5.0
"""How long a node that has just started may need to enter its groups."""
ASK_AGAIN_S: Final = 0.1


class RecorderStatus(Struct, frozen=True):
    """What is recorded of a group, as far as the node knows."""

    group: str
    first: int
    """Position of the oldest record that a recorder has."""
    next: int
    """Behind the last one: `read(first, next)` gives all there is now."""
    durable: int
    """Everything below is on disk at a recorder."""
    recorders: tuple[dict[str, Any], ...]
    """Each as JSON: `node`, `begin`, `next`, `durable`, `missing`, `here`, `slow`, `whole`."""


class RecorderClient(NodeConnection):
    """See the module.

    `where` is the node's frontend address, HOST:PORT or unix:PATH; `group` the full name of the
    group.  Raises NodeUnreachable; later ConnectionLost when the node is gone, and then a new
    client can go on at the position behind the last run it was given."""

    def __init__(
        self, where: str = DEFAULT, group: str = "", *, timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(
            where, group, name="recorder client", start=f"--record {group} ", timeout_s=timeout_s
        )
        self.next = 0
        """After `read` or `read_blocks` is through: everything selected below it was given."""
        self._reading = False

    # -- questions -------------------------------------------------------------------------

    def status(self) -> RecorderStatus:
        """First and next position that are recorded; raises Refused where nobody records.

        A node that has just started needs a moment to know in which history the group is, and so
        which recorders are of use: it is asked again for `ENTER_S`."""
        patience = time.monotonic() + min(ENTER_S, self._timeout_s)
        while not (recorders := self.ask("recorders", self.group)):
            if time.monotonic() < patience:
                time.sleep(ASK_AGAIN_S)
                continue
            raise Refused(
                f"group {self.group}: the node at {self.where} knows of no recorder; start one "
                f"with `roundelay node --record {self.group}`"
            )
        return RecorderStatus(
            self.group,
            min(recorder["begin"] for recorder in recorders),
            max(recorder["next"] for recorder in recorders),
            max(recorder["durable"] for recorder in recorders),
            tuple(recorders),
        )

    # -- reading ---------------------------------------------------------------------------

    def read(self, since: int = 0, until: int | None = None, **which: Any) -> Iterator[Run]:
        """The records selected, in order, as runs (`roundelay.journal.format.Run`).

        since, until   positions, half-open; without `until`, what is recorded by now
        conference     one or several; so are `sender` (names of nodes) and `kind`
        since_time, until_time   nanoseconds since 1970, half-open
        own            only what the node asked records itself
        blocks         how many blocks may be on their way

        All that is given must hold.  `roundelay.journal.parquet.batch_of(runs, group)` makes an
        Arrow record batch of a list of runs.  Whoever stops early should close the iterator.
        """
        for runs in self.read_blocks(since, until, **which):
            yield from runs

    def read_blocks(
        self,
        since: int = 0,
        until: int | None = None,
        *,
        since_time: int | None = None,
        until_time: int | None = None,
        own: bool = False,
        blocks: int = CREDIT_BLOCKS,
        **marks: Any,
    ) -> Iterator[list[Run]]:
        """As `read`, a block at a time."""
        if self._reading:
            raise UsageError("a client reads one range at a time: use another client")
        request = structs.replace(
            request_of(since, until, **marks),
            since_time=since_time or 0,
            until_time=POSITION_MAX if until_time is None else until_time,
            blocks=blocks,
            own=own,
        )
        number = self._protocol.replay(self.group, request)
        self._reading, over = True, False
        try:
            while True:
                event = self._await(Block, Ended)
                if isinstance(event, Ended):
                    over = True
                    if event.error:
                        raise Refused(f"group {self.group}: {event.error}")
                    self.next = event.next
                    return
                yield runs_of(event.data)
                self._protocol.more(self.group, number, 1)
        finally:
            self._reading = False
            if not over:  # end the replay, and pass over what is still under way
                with suppress(ConnectionLost):  # it is over in any case
                    self._protocol.more(self.group, number, 0)
                    while not isinstance(self._await(Block, Ended), Ended):
                        pass
