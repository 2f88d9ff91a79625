"""Replay of a group from all its recorders together, and handing over to live delivery.

A replay follows the order of positions.  It reads from one recorder, our own if there is one, and
goes on with another one at the very position it has reached when that one fails, is behind, or
lacks something (GR-18); so nothing is given twice, and what is missing is what nobody has.

Groups without a total order have no positions that two recorders would share: there, a replay
stays with one recorder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from roundelay.core.errors import ConfigError
from roundelay.core.families import TOTAL
from roundelay.core.position import Since
from roundelay.core.positions import Range, difference
from roundelay.core.selection import POSITION_MAX
from roundelay.journal.format import GAP, HEADS_ONLY, Run, gap, part_of
from roundelay.node.groups import family_of
from roundelay.node.node_api import Subscriber
from roundelay.node.recording.handover import CatchUp
from roundelay.node.recording.recorder import Recorder
from roundelay.node.recording.transfer import ReplayFailed, fetch, read_chunks
from roundelay.wire.control import Recorded
from roundelay.wire.frontend_replay import ReplayRequest

if TYPE_CHECKING:
    from roundelay.node.recording.recorders import Recorders

Chunks = AsyncGenerator[list[Run], None]

LOOK_S: Final = 0.02
PATIENCE_S: Final = 5.0
"""How long to wait for a recorder that has what is wanted next."""
HEAR_S: Final = 2.0
"""A node that is younger than this may not have heard of all recorders."""


class Source(Struct, frozen=True):
    """A recorder that can be asked, or a member for what it has in its memory."""

    word: Recorded
    here: Recorder | None = None
    address: tuple[str, int] = ("", 0)
    memory: str = ""
    """It is no recorder: a member that has this history in its memory."""

    @property
    def name(self) -> str:
        """Which of all sources it is: a node may both record a group and keep some of it."""
        return f"{self.word.name} (memory)" if self.memory else self.word.name

    def has(self, lo: int, hi: int) -> list[Range]:
        """The parts of lo … hi - 1 that it is known to have."""
        return difference([(max(lo, self.word.begin), min(hi, self.word.next))], self.word.holes)


class GroupReplay(Struct, frozen=True):
    """One replay of a group; with `memory`, also from what other members still have."""

    recorders: Recorders
    group: str
    request: ReplayRequest
    memory: bool

    def _sources(self) -> list[Source]:
        return self.recorders.sources(self.group, own=self.request.own, memory=self.memory)

    def _read(self, source: Source, request: ReplayRequest, reached: list[int]) -> Chunks:
        if source.here is not None:
            return read_chunks(source.here.journal.reader(), request, reached)
        seal = self.recorders.node.make_seal()
        return fetch(source.address, self.group, request, seal, reached, source.memory)

    def _moves_on(self, error: ReplayFailed) -> None:
        self.recorders.node.log("info", "replay.moves_on", group=self.group, text=str(error))

    async def from_one(self, until: int, reached: list[int]) -> Chunks:
        """Return what is asked for up to `until`, from one recorder only."""
        source = self._sources()[0]
        deadline = time.monotonic() + PATIENCE_S
        if source.here is not None:
            while source.here.journal.end < until and time.monotonic() < deadline:
                await asyncio.sleep(LOOK_S)
        request = structs.replace(self.request, until=min(until, self.request.until))
        return self._read(source, request, reached)

    async def from_all(self, until: int, open_end: bool, reached: list[int]) -> Chunks:
        """What is asked for up to `until`, from whoever has it."""
        request, group = self.request, self.group
        at, since_time = request.since, request.since_time
        incomplete = 0 if request.own else GAP | HEADS_ONLY
        failed: dict[str, int] = {}
        deadline = time.monotonic() + PATIENCE_S
        heard_all = (time.monotonic() if self.memory else self.recorders.node.started) + HEAR_S
        while at < until:
            sources = self._sources()
            usable = [source for source in sources if source.has(at, at + 1)]
            source = next((source for source in usable if failed.get(source.name) != at), None)
            if source is None:
                late = time.monotonic() > deadline
                if usable and late:
                    raise ReplayFailed(f"no recorder of {group} answers at position {at}")
                gap_end = -1
                if not usable and (late or time.monotonic() > heard_all):
                    gap_end = self._gap_end(sources, at, until, late)
                if gap_end >= 0:
                    yield [gap(at, gap_end)]
                    at = gap_end
                elif late:
                    if open_end:
                        break
                    far_end = max([source.word.next for source in sources], default=0)
                    raise ReplayFailed(
                        f"recorders of {group} reach position {far_end}, not {until}"
                    )
                else:
                    if usable:
                        failed.clear()
                    await asyncio.sleep(LOOK_S)
                continue
            part = structs.replace(request, since=at, until=until, since_time=since_time)
            without = frozenset({source.name})
            end: list[int] = []
            before = at
            try:
                async with aclosing(self._read(source, part, end)) as chunks:
                    async for chunk in chunks:
                        async for mended in self._mended(chunk, incomplete, without):
                            yield mended
                        at, since_time = chunk[-1].end, 0
            except ReplayFailed as error:
                failed[source.name] = at
                self._moves_on(error)
            else:
                at = max([at, *end])
                if at == before:
                    failed[source.name] = at  # it said it had more than it has
            if at > before:
                deadline = time.monotonic() + PATIENCE_S
        reached.append(at)

    def _gap_end(self, sources: list[Source], at: int, until: int, late: bool) -> int:
        """Nobody has position `at`: where what somebody has begins; -1: it may still come."""
        begins = [lo for source in sources for lo, _ in source.has(at, until)[:1]]
        if begins:
            return min(begins)
        if self.memory and any(source.word.next >= until for source in sources):
            return until  # they are further, and nobody has it
        holes = [hole for source in sources for hole in source.word.holes]
        ends = [hi for lo, hi in holes if lo <= at < hi]
        return min([until, *ends]) if late and ends else -1  # nor will anybody, as far as they say

    async def _mended(self, chunk: list[Run], incomplete: int, without: frozenset[str]) -> Chunks:
        """A chunk in which runs with one of the flags `incomplete` are replaced by what the sources
        have that are not named in `without`."""
        complete: list[Run] = []
        for run in chunk:
            if not run.flags & incomplete:
                complete.append(run)
                continue
            if complete:
                yield complete
                complete = []
            async with aclosing(self.stretch(run.position, run.end, without)) as replacements:
                async for others in replacements:
                    # Where nobody has more than the head, the head is what there is.
                    yield [
                        part_of(run, other.position, other.end) if other.flags & GAP else other
                        for other in others
                    ]
        if complete:
            yield complete

    async def stretch(self, lo: int, hi: int, without: frozenset[str]) -> Chunks:
        """Positions lo to hi - 1, as far as those sources that are not named in `without` have them
        now; for the rest, gaps."""
        at = lo
        while at < hi:
            others = [source for source in self._sources() if source.name not in without]
            usable = [source for source in others if source.has(at, hi)]
            if not usable:
                yield [gap(at, hi)]
                return
            source = min(usable, key=lambda other: other.has(at, hi)[0])
            start = source.has(at, hi)[0][0]
            if start > at:
                yield [gap(at, start)]
                at = start
            part = structs.replace(self.request, since=at, until=hi, since_time=0)
            less = without | {source.name}
            end: list[int] = []
            before = at
            try:
                async with aclosing(self._read(source, part, end)) as chunks:
                    async for chunk in chunks:
                        async for mended in self._mended(chunk, GAP, less):
                            yield mended
                        at = chunk[-1].end
            except ReplayFailed as error:
                self._moves_on(error)
            at = max([at, *end])
            if at == before or not end:
                without = less


class Replays:
    """The replays of one node."""

    def __init__(self, recorders: Recorders) -> None:
        self._recorders = recorders
        self._catching_up: list[CatchUp] = []

    async def replay(
        self,
        group: str,
        request: ReplayRequest,
        reached: list[int] | None = None,
        memory: bool = False,
    ) -> Chunks:
        """What is recorded of what is asked for, in order; with `memory`, also what other members
        still have.

        A run with the flag GAP stands for what no recorder has that answers.  Without an end it
        goes up to what is delivered here, or recorded, when it begins.  When it is over, how far
        it goes is appended to `reached`.  Raises ReplayFailed.
        """
        far: list[int] = [] if reached is None else reached
        request.check()
        if not memory and not await self._some(group, request.own):
            raise ReplayFailed(
                f"no recorder of {group} is known here: start one with "
                f"`roundelay node --record {group}`, or join(…, record=True)"
            )
        replay = GroupReplay(self._recorders, group, request, memory)
        open_end = request.until >= POSITION_MAX
        until = self.end(group, request.own) if open_end else request.until
        if family_of(group).order == TOTAL:
            stream = replay.from_all(until, open_end, far)
        else:
            stream = await replay.from_one(until, far)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                yield chunk

    def stretch(self, group: str, lo: int, hi: int, *, memory: bool) -> Chunks:
        """Positions lo to hi - 1, as far as the recorders of other nodes have them, or with
        `memory` also other members; for the rest, gaps."""
        replay = GroupReplay(self._recorders, group, ReplayRequest(), memory)
        return replay.stretch(lo, hi, frozenset({self._recorders.node.name}))

    async def _some(self, group: str, own: bool) -> bool:
        """Whether there is a recorder; a node that has just started, or joined, listens first."""
        deadline = self._recorders.node.started + HEAR_S
        patience = time.monotonic() + PATIENCE_S
        while not self._recorders.sources(group, own=own):
            if self._recorders.entering(group) and time.monotonic() < patience:
                deadline = max(deadline, time.monotonic() + HEAR_S)
            if own or time.monotonic() > deadline:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def end(self, group: str, own: bool = False, memory: bool = False) -> int:
        """Return the position behind what is delivered here, or known to be recorded."""
        sources = self._recorders.sources(group, own=own, memory=memory)
        mine = self._recorders.own.get(group)
        recorded = [mine.next] if mine is not None else []
        ends = [source.word.next for source in sources]
        return max([self._recorders.position(group), *recorded, *ends])

    # -- handing over to live delivery -----------------------------------------------------

    def check_since(self, group: str, at: int) -> None:
        """Raise ConfigError if nobody can begin at an earlier position of the group."""
        if family_of(group).order != TOTAL and group not in self._recorders.own:
            raise ConfigError(
                "since", at, f"none: {group} has no total order, and this node does not record it"
            )

    def catch_up(
        self,
        slots: dict[int, Subscriber],
        group: str,
        application: Subscriber,
        since: Since,
        asked: bool = False,
    ) -> None:
        """Give `application` what it lacks from `since` on, then what follows live.

        Until then `slots`, where its group looks for it, has somebody else in its place.
        `asked`: the application says by itself where it is.
        """
        self.check_since(group, since.seq)
        sitting = slots.get(id(application))
        if isinstance(sitting, CatchUp) and not sitting.live:
            return  # it will find out by itself
        stand_in = CatchUp(self._recorders.node, slots, application, group, since, asked)
        slots[id(application)] = stand_in
        self._catching_up.append(stand_in)
        stand_in.task.add_done_callback(lambda _: self._catching_up.remove(stand_in))

    def fell_behind(
        self, slots: dict[int, Subscriber], group: str, application: Subscriber, since: int
    ) -> bool:
        """An application did not read for too long: it may catch up, if somebody records."""
        # Whoever sits there in its place would find no room either.
        here = slots.get(id(application)) is application
        if not here or since < 0 or not self._recorders.known(group):
            return False
        self.catch_up(slots, group, application, Since(since))
        return True

    async def stop(self) -> None:
        for stand_in in list(self._catching_up):
            stand_in.stop()

    def status(self) -> list[dict[str, object]]:
        return [stand_in.status() for stand_in in self._catching_up]
