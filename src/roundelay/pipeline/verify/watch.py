"""`roundelay verify --watch`: traces that still grow, looked at again and again.

Why a loop of triggers and not Structured Streaming's file source: that source takes a file once,
when it appears, and never looks at it again, but the file of a live process (`*.rows`) is one file
that grows as long as the process lives.  So every trigger is one small job: a task per group reads
what its files have got since the last one, by byte offsets, and shows it to the same checker that
judges simulated runs, whose state it has kept in `state`.  An alarm is raised by the trigger that
reads the row which breaks a promise.

What a trigger takes is closed under cause and effect: a process writes a row before anybody can
hear of it, so whatever led to a row written before the trigger began is in the files by then.
Rows that came later wait for the next trigger.

State is bounded: of each group the last `HORIZON` positions, the messages that have none yet, and
an offset per file.  Trace files of finished runs (`*.parquet`) that appear are judged once, as a
whole.
"""

from __future__ import annotations

import heapq
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from pyspark.sql import SparkSession

from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.events import END, EVENT_NAMES, NOBODY
from roundelay.core.families import FAMILIES
from roundelay.durable import put
from roundelay.pipeline.spark.executors import answers
from roundelay.pipeline.verify.runs import DEPTH
from roundelay.trace.checkers.checkers import JUDGED, TOTAL, RowChecker
from roundelay.trace.checkers.verdict import Violation
from roundelay.trace.live import (
    FRAME,
    FRAME_BYTES_MAX,
    Header,
    LiveFile,
    LiveRow,
    live_files,
    machine,
)
from roundelay.trace.merge import clocks, crash_of, kept_by_next_life
from roundelay.trace.schema import SPARSE, TraceRow

HORIZON: Final = 1 << 16
"""Positions that are kept for comparison with sites that are behind."""

READ_MAX: Final = FRAME_BYTES_MAX + FRAME.size
"""Bytes of one file that a trigger reads; the rest waits for the next one."""

FOREIGN_SLACK_NS: Final = 2_000_000_000
"""How far behind the present rows of another machine are taken: its clock is known roughly only."""

FILES_MAX: Final = 100_000


class Alarm(Struct):
    """A promise that was broken."""

    group: str
    invariant: str
    site: int
    time_ns: int
    detail: str

    @classmethod
    def of(cls, group: str, broken: Violation) -> Alarm:
        return cls(group, broken.invariant, broken.site, broken.time, broken.detail)


class Trigger(Struct):
    """What one look has brought."""

    number: int
    seconds: float
    groups: int
    rows: int
    alarms: list[Alarm] = field(default_factory=list)

    def json(self) -> str:
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        head = f"trigger {self.number}: {self.rows} rows of {self.groups} groups"
        lines = [
            f"  {alarm.invariant} in {alarm.group}, site {alarm.site}, "
            f"{alarm.time_ns / 1e6:.3f} ms: {alarm.detail}"
            for alarm in self.alarms
        ]
        return "\n".join([head, *lines])


STATE: Final = 4
"""Goes up when what is kept between triggers changes."""


def watch(
    spark: SparkSession,
    paths: Sequence[Path],
    *,
    every_s: float = 2.0,
    for_s: float | None = None,
    state: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Trigger]:
    """Look at the traces below `paths` every so often; each look is yielded.

    `state` is a folder that executors can write; one that is given is kept, and goes on from there.
    """
    for path in paths:
        if not path.is_dir():
            raise ConfigError("path", path, "with --watch a folder")
    home = state or Path(tempfile.mkdtemp(prefix="roundelay-watch-"))
    home.mkdir(parents=True, exist_ok=True)
    finished: set[tuple[str, int]] = set()
    begin, number = clock(), 0
    try:
        while True:
            started = clock()
            number += 1
            cut = time.monotonic_ns()
            folders = [folder for path in paths for folder in _folders(path)]
            groups: dict[tuple[str, str], list[str]] = {}
            for folder in folders:
                for file in live_files(folder):
                    groups.setdefault((str(folder), file.header.group), []).append(str(file.path))
            looks = [[(str(home), *place, files, cut)] for place, files in groups.items()]
            trigger = Trigger(number, 0.0, len(groups), 0)
            for rows, alarms in answers(
                spark, looks, lambda look: _trigger(*look), tuple[int, list[Alarm]]
            ):
                trigger.rows += rows
                trigger.alarms += alarms
            trigger.alarms += _finished(spark, folders, home, finished)
            trigger.seconds = clock() - started
            yield trigger
            if for_s is not None and clock() - begin >= for_s:
                return
            time.sleep(max(0.0, every_s - (clock() - started)))
    finally:
        if state is None:
            shutil.rmtree(home, ignore_errors=True)


def _folders(path: Path, depth: int = DEPTH) -> Iterator[Path]:
    yield path
    if depth:
        for below in sorted(path.iterdir()):
            if below.is_dir():
                yield from _folders(below, depth - 1)


