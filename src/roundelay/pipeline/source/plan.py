"""Where the data source reads from, and how the reading is divided among tasks.

A *store* is a journal, an archive, or a live recorder.  What several stores have of one group is
covered once: positions of a totally ordered group are the same everywhere, so what one store lacks
is read from another.  Journals of several recorders are read side by side and compared
(`journal.merge`, as `query` and `reconcile` do): where they disagree, most copies win.  In a group
without a total order positions are one recorder's own, and only one store can be read.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from roundelay.client.recorder import RecorderClient
from roundelay.core.errors import ConfigError, RoundelayError
from roundelay.core.positions import Range, difference, union
from roundelay.core.selection import Selection
from roundelay.journal.archive import Manifest, read_manifest
from roundelay.journal.arrow import PIECE_BYTES, pieces
from roundelay.pipeline.journals import OpenJournal, find, is_ordered, opened, same_history
from roundelay.pipeline.reading import ReadTask, journal_tasks
from roundelay.pipeline.source.options import SourceOptions

ROW_BYTES: Final = 128
"""What a row of a live recorder is taken to weigh, for want of a better figure."""
TASK_BYTES_LEAST: Final = 1 << 20


class ArchiveStore:
    """What an archive has of one group."""

    def __init__(self, folder: Path, group: str, manifest: Manifest) -> None:
        self.group = group
        self.history = frozenset(manifest.groups[group].histories)
        self._folder = folder
        self._files = [file for file in manifest.files if file.group == group]

    def have(self) -> list[Range]:
        return union([span for file in self._files for span in file.ranges])

    def tasks(self, selection: Selection, task_bytes: int) -> list[ReadTask]:
        """What Spark's tasks are to read of it, about `task_bytes` each."""
        tasks = []
        for file in self._files:
            step = max(1, file.rows * task_bytes // max(1, file.bytes))
            for lo, hi in _steps(file.ranges, selection, step):
                size = max(1, file.bytes * (hi - lo) // max(1, file.rows))
                tasks.append(ReadTask(self.group, lo, hi, size, (), str(self._folder), file))
        return tasks


class RecorderStore:
    """A group as nodes with recorders serve it."""

    history: frozenset[str] = frozenset()
    """Not known."""

    def __init__(self, recorders: tuple[str, ...], group: str, patience_s: float) -> None:
        self.group = group
        self._recorders = recorders
        self._have: list[Range] = []
        self._patience_s = patience_s
        self._heard = 0.0
        self.refresh()

    def refresh(self) -> None:
        spans, errors = [], []
        for where in self._recorders:
            try:
                with RecorderClient(where, self.group) as client:
                    status = client.status()
                ordered = is_ordered(self.group)
                spans.append((status.first, status.next if ordered else status.durable))
            except RoundelayError as error:
                errors.append(str(error))
        if spans:
            self._have, self._heard = union(spans), time.monotonic()
        elif not self._heard or time.monotonic() - self._heard > self._patience_s:
            raise ConfigError("recorder", ",".join(self._recorders), "; ".join(errors))

    def have(self) -> list[Range]:
        return self._have

    def tasks(self, selection: Selection, task_bytes: int) -> list[ReadTask]:
        tasks: list[ReadTask] = []
        for lo, hi in _steps(self._have, selection, max(1, task_bytes // ROW_BYTES)):
            turn = len(tasks) % len(self._recorders)
            order = self._recorders[turn:] + self._recorders[:turn]
            tasks.append(ReadTask(self.group, lo, hi, (hi - lo) * ROW_BYTES, recorders=order))
        return tasks


MessageStore = OpenJournal | ArchiveStore | RecorderStore
"""Of one group: what it has, and which history its positions belong to."""


def _steps(ranges: Iterable[Range], selection: Selection, step: int) -> Iterator[Range]:
    """The positions that are selected, at most `step` at a time."""
    for first, last in ranges:
        lo, hi = max(first, selection.since), min(last, selection.until)
        for begin in range(lo, hi, step):
            yield begin, min(hi, begin + step)


# ------------------------------------------------------------------------ finding stores


class MessageStores:
    """All stores that the options name; a stream keeps them and looks again at each trigger."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._known: dict[Path | str, OpenJournal | RecorderStore] = {}
        """Journals by folder, recorders by group."""
        self.by_group: dict[str, list[MessageStore]] = {}
        self.refresh()

    def _store(self, key: Path | str) -> OpenJournal | RecorderStore:
        """The store as it is now."""
        store = self._known.get(key)
        if store is not None:
            store.refresh()
        elif isinstance(key, Path):
            (store,) = opened([key])
        else:
            store = RecorderStore(self.options.recorders, key, self.options.gap_wait_s)
        self._known[key] = store
        return store

    def refresh(self) -> None:
        options = self.options
        groups = options.groups
        folders, archives = find(expanded(options.paths))
        all_stores: list[MessageStore] = [self._store(folder) for folder in folders]
        if options.recorders:
            all_stores += [self._store(group) for group in sorted(groups or ())]
        for folder in archives:
            manifest = read_manifest(folder)
            all_stores[:0] = [ArchiveStore(folder, group, manifest) for group in manifest.groups]
        self.by_group = {}
        for store in all_stores:
            if groups is None or store.group in groups:
                self.by_group.setdefault(store.group, []).append(store)
        for group, stores in self.by_group.items():
            _check_history(group, stores)
            if len(stores) > 1 and not is_ordered(group):
                allowed = f"one journal of {group}: it has no total order, so each recorder has "
                paths = ",".join(options.paths)
                raise ConfigError("path", paths, allowed + "positions of its own")

    def have(self, group: str) -> list[Range]:
        return union([span for store in self.by_group[group] for span in store.have()])

    def ends(self) -> dict[str, int]:
        """Group → the position behind the last that there is."""
        return {group: have[-1][1] for group in self.by_group if (have := self.have(group))}

    def tasks(self, group: str, selection: Selection, task_bytes: int) -> list[ReadTask]:
        """What is to be read for the selection, each position once: archives before journals,
        which are read side by side."""
        stores = self.by_group[group]
        journals = [store for store in stores if isinstance(store, OpenJournal)]
        others = [store for store in stores if not isinstance(store, OpenJournal)]
        by_journal = [pieces(store.reader, selection, piece_bytes=task_bytes) for store in journals]
        spans = [(piece.lo, piece.hi) for some in by_journal for piece in some]
        chosen: list[ReadTask] = []
        for tasks in (
            *(store.tasks(selection, task_bytes) for store in others),
            journal_tasks(group, by_journal, spans, task_bytes),
        ):
            taken = union([(task.lo, task.hi) for task in chosen])
            chosen += [
                task.part(lo, hi)
                for task in tasks
                for lo, hi in difference([(task.lo, task.hi)], taken)
            ]
        return sorted(chosen, key=lambda task: task.lo)


def _check_history(group: str, stores: Sequence[MessageStore]) -> None:
    """A group that began anew has other messages at the same positions."""
    for store, other in combinations(stores, 2):
        if not same_history(store.history, other.history):
            allowed = (
                "journals and archives of one history of the group: it began anew, and its "
                "positions with it; read them one at a time"
            )
            raise ConfigError("path", group, allowed)


def expanded(paths: Iterable[str]) -> list[Path]:
    """The folders that paths and globs name."""
    folders: dict[Path, None] = {}
    for text in paths:
        local = local_path(text, "path")
        named = sorted(glob.glob(local)) if glob.has_magic(local) else [local]
        for folder in map(Path, named):
            if not folder.exists():
                raise ConfigError("path", text, "a folder that is there")
            folders[folder] = None
    return list(folders)


def local_path(text: str, field: str) -> str:
    """A path of the file system, also from a `file:` URI."""
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+):", text)
    if scheme is None:
        return text
    if scheme[1] != "file":
        raise ConfigError(field, text, "a folder that is mounted here, or a file: URI")
    return unquote(re.sub(r"^file:(//[^/]*)?(?=/)", "", text))


# ------------------------------------------------------------------------ dividing


def gaps_in(have: Sequence[Range], selection: Selection) -> list[Range]:
    """Positions between the first and the last that nobody has, as far as they are wanted."""
    if not have:
        return []
    lo, hi = max(have[0][0], selection.since), min(have[-1][1], selection.until)
    return difference([(lo, hi)], have) if lo < hi else []


def task_size(rows_bytes: int, partitions: int) -> int:
    """Bytes of one task: all cores have something to do, and none has too much."""
    task_count = partitions or (os.cpu_count() or 1)
    return max(TASK_BYTES_LEAST, min(PIECE_BYTES, rows_bytes // task_count + 1))


def divided(tasks: Sequence[ReadTask], partitions: int) -> list[list[ReadTask]]:
    """The tasks in order, put together so that none is tiny."""
    total = sum(task.bytes for task in tasks)
    if not total:
        return []
    target = total // partitions + 1 if partitions else task_size(total, 0)
    by_partition: dict[int, list[ReadTask]] = {}
    before = 0
    for task in tasks:
        by_partition.setdefault((before + task.bytes // 2) // target, []).append(task)
        before += task.bytes
    return list(by_partition.values())
