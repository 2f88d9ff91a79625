"""One trace out of many: the files of live processes (`live`) become a `trace.parquet`.

Rows are brought into one order of time.  Processes of one machine share its monotonic clock, and a
flush is timed so that what leads to something has an earlier time than what it leads to.  Between
machines the offset of their clocks is estimated from their wall clocks, and corrected until no
message is delivered before it was submitted; the order of deliveries at a site never depends on it.

A process that was killed could not say so.  So whoever has a later life gets a CRASH behind the
last row of the earlier one.  A process that is not to come back needs somebody else to say it: one
who looks on (`LiveTrace` with site NOBODY) may write rows about any site, and about all of them:
FAULT, MARK.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.events import CRASH, DELIVER, EVENT_NAMES, NO_REF, NOBODY, SUBMIT
from roundelay.trace.live import CELLS, HEAD_CELLS, LiveFile, LiveRow, live_files
from roundelay.trace.recorder import TraceWriter
from roundelay.trace.schema import MESSAGES, arrow, arrow_column

BATCH_ROWS: Final = 16_384
MESSAGES_AT: Final = HEAD_CELLS + MESSAGES

Batch = tuple[int, int, list[LiveRow]]
"""Time, number of the file, rows."""


class Merged(Struct, frozen=True):
    """What came of it."""

    path: Path
    rows: int
    files: int
    sites: tuple[int, ...]
    machines: int
    torn: tuple[str, ...]
    """Files whose last frame was cut off: processes killed while they wrote."""


def merge(
    folder: Path, path: Path, *, group: str | None = None, params: Mapping[str, Any] | None = None
) -> Merged:
    """Write the trace of `group` (needless if there is but one) to `path`.

    The parameters of the run come from the files, `sites` from those who wrote; `params` adds and
    overrides.
    """
    files = live_files(folder, group)
    groups = sorted({file.header.group for file in files})
    if len(groups) != 1:
        allowed = "one of " + ", ".join(groups) if groups else f"one with traces in {folder}"
        raise ConfigError("group", group, allowed)
    files.sort(key=lambda file: (file.header.site, file.header.boot))
    offsets = _offsets(files)
    start = min(
        file.header.monotonic_ns + offset for file, offset in zip(files, offsets, strict=True)
    )
    sites = tuple(sorted({file.header.site for file in files} - {NOBODY}))
    about: dict[str, Any] = {"group": groups[0], "sites": list(sites)}
    for file in files:
        about.update(file.header.params)
    about.update(params or {})
    writer = TraceWriter(path, about)
    try:
        rows = _write(writer, _in_order(files, [offset - start for offset in offsets]))
    except BaseException:
        writer.discard()
        raise
    writer.close()
    machines = {file.header.machine for file in files}
    torn = tuple(file.path.name for file in files if not file.whole)
    return Merged(path, rows, len(files), sites, len(machines), torn)


def _in_order(files: list[LiveFile], offsets: list[int]) -> Iterator[Batch]:
    each = zip(files, offsets, kept_by_next_life(files), strict=True)
    return heapq.merge(
        *(_batches(number, *about) for number, about in enumerate(each)),
        key=lambda batch: batch[:2],
    )


def kept_by_next_life(files: list[LiveFile]) -> list[str]:
    """Of each file, by site and boot: what the next life of its process had left; "" if none."""
    kept = [
        later.header.keeps if later.header.site == file.header.site != NOBODY else ""
        for file, later in pairwise(files)
    ]
    return [*kept, ""]


def crash_of(file: LiveFile, keeps: str) -> LiveRow:
    """What a process could not write behind its last row: that it was killed."""
    return [file.header.site, CRASH, NO_REF, NOBODY, keeps]


def _batches(number: int, file: LiveFile, offset: int, keeps: str) -> Iterator[Batch]:
    """The batches of a file, and the crash at its end if there is a next life."""
    last = file.header.monotonic_ns
    for time, rows in file.batches():
        last = max(time, last)
        yield last + offset, number, rows
    if keeps:
        yield last + 1 + offset, number, [crash_of(file, keeps)]


def _write(writer: TraceWriter, batches: Iterator[Batch]) -> int:
    pa = arrow()
    times: list[int] = []
    lines: list[LiveRow] = []
    written = 0

    def put() -> None:
        columns = [times, *zip(*lines, strict=True)]
        arrays = list(map(arrow_column, writer.schema, columns))
        writer.add(pa.record_batch(arrays, schema=writer.schema))
        times.clear()
        lines.clear()

    for time, number, rows in batches:
        for row in rows:
            if len(row) < HEAD_CELLS or len(row) > CELLS or not 0 <= row[1] < len(EVENT_NAMES):
                raise UsageError(f"file {number} of the trace has a row that cannot be: {row}")
            times.append(time)
            lines.append(row + [None] * (CELLS - len(row)))
        written += len(rows)
        if len(lines) >= BATCH_ROWS:
            put()
    if lines:
        put()
    return written


# -- several machines --------------------------------------------------------------------------


def _offsets(files: list[LiveFile]) -> list[int]:
    """What to add to the times of each file."""
    by_machine = clocks(files)
    if len(by_machine) > 1:
        for machine, shift in _shifts(files, by_machine).items():
            by_machine[machine] += shift
    return [by_machine[file.header.machine] for file in files]


def clocks(files: list[LiveFile]) -> dict[str, int]:
    """By machine: what to add to its times so that they can be compared, roughly."""
    headers = [file.header for file in reversed(files)]
    by_machine = {header.machine: header.wall_ns - header.monotonic_ns for header in headers}
    return by_machine if len(by_machine) > 1 else dict.fromkeys(by_machine, 0)


def _shifts(files: list[LiveFile], offsets: Mapping[str, int]) -> dict[str, int]:
    """By how much each machine's clock has to be put forward so that causes come first.

    A message submitted at machine A and delivered at machine B says that B's time of the delivery
    is after A's time of the submission.  These are constraints on differences; starting from no
    shift at all they are fulfilled one after the other (Bellman and Ford).
    """
    submitted: dict[int, tuple[str, int]] = {}
    for file in files:
        machine = file.header.machine
        for time, row in _rows_of(file, SUBMIT):
            for message in row[MESSAGES_AT]:
                submitted[message] = (machine, time + offsets[machine])
    least: dict[tuple[str, str], int] = {}  # (A, B) → how much later B's clock has to be than A's
    for file in files:
        machine = file.header.machine
        for time, row in _rows_of(file, DELIVER):
            for message in row[MESSAGES_AT]:
                source, then = submitted.get(message, (machine, 0))
                if source != machine:
                    key = (source, machine)
                    needed = then - (time + offsets[machine]) + 1
                    least[key] = max(least.get(key, needed), needed)
    shifts = dict.fromkeys(offsets, 0)
    for _ in shifts:
        for (source, machine), needed in least.items():
            shifts[machine] = max(shifts[machine], shifts[source] + needed)
    return shifts


def _rows_of(file: LiveFile, event: int) -> Iterator[tuple[int, LiveRow]]:
    for time, rows in file.batches():
        for row in rows:
            if row[1] == event:
                yield time, row