def _finished(
    spark: SparkSession, folders: Sequence[Path], home: Path, seen: set[tuple[str, int]]
) -> list[Alarm]:
    """Alarms of trace files that have appeared."""
    from roundelay.pipeline.verify import verify

    files = [file for folder in folders for file in sorted(folder.glob("*.parquet"))]
    there = {(str(file), file.stat().st_mtime_ns): file for file in files}
    new = [file for name, file in there.items() if name not in seen]
    seen.update(there)
    if len(seen) > FILES_MAX:
        raise UsageError(f"more than {FILES_MAX} trace files: watch a smaller folder")
    return [
        Alarm.of(judgement.run, finding)
        for judgement in (verify(spark, new, home) if new else ())
        for verdict in judgement.invariants.values()
        for finding in verdict.findings
    ]


# -- one group, in a task ----------------------------------------------------------------------


def _trigger(
    home: str, folder: str, group: str, files: list[str], cut: int
) -> tuple[int, list[Alarm]]:
    """Show the checker of a group what is new; how many rows that were, and what is wrong."""
    name = blake2b(f"{folder}\n{group}".encode(), digest_size=12).hexdigest()
    path = Path(home) / f"{name}.state"
    opened = [LiveFile(Path(file)) for file in files]
    sites = tuple(sorted({file.header.site for file in opened} - {NOBODY}))
    if not sites:
        return 0, []
    watched = _load(path)
    if watched is None or watched.sites != sites:  # a site more: its group is judged anew
        watched = Watched(sites, opened[0].header.params)
    rows = watched.take(opened, cut)
    alarms = [Alarm.of(group, violation) for violation in watched.alarms()]
    put(path, pickle.dumps((STATE, watched), pickle.HIGHEST_PROTOCOL))
    return rows, alarms


def _load(path: Path) -> Watched | None:
    """The state of an earlier trigger; it is written by us alone, in a folder of our own.

    None if there is none, or if another version has written it: the group is judged anew."""
    if not path.exists():
        return None
    try:
        version, watched = pickle.loads(path.read_bytes())
    except (AttributeError, ImportError, TypeError, ValueError, EOFError, pickle.PickleError):
        return None
    return watched if version == STATE and isinstance(watched, Watched) else None


class Watched:
    """The checker of one group, and how far its files have been read."""

    def __init__(self, sites: tuple[int, ...], params: dict[str, Any]) -> None:
        self.sites = sites
        self.offsets: dict[str, int] = {}
        self.last: dict[str, int] = {}
        """File → time of its last row."""
        family = FAMILIES.get(params.get("protocol", ""))
        self.judge = RowChecker(
            sites,
            order=params.get("order", TOTAL),
            addressed=family is not None and family.selective,
            horizon=HORIZON,
        )
        self.reported = 0

    def take(self, files: list[LiveFile], cut: int) -> int:
        """Show the checker the rows that are new, in the order of time."""
        files = sorted(files, key=lambda file: (file.header.site, file.header.boot))
        offsets = clocks(files)
        streams = []
        for number, (file, keeps) in enumerate(zip(files, kept_by_next_life(files), strict=True)):
            new = list(self._new(file, _latest(file.header, cut), keeps))
            offset = offsets[file.header.machine]
            streams.append([(when + offset, number, rows) for when, rows in new])
        count = 0
        known = {*self.sites, NOBODY}
        for when, _, rows in heapq.merge(*streams, key=lambda batch: batch[:2]):
            for row in (_row(when, cells) for cells in rows if cells[0] in known):
                count += 1
                if row.event in JUDGED:
                    self.judge.take(row)
                if row.event == "MARK" and row.kind == END:
                    self.judge.finish(row.time)
        return count

    def alarms(self) -> list[Violation]:
        """Violations that nobody has been told of."""
        new = self.judge.violations[self.reported :]
        self.reported += len(new)
        return new

    def _new(self, file: LiveFile, latest: int, keeps: str) -> Iterator[tuple[int, list[LiveRow]]]:
        """Batches behind the last that was read, written by `latest`; then the crash, if any."""
        name = str(file.path)
        start = self.offsets.get(name, 0)
        last = self.last.get(name, file.header.monotonic_ns)
        if start < 0:
            return
        for when, rows in file.batches(start):
            if when > latest or file.at - start > READ_MAX:
                return
            last = max(last, when)
            self.offsets[name], self.last[name] = file.at, last
            yield last, rows
        if keeps:  # whoever has a later life writes no more to this file
            self.offsets[name] = -1
            yield last + 1, [crash_of(file, keeps)]


def _row(when: int, cells: LiveRow) -> TraceRow:
    site, event, ref, peer, *rest = cells
    given = {name: cell for name, cell in zip(SPARSE, rest, strict=False) if cell is not None}
    if "messages" in given:
        given["messages"] = tuple(given["messages"])
    return TraceRow(when, site, EVENT_NAMES[event], ref, peer, **given)


def _latest(header: Header, cut: int) -> int:
    """The last time of this file that the trigger may take."""
    if header.machine == machine():
        return cut
    return header.monotonic_ns + time.time_ns() - header.wall_ns - FOREIGN_SLACK_NS
