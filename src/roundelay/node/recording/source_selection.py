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

from msgspec import structs

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, difference
from roundelay.core.selection import POSITION_MAX
from roundelay.journal.format import GAP, HEADS_ONLY, Run, gap, part_of
from roundelay.journal.journal import Reader
from roundelay.node.groups import TOTAL_ORDER, protocol_of
from roundelay.node.node_api import Subscriber
from roundelay.node.recording.asked import Asked
from roundelay.node.recording.handover import CatchUp
from roundelay.node.recording.recorder import Recorder
from roundelay.node.recording.transfer import ReplayFailed, fetch, read_chunks
from roundelay.wire.control import Recorded
from roundelay.wire.frontend_replay import ReplayRequest

if TYPE_CHECKING:
    from roundelay.node.recording.recorders import Recorders

LOOK_S: Final = 0.02
PATIENCE_S: Final = 5.0
"""How long to wait for a recorder that has what is wanted next."""
HEAR_S: Final = 2.0
"""A node that is younger than this may not have heard of all recorders."""


class Source:
    """A recorder that can be asked."""

    __slots__ = ("address", "here", "memory", "word")

    def __init__(
        self, word: Recorded, *, here: Recorder | None = None, address: tuple[str, int] = ("", 0),
        memory: str = "",
    ) -> None:  # fmt: skip
        self.memory = memory
        """It is no recorder: a member that has this history in its memory."""
        self.word = word
        self.here = here
        self.address = address

    @property
    def name(self) -> str:
        """Which of all sources it is: a node may both record a group and keep some of it."""
        return f"{self.word.name} (memory)" if self.memory else self.word.name

    def has(self, lo: int, hi: int) -> list[Range]:
        """The parts of lo … hi - 1 that it is known to have."""
        return difference([(max(lo, self.word.begin), min(hi, self.word.next))], self.word.holes)


