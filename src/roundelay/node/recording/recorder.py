"""The Playback Recorder of a group: what the member at this node delivers goes into a journal.

Any node can record any group (`--record GROUP[:filter]`).  To its group the recorder is one more
application.  Deliveries are handed to a thread of its own that appends and syncs, many at a time,
so the group does not wait for the disk.  `durable` says how far the journal is on disk.

When more than `backlog_bytes` wait to be written, the recorder is *slow*.  Its node says so to the
others, and the members hold back what is new until half of it is written
(`node.recording.recorders`); so an overloaded recorder slows its group, and nothing is lost.
Should so much arrive all the same that `HARD` times the bound waits, the node itself waits for the
disk.

A write or sync that fails stops the recorder: it says so, keeps nothing more, acknowledges nothing
more, and slows nobody.

**Positions.**  In groups with a total order they are those of the order, the same at every
recorder.  In the others a recorder counts what it hears, so they hold for that recorder only.

**Histories.**  A group that is found by discovery can begin anew, at position 0, when all its
members were gone.  If the one that begins it is a recorder, it goes on behind what it has recorded
instead.  Where the order is another one than the journal's, the journal is put aside under the
name `GROUP.1`, `GROUP.2`, … and a new one is begun: a recorder never mixes two histories.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.position import Position, holds
from roundelay.core.selection import EVERYTHING, Selection, parse_filters
from roundelay.durable import Disk, numbered
from roundelay.journal.files import JournalBroken, read_history, write_history
from roundelay.journal.format import GAP, HEADS_ONLY, Run, head_only, part_of
from roundelay.journal.journal import ALWAYS, Journal, JournalConfig
from roundelay.node.node_api import Batch, Subscriber

BACKLOG_BYTES: Final = 16 << 20
HARD: Final = 4
COMMIT_BYTES: Final = 4 << 20
"""What one commit takes of the backlog at most."""
RUN_COST: Final = 256
"""What a run takes beside its messages, about."""
GATHER_S: Final = 0.02
"""Without a sync per commit, how long to let records gather for the next block."""
SWITCH_S: Final = 0.0005


class RecordConfig(Struct, frozen=True, kw_only=True):
    """A group to be recorded, and how."""

    group: str
    selection: Selection = EVERYTHING
    """What is recorded whole; of everything else the heads are kept (GR-10)."""
    journal: JournalConfig = JournalConfig()
    backlog_bytes: int = BACKLOG_BYTES
    disk: Disk | None = None
    """For tests: what the journal asks of the operating system."""


def parse_record(text: str) -> tuple[str, Selection]:
    """`GROUP[:filter]`, as `--record` takes it.

    A filter is `key=value`, several with commas or colons between them; a value may be a list.

    >>> parse_record("token:orders:sender=ann,bob")[0]
    'token:orders'
    >>> sorted(parse_record("to:x:conference=7,8,kind=1")[1].conferences)
    [7, 8]
    """
    parts = text.split(":")
    pieces: list[str] = []
    while len(parts) > 1 and "=" in parts[-1]:
        pieces = parts.pop().split(",") + pieces
    group = ":".join(parts)
    if not group or "=" in group:
        raise ConfigError("record", text, "GROUP, or GROUP:filter")
    return group, parse_filters(pieces, text)


def recall_history(folder: Path, disk: Disk, say: Callable[[str], None]) -> str:
    """Return which history of its group a journal holds, empty if none is known; what says so is
    mended."""
    try:
        history, faults = read_history(folder)
    except OSError:
        return ""
    for fault in faults:
        say(f"{fault}; it is written again")
    if history:
        with suppress(OSError):
            write_history(folder, history, disk)
    return history


def kept_of(run: Run, selection: Selection) -> Run | None:
    """Return what a journal takes of a run that another recorder has; None: nothing."""
    if run.flags & GAP:
        return None
    if not selection.matches(run.sender, run.conference, run.kind):
        return head_only(run)
    return None if run.flags & HEADS_ONLY else run


@dataclass(eq=False)
class Recorder(Subscriber):
    """An application that writes down what it is given."""

    is_recorder = True

    config: RecordConfig
    folder: Path
    _: KW_ONLY
    ordered: bool = True
    changed: Callable[[], None] = lambda: None
    """Called in the event loop when `durable`, `slow` or `broken` has changed."""
    say: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self.group = self.config.group
        self.selection = self.config.selection
        self.broken = ""
        self.slow = False
        self.slowed = 0
        """How often it has become slow."""
        self.recorded = 0
        self.put_aside = 0
        self._loop = asyncio.get_running_loop()
        self.journal = self._open()
        self.history = recall_history(self.folder, self.journal.disk, self._warn)
        """Which history of the group the journal holds; empty: none that is known."""
        self.next = self.journal.next
        """Position of the next delivery, whether those before are written yet or not."""
        self._items: deque[Run | str] = deque()
        """What is to be written, and the names of histories that what follows belongs to."""
        self._taken = 0  # bytes put into the queue: by the loop only
        self._written = 0  # bytes taken out: by the thread only
        self._awake = threading.Event()
        self._room = threading.Event()
        self._over = False
        self._telling = False
        self._thread = threading.Thread(target=self._work, name=f"record {self.group}", daemon=True)
        self._thread.start()
        # The event loop gives the interpreter away with every system call; it must not wait the
        # usual 5 ms to get it back from the thread.
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))

    def _open(self) -> Journal:
        config, disk = self.config.journal, self.config.disk
        return Journal(self.folder, self.group, config, self._warn, advanced=self._tell, disk=disk)

    def _warn(self, text: str) -> None:
        self.say(f"journal of {self.group}: {text}")

    # -- as the node calls it --------------------------------------------------------------

    def deliver(self, batch: Batch) -> None:
        if self.broken:
            return
        try:
            self._deliver(batch)
        except Exception as error:  # the group goes on, without this recorder
            self._stop(f"{type(error).__name__}: {error}")
            self.changed()

    def _deliver(self, batch: Batch) -> None:
        bundle = batch.bundle
        count = len(bundle.sizes)
        position = batch.seq if batch.seq >= 0 else self.next
        if not bundle.marks and self.selection.everything:
            self._taken += len(bundle.data) + RUN_COST
            self._items.append(Run(position, batch.time, batch.sender, bundle))
        else:
            for run in self._runs(position, batch):
                self._taken += len(run.bundle.data) + RUN_COST
                self._items.append(run)
        if position + count > self.next:
            self.next = position + count
        if not self._awake.is_set():
            self._awake.set()
        if self.backlog > self.config.backlog_bytes:
            self._fall_behind()

    def take(self, run: Run) -> None:
        """What another recorder has, at the position that is next here."""
        self._taken += len(run.bundle.data) + RUN_COST
        self._items.append(run)
        self.next = run.end
        self._awake.set()

    def _runs(self, position: int, batch: Batch) -> Iterator[Run]:
        """One run for each conference and kind; without payload where the filter says so."""
        for conference, kind, bundle in batch.bundle.by_mark():
            run = Run(position, batch.time, batch.sender, bundle, conference, kind)
            if not self.selection.matches(batch.sender, conference, kind):
                run = head_only(run)
            yield run
            position += len(bundle.sizes)

    def _fall_behind(self) -> None:
        if not self.slow:
            self.slow = True
            self.slowed += 1
            self.changed()
        while self.backlog > HARD * self.config.backlog_bytes and not self.broken:
            self._room.clear()
            self._room.wait(0.1)

    def enter(self, history: str) -> None:
        """What is delivered from now on belongs to this history of the group."""
        if self.ordered and not self.broken:
            self._items.append(history)
            self._awake.set()

    @property
    def backlog(self) -> int:
        """Bytes that wait to be written."""
        return 0 if self.broken else self._taken - self._written

    # -- the writing thread ----------------------------------------------------------------

    def _work(self) -> None:
        """Everything that waits goes into one commit: under load, few syncs for many records."""
        items = self._items
        gather = self.config.journal.sync != ALWAYS
        while True:
            if not items:
                if self._over:
                    return
                self._awake.clear()
                if not items and not self._over:
                    self._awake.wait()
                continue
            size = 0
            try:
                if self.broken:
                    items.clear()
                while items and size < COMMIT_BYTES:
                    item = items.popleft()
                    if isinstance(item, str):
                        self._enter(item)
                        continue
                    size += len(item.bundle.data) + RUN_COST
                    if item.position < self.journal.next and not self._known(item):
                        self._begin_anew(f"position {item.position} holds something else here")
                    self.journal.add(item)
                    self.recorded += item.records
                if not self.broken:
                    self.journal.commit()
            except (JournalBroken, OSError) as error:
                self._stop(str(error))
            self._written += size
            self._room.set()
            self._tell()
            if gather and not self._over and not self.broken:
                time.sleep(GATHER_S)

    def _known(self, run: Run) -> bool:
        """Whether what is recorded at these positions is the same; what is missing may be."""
        self.journal.commit()
        lo, hi = run.position, min(run.end, self.journal.next)
        for old in self.journal.read(Selection(since=lo, until=hi)):
            if old.flags & GAP:
                continue
            new = part_of(run, old.position, old.end)
            if old.sender != new.sender or old.bundle.sizes != new.bundle.sizes:
                return False
            complete = not (old.flags | new.flags) & HEADS_ONLY
            if complete and old.bundle.data != new.bundle.data:
                return False
        return True

    def _stop(self, why: str) -> None:
        if not self.broken:
            self.broken = why
            self._warn(f"the recorder stops: {why}")

    def _tell(self) -> None:
        """Let the loop look: `durable` may have risen, or the journal may be broken."""
        if self.journal.broken and not self.broken:
            self._stop(self.journal.broken)
        if not self._telling and not self._loop.is_closed():
            self._telling = True
            with suppress(RuntimeError):  # the loop was closed just now
                self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        self._telling = False
        if self.slow and (self.broken or 2 * self.backlog < self.config.backlog_bytes):
            self.slow = False
        self.changed()

    # -- histories -------------------------------------------------------------------------

    def _enter(self, history: str) -> None:
        at = self.journal.next
        if at and not holds(history, Position(self.history, at)):
            self._begin_anew("the group has begun anew")
        if self.history != history:
            write_history(self.folder, history, self.journal.disk)
            self.history = history

    def _begin_anew(self, why: str) -> None:
        """The order is another one: what was recorded is kept, under another name."""
        self.journal.close()
        aside = numbered(self.folder)
        self.folder.rename(aside)
        self.put_aside += 1
        self._warn(f"another history of the group ({why}); this one is now {aside.name}")
        self.journal = self._open()

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Write what waits, and close the journal."""
        self._over = True
        self._awake.set()
        self._thread.join()
        try:
            self.journal.close()
        except JournalBroken as error:
            self._stop(str(error))

    def status(self) -> dict[str, object]:
        return self.journal.status() | {
            "fsync": self.config.journal.sync,
            "broken": self.broken or None,
            "slow": self.slow,
            "slowed": self.slowed,
            "backlog_bytes": self.backlog,
            "backlog_bytes_max": self.config.backlog_bytes,
            "recorded": self.recorded,
            "filter": self.selection.shown() or None,
            "put_aside": self.put_aside,
        }
