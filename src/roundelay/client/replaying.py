"""What was said before, as an application asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import Any

from roundelay.client.messages import Message, messages_of
from roundelay.client.since import START, Moment, wish_of
from roundelay.core.errors import ConfigError, MissingRecords
from roundelay.journal.format import GAP, HEADS_ONLY
from roundelay.node.catchup import batch_of
from roundelay.node.groups import CONFIGURED, TOTAL_ORDER, protocol_of
from roundelay.node.recorded_units import is_message, part_of_unit
from roundelay.node.switchboard import Batch


class Replaying(ABC):
    """The part of a `Group` that is about the past."""

    name: str
    _switchboard: Any

    @abstractmethod
    def _check_open(self) -> None: ...

    async def replay(
        self,
        since: Moment = START,
        until: int | datetime | None = None,
        *,
        conference: int | Iterable[int] | None = None,
        sender: str | Iterable[str] | None = None,
        kind: int | Iterable[int] | None = None,
        missing: str = "raise",
    ) -> AsyncIterator[Message]:
        """Messages of the past, from the group's recorders, in order, each once; then it ends.

        since, until   a position or a datetime each, half-open; "start": all there is.  Without
                       `until`: up to what is delivered by now
        conference, sender, kind   one or several of each; everything that is given must hold
        missing        "raise" MissingRecords where no recorder has a position any more (or only
                       its head), or "skip" it

        As much is fetched as is read.  When a recorder fails in the middle, another one goes on
        where it was.  What is delivered live meanwhile waits as usual; to go on from a replay to
        live messages without a gap, join with `since`.

        Parts of units come as they were recorded: each at its own position, also if the rest of
        its unit never came; `message.unit` tells.
        """
        batches = self.replay_batches(
            since, until, conference=conference, sender=sender, kind=kind, missing=missing
        )
        async with aclosing(batches) as found:
            async for batch in found:
                for message in messages_of(batch):
                    yield message

    async def replay_batches(
        self,
        since: Moment = START,
        until: int | datetime | None = None,
        *,
        conference: int | Iterable[int] | None = None,
        sender: str | Iterable[str] | None = None,
        kind: int | Iterable[int] | None = None,
        missing: str = "raise",
    ) -> AsyncGenerator[Batch, None]:
        """As `replay`, messages that were delivered together as one batch: the fast way."""
        if missing not in ("raise", "skip"):
            raise ConfigError("missing", missing, '"raise" or "skip"')
        self._check_open()
        wish = wish_of(since, until, conference=conference, sender=sender, kind=kind)
        ordered = protocol_of(self.name) in TOTAL_ORDER
        units = protocol_of(self.name) in CONFIGURED
        begun = since == START or bool(wish.since_time)  # then a gap before the first is none
        async with aclosing(self._switchboard.replay(self.name, wish)) as chunks:
            async for chunk in chunks:
                for run in chunk:
                    if not run.flags & (GAP | HEADS_ONLY):
                        begun = False
                        if not units:
                            yield batch_of(self.name, run, ordered)
                        elif is_message(run):
                            yield batch_of(self.name, run, ordered, part_of_unit(run))
                    elif missing == "raise" and not (begun and run.flags & GAP):
                        why = " but their heads" if run.flags & HEADS_ONLY else ""
                        raise MissingRecords(self.name, run.position, run.end, why)
