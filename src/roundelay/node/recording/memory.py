"""What a member has delivered lately, over all rosters of a history.

Each roster has an engine of its own, and what an engine keeps ends with it.  An application that
begins at an earlier position, or a member that was away while the roster changed, asks for what is
older: it gets it from here, or from the same memory of any other member (`Kept`,
`node.recording.recorders`), as it would from a recorder.  What is kept is one stretch of positions
without a gap, bounded in batches and bytes; the messages themselves are those of the engine, not
copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import structs

from roundelay.core.position import Position, holds
from roundelay.core.selection import Selection
from roundelay.journal.format import Run, part_of
from roundelay.node.driver.outbox import cost
from roundelay.node.node_api import Batch

BATCHES_MAX: Final = 65_536
BYTES_MAX: Final = 32 << 20
BATCH_COST: Final = 256
"""What a batch takes beside its messages, about."""


class Memory:
    """The last of what one member has delivered of one group, in order."""

    def __init__(self) -> None:
        self.history = ""
        """Which history of the group it is of; empty: none yet."""
        self.end = 0
        """Behind the last position that was delivered."""
        self.bytes = 0
        self._batches: deque[Batch] = deque()

    @property
    def begin(self) -> int:
        """The first position that is kept; `end` if none is."""
        return self._batches[0].seq if self._batches else self.end

    def enter(self, history: str, position: int) -> None:
        """What is delivered from now on begins at this position of this history."""
        if self.history == history:
            pass
        elif self.history and holds(history, Position(self.history, self.end)):
            self._batches = deque(
                structs.replace(batch, history=history) for batch in self._batches
            )
        else:
            self.clear()
        self.history = history
        if self.end != position:
            self.clear()
            self.end = position

    def clear(self) -> None:
        self._batches.clear()
        self.bytes = 0

    def add(self, batch: Batch) -> None:
        if batch.seq != self.end:
            self.clear()
        self.end = batch.seq + batch.positions
        self._batches.append(batch)
        self.bytes += cost(batch.bundle) + BATCH_COST
        while self.bytes > BYTES_MAX or len(self._batches) > BATCHES_MAX:
            self.bytes -= cost(self._batches.popleft().bundle) + BATCH_COST

    def batches(self, since: int) -> Iterator[Batch]:
        """What is kept from position `since` on; the memory may change meanwhile."""
        kept = list(self._batches)
        first = max(0, bisect_right(kept, since, key=lambda batch: batch.seq) - 1)
        for batch in islice(kept, first, None):
            known = since - batch.seq
            if known <= 0:
                yield batch
            elif known < batch.positions:
                rest = batch.bundle.part(known, len(batch.bundle.sizes))
                yield structs.replace(batch, seq=since, bundle=rest)

    def read(self, selection: Selection) -> Iterator[Run]:
        """The same as a journal's reader gives it.  Of a selection, positions are what counts here,
        and the time at which to begin."""
        begun = False
        for batch in self.batches(selection.since):
            at = batch.seq
            begun = begun or batch.time >= selection.since_time
            for conference, kind, bundle in batch.bundle.by_mark() if begun else ():
                if at >= selection.until:
                    return
                run = Run(at, batch.time, batch.sender, bundle, conference, kind)
                yield part_of(run, at, selection.until)
                at = run.end

    def reader(self) -> Memory:
        """What there is at this moment, to be read in any thread."""
        now = Memory()
        now.history, now.end, now._batches = self.history, self.end, self._batches.copy()
        return now
