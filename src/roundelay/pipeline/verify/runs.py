"""What there is to verify: the runs behind the folders and files that were named.

A run is one group's history: one trace file with all its sites, or several files in one folder
that say the same about their run and have different sites.  Live processes leave files of rows
(`*.rows`); those of a group are put together first, in `scratch`, as `roundelay check` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.families import FAMILIES
from roundelay.trace.checkers.checkers import FIFO, NONE, TOTAL, TracedGroup
from roundelay.trace.live import SUFFIX, live_files
from roundelay.trace.merge import merge
from roundelay.trace.reader import TraceFile
from roundelay.trace.schema import VERSION_KEY, parquet

ALLOWED: Final = "a trace file, or a folder with traces of a run or of live nodes"
DEPTH: Final = 4
"""How far below a folder runs are looked for."""


class TracePart(Struct, frozen=True):
    """One file of a run: `first` is the place of its first row among those of all files."""

    path: str
    rows: tuple[int, ...]
    """How many rows each row group has."""
    first: int
    low: int = 0
    high: int = 0
    """The least and the greatest site it has rows of."""

    def may_have(self, site: int) -> bool:
        return self.low <= site <= self.high


class TracedRun(TracedGroup, frozen=True, kw_only=True):
    """A group's history, and what is known about it before anybody looks inside."""

    name: str
    parts: tuple[TracePart, ...]
    protocol: str
    resilience: int | None
    """L, if the protocol has it and the trace says it."""

    @property
    def rows(self) -> int:
        return sum(sum(part.rows) for part in self.parts)

    @property
    def apart(self) -> bool:
        """Whether sites have files of their own: then only time tells what came first."""
        return len(self.parts) > 1

    @property
    def row_groups(self) -> list[tuple[int, int]]:
        """All of them, each as (part, row group)."""
        return [(p, g) for p, part in enumerate(self.parts) for g in range(len(part.rows))]


def find_runs(paths: Sequence[Path], scratch: Path) -> list[TracedRun]:
    """All runs behind `paths`; UsageError if there is none, or one that cannot be judged."""
    runs: list[TracedRun] = []
    for path in paths:
        below = _runs_of(Path(path), scratch, DEPTH)
        if not below:
            raise ConfigError("path", path, ALLOWED)
        runs += below
    return runs


def _runs_of(path: Path, scratch: Path, depth: int) -> list[TracedRun]:
    if path.is_file():
        if path.suffix == SUFFIX:
            raise ConfigError("path", path, f"the folder of it: a {SUFFIX} file is one site's only")
        return [_run(str(path), [path])]
    if not path.is_dir():
        return []
    files = [file for file in sorted(path.glob("*.parquet")) if _is_trace(file)]
    if files:
        return _grouped(path, files)
    groups = sorted({file.header.group for file in live_files(path)})
    if groups:
        return [_merged(path, group, scratch) for group in groups]
    if not depth:
        return []
    below = (folder for folder in sorted(path.iterdir()) if folder.is_dir())
    return [run for folder in below for run in _runs_of(folder, scratch, depth - 1)]


def _grouped(folder: Path, files: Iterable[Path]) -> list[TracedRun]:
    """Files that say the same about their run are parts of it."""
    by_run: dict[bytes, list[Path]] = {}
    for file in files:
        about = {k: v for k, v in TraceFile(file).params.items() if k != "site"}
        by_run.setdefault(msgspec.json.encode(about, order="deterministic"), []).append(file)
    alone = len(by_run) == 1
    return [_run(str(folder if alone else paths[0]), paths) for paths in by_run.values()]


def _merged(folder: Path, group: str, scratch: Path) -> TracedRun:
    home = scratch / f"merged-{len(list(scratch.glob('merged-*')))}"
    home.mkdir(parents=True)
    trace = home / "trace.parquet"
    merge(folder, trace, group=group)
    return _run(f"{folder}: {group}", [trace])


def _is_trace(path: Path) -> bool:
    try:
        return VERSION_KEY in (parquet().read_schema(path).metadata or {})
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise UsageError(f"trace {path} cannot be read: {str(error).splitlines()[0]}") from None


def _run(name: str, paths: list[Path]) -> TracedRun:
    traces = [TraceFile(path) for path in paths]
    params, where = traces[0].params, paths[0]
    group = TracedGroup.of(traces[0])
    if not group.sites:
        raise UsageError(f"trace {where} does not say which sites its group has")
    if group.order not in (TOTAL, FIFO, NONE):
        raise UsageError(
            f"trace {where} has order {group.order!r}: must be {TOTAL}, {FIFO} or {NONE}"
        )
    parts, first = [], 0
    for trace in traces:
        metadata = parquet().read_metadata(trace.path)
        rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        parts.append(TracePart(str(trace.path.resolve()), rows, first, *_span(metadata)))
        first += sum(rows)
    for part, other in pairwise(sorted(parts, key=lambda part: part.low)):
        if other.low <= part.high:
            raise UsageError(
                f"{part.path} and {other.path} are parts of one run, but both have rows of site "
                f"{other.low}: verify them one by one"
            )
    protocol = params.get("protocol", "")
    family = FAMILIES.get(protocol)
    resilience = params.get("resilience") if family is not None and family.resilient else None
    return TracedRun(
        **structs.asdict(group),
        name=name,
        parts=tuple(parts),
        protocol=protocol,
        resilience=resilience if isinstance(resilience, int) else None,
    )


def _span(metadata: Any) -> tuple[int, int]:
    """The least and the greatest site of a file, by its statistics."""
    low, high = 1 << 31, -1
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(1).statistics
        if statistics is None or not statistics.has_min_max:
            return 0, (1 << 31) - 1
        low, high = min(low, max(statistics.min, 0)), max(high, statistics.max)
    return low, high