class Replays:
    """The replays of one node."""

    def __init__(self, recorders: Recorders) -> None:
        self._recorders = recorders
        self._catching: dict[int, CatchUp] = {}
        self.count = 0
        self.handed_over = 0

    # -- replay ----------------------------------------------------------------------------

    async def replay(
        self,
        group: str,
        request: ReplayRequest,
        reached: list[int] | None = None,
        memory: bool = False,
    ) -> AsyncGenerator[list[Run], None]:
        """What is recorded of what is asked for, in order; with `memory`, also what other members
        still have.

        A run with the flag GAP stands for what no recorder has that answers.  Without an end it
        goes up to what is delivered here, or recorded, when it begins.  When it is over, how far
        it goes is appended to `reached`.  Raises ReplayFailed.
        """
        far: list[int] = [] if reached is None else reached
        request.check()
        self.count += 1
        ordered = protocol_of(group) in TOTAL_ORDER
        if not memory and not await self._some(group, request.own):
            raise ReplayFailed(
                f"no recorder of {group} is known here: start one with "
                f"`roundelay node --record {group}`, or join(…, record=True)"
            )
        until, open_end = request.until, request.until >= POSITION_MAX
        if open_end:
            until = self.end(group, request.own)
        if ordered:
            stream = self._follow(group, request, until, open_end, far, memory)
        else:
            stream = self._one(group, request, until, far)
        async with aclosing(stream) as found:
            async for chunk in found:
                yield chunk

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
        """Behind what is delivered here, or known to be recorded."""
        sources = self._recorders.sources(group, own=own, memory=memory)
        ends = [one.word.next for one in sources]
        ends.append(self._recorders.position(group))
        mine = self._recorders.own.get(group)
        if mine is not None:
            ends.append(mine.next)
        return max(ends, default=0)

    async def _one(
        self, group: str, request: ReplayRequest, until: int, far: list[int]
    ) -> AsyncGenerator[list[Run], None]:
        """From one recorder only."""
        source = self._recorders.sources(group, own=request.own)[0]
        deadline = time.monotonic() + PATIENCE_S
        if source.here is not None:
            while source.here.journal.end < until and time.monotonic() < deadline:
                await asyncio.sleep(LOOK_S)
        request = structs.replace(request, until=min(until, request.until))
        async with aclosing(self._read(source, group, request, far)) as found:
            async for chunk in found:
                yield chunk

    async def _follow(
        self,
        group: str,
        request: ReplayRequest,
        until: int,
        open_end: bool,
        far: list[int],
        memory: bool,
    ) -> AsyncGenerator[list[Run], None]:
        at, since_time = request.since, request.since_time
        failed: dict[str, int] = {}
        deadline = time.monotonic() + PATIENCE_S
        heard_all = time.monotonic() + HEAR_S
        while at < until:
            sources = self._recorders.sources(group, own=request.own, memory=memory)
            usable = [one for one in sources if one.has(at, at + 1)]
            source = next((one for one in usable if failed.get(one.name) != at), None)
            if source is None:
                if usable and time.monotonic() > deadline:
                    raise ReplayFailed(f"no recorder of {group} answers at position {at}")
                following = min(
                    [lo for one in sources for lo, _ in one.has(at, until)[:1]], default=-1
                )
                late = time.monotonic() > deadline
                heard = time.monotonic() > heard_all if memory else self._heard_all()
                if following < 0 and memory and any(one.word.next >= until for one in sources):
                    following = until  # they are further, and nobody has it
                if following < 0 and late:  # nor will anybody, as far as they say
                    holes = [hole for one in sources for hole in one.word.holes]
                    ends = [hi for lo, hi in holes if lo <= at < hi]
                    following = min([until, *ends]) if ends else -1
                if not usable and following >= 0 and (late or heard):
                    yield [gap(at, following)]
                    at = following
                elif late:
                    if open_end:
                        break
                    far_end = max([one.word.next for one in sources], default=0)
                    raise ReplayFailed(
                        f"recorders of {group} reach position {far_end}, not {until}"
                    )
                else:
                    if usable:
                        failed.clear()
                    await asyncio.sleep(LOOK_S)
                continue
            part = structs.replace(request, since=at, until=until, since_time=since_time)
            reached: list[int] = []
            before = at
            try:
                async with aclosing(self._read(source, group, part, reached)) as found:
                    async for chunk in found:
                        async for whole in self._mended(group, part, chunk, source, memory):
                            yield whole
                        at, since_time = chunk[-1].end, 0
            except ReplayFailed as error:
                failed[source.name] = at
                self._recorders.node.log("info", "replay.moves_on", group=group, text=str(error))
            else:
                at = max([at, *reached])
                if at == before:
                    failed[source.name] = at  # it said it had more than it has
            if at > before:
                deadline = time.monotonic() + PATIENCE_S
        far.append(at)

    def _heard_all(self) -> bool:
        return time.monotonic() > self._recorders.node.started + HEAR_S

    async def _read(
        self, source: Source, group: str, request: ReplayRequest, reached: list[int]
    ) -> AsyncGenerator[list[Run], None]:
        if source.here is None:
            seal = self._recorders.node.make_seal()
            stream = fetch(source.address, group, request, seal, reached, source.memory)
        else:
            reader = source.here.journal.reader()
            stream = self._own(reader, request, reached)
        async with aclosing(stream) as found:
            async for chunk in found:
                yield chunk

    @staticmethod
    async def _own(
        reader: Reader, request: ReplayRequest, reached: list[int]
    ) -> AsyncGenerator[list[Run], None]:
        end = min(reader.end, request.until)  # now: the journal grows while it is read
        async with aclosing(read_chunks(reader, structs.replace(request, until=end))) as found:
            async for chunk in found:
                yield chunk
        reached.append(end)

    async def _mended(
        self, group: str, request: ReplayRequest, chunk: list[Run], source: Source, memory: bool
    ) -> AsyncGenerator[list[Run], None]:
        """A chunk with what it lacks put in from other recorders, as far as they have it."""
        if not any(run.flags & (GAP | HEADS_ONLY) for run in chunk):
            yield chunk
            return
        good: list[Run] = []
        for run in chunk:
            if not run.flags & (GAP | HEADS_ONLY) or request.own:
                good.append(run)
                continue
            if good:
                yield good
                good = []
            without = frozenset({source.name})
            stream = self.stretch(
                group, run.position, run.end, request=request, without=without, memory=memory
            )
            async with aclosing(stream) as found:
                async for others in found:
                    # Where nobody has more than the head, the head is what there is.
                    yield [
                        part_of(run, one.position, one.end) if one.flags & GAP else one
                        for one in others
                    ]
        if good:
            yield good

    async def stretch(
        self,
        group: str,
        lo: int,
        hi: int,
        *,
        request: ReplayRequest | None = None,
        without: frozenset[str] = frozenset(),
        memory: bool = False,
    ) -> AsyncGenerator[list[Run], None]:
        """Positions lo to hi - 1, as far as those recorders that are not named in `without` have
        them now, or with `memory` also other members; for the rest, gaps."""
        request = request or ReplayRequest()
        at = lo
        while at < hi:
            others = [
                one
                for one in self._recorders.sources(group, memory=memory)
                if one.name not in without and one.has(at, hi)
            ]
            if not others:
                yield [gap(at, hi)]
                return
            source = min(others, key=lambda one: one.has(at, hi)[0])
            start = source.has(at, hi)[0][0]
            if start > at:
                yield [gap(at, start)]
                at = start
            part = structs.replace(request, since=at, until=hi, since_time=0)
            reached: list[int] = []
            before = at
            try:
                async with aclosing(self._read(source, group, part, reached)) as found:
                    async for chunk in found:
                        async for whole in self._nested(
                            group, request, chunk, source, without, memory
                        ):
                            yield whole
                        at = chunk[-1].end
            except ReplayFailed as error:
                self._recorders.node.log("info", "replay.moves_on", group=group, text=str(error))
            at = max([at, *reached])
            if at == before or not reached:
                without |= {source.name}

    async def _nested(
        self,
        group: str,
        request: ReplayRequest,
        chunk: list[Run],
        source: Source,
        without: frozenset[str],
        memory: bool,
    ) -> AsyncGenerator[list[Run], None]:
        for run in chunk:
            if run.flags & GAP:
                less = without | {source.name}
                stream = self.stretch(
                    group, run.position, run.end, request=request, without=less, memory=memory
                )
                async with aclosing(stream) as found:
                    async for others in found:
                        yield others
            else:
                yield [run]

    # -- handing over to live delivery -----------------------------------------------------

    def check_since(self, group: str, at: int) -> None:
        """Whether somebody can begin at an earlier position."""
        if protocol_of(group) not in TOTAL_ORDER and group not in self._recorders.own:
            raise ConfigError(
                "since", at, f"none: {group} has no total order, and this node does not record it"
            )

    def catch_up(
        self, slots: dict[int, Subscriber], application: Subscriber, group: str, at: int,
        since_time: int = 0, history: str = "", asked: bool = False,
    ) -> CatchUp:  # fmt: skip
        """Give `application` what it lacks from position `at` on, then what follows live.

        Until then `slots`, where its group looks for it, has somebody else in its place.
        `asked`: the application says by itself where it is, in `history` if it knows.
        """
        self.check_since(group, at)
        ordered = protocol_of(group) in TOTAL_ORDER
        mine = self._recorders.own.get(group)
        key = id(application)
        sitting = slots.get(key)
        if isinstance(sitting, CatchUp) and not sitting.live:
            return sitting  # it will find out by itself
        start = -1 if ordered or mine is None else mine.next
        born = self._recorders.lineage(group)
        place = Asked(history, at, asked and ordered and not since_time, born)
        found = CatchUp(self._recorders.node, slots, application, group, place, since_time, start)
        slots[key] = found
        self._catching[id(found)] = found
        found.start(lambda: self._over(found))
        return found

    def _over(self, one: CatchUp) -> None:
        self._catching.pop(id(one), None)
        self.handed_over += one.live

    async def stop(self) -> None:
        for one in list(self._catching.values()):
            one.stop()

    def status(self) -> list[dict[str, object]]:
        return [one.status() for one in self._catching.values()]
