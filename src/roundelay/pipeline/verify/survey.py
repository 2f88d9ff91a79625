"""What each row group of a run has: the first pass of the fast way.

Which positions, how many submissions of whom, whether there are transmissions, and the few special
rows (`verify.control`).  Only as much is read as the statistics of a row group leave open.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, field

from roundelay.core.errors import UsageError
from roundelay.core.events import DELIVER, NOBODY, NOTICE, SEND, SUBMIT
from roundelay.pipeline.verify.columns import (
    CODES,
    PROVISIONAL,
    Reader,
    column,
    events_of,
    numbers,
    present,
    read,
    word_is,
)
from roundelay.pipeline.verify.control import EVENTS, NOTICES, ROWS_MAX, Special
from roundelay.pipeline.verify.positions import LATER
from roundelay.pipeline.verify.runs import Run
from roundelay.pipeline.verify.tasks import Mapper
from roundelay.trace.checkers.checkers import TOTAL
from roundelay.trace.reader import rows_of
from roundelay.trace.schema import arrow

SURVEY_GROUPS: Final = 64
SURVEY_LEAST: Final = 8
SURVEY_TASKS: Final = 4
"""Row groups that one task surveys, and into how many tasks the work should be cut if it can."""

CONSTANT: Final = ("site", "count", "kind")
"""Columns that often have one value only; then they need not be read."""

SPECIAL: Final = np.isin(np.arange(len(CODES)), [CODES[name] for name in EVENTS])
"""By the code of an event: whether its rows are special."""


class Group(Struct):
    """What a row group has."""

    part: int
    group: int
    first_ns: int = 0
    last_ns: int = 0
    lo: int = LATER
    hi: int = -1
    deliveries: int = 0
    submits: int = 0
    own: dict[int, int] = field(default_factory=dict)
    """Site → messages submitted behind its last crash in this row group."""
    ended: list[int] = field(default_factory=list)
    """Sites with such a crash."""
    addressed: bool = False
    sends: bool = False
    specials: list[Special] = field(default_factory=list)


def survey(run: Run, mapper: Mapper) -> list[Group]:
    """What every row group of a run has."""
    every = [(p, g) for p, part in enumerate(run.parts) for g in range(len(part.rows))]
    share = max(SURVEY_LEAST, min(SURVEY_GROUPS, len(every) // SURVEY_TASKS + 1))
    items = [every[i : i + share] for i in range(0, len(every), share)]

    def task(groups: list[tuple[int, int]]) -> bytes:
        readers: dict[int, Reader] = {}
        found = [
            _survey_one(run, reader, part, group)
            for (reader, group), (part, _) in zip(
                read(readers, run.parts, groups), groups, strict=True
            )
        ]
        return msgspec.msgpack.encode(found)

    decode = msgspec.msgpack.Decoder(list[Group]).decode
    groups = [group for result in mapper(task, items) for group in decode(result)]
    if sum(len(group.specials) for group in groups) > ROWS_MAX:
        raise UsageError(
            f"{run.name}: more than {ROWS_MAX} crashes, notices and marks: verify it in parts"
        )
    return groups


def _survey_one(run: Run, reader: Reader, part: int, number: int) -> Group:
    """Where a row group has nothing but messages, its statistics say most of it."""
    group = Group(part, number)
    event = events_of(reader.table(number, ["event"]))
    if not len(event):
        return group
    if event.min() < 0:
        raise UsageError(f"trace {reader.part.path} has an event that no trace has")
    delivered, sent = event == DELIVER, event == SUBMIT
    deliveries, submits = int(np.count_nonzero(delivered)), int(np.count_nonzero(sent))
    plain = deliveries + submits == len(event)
    known: dict[str, Any] = {
        name: reader.only(number, name) if plain else None for name in CONSTANT
    }
    span = reader.bounds(number, "seq") if plain else None
    names = [name for name, value in known.items() if value is None or value in PROVISIONAL]
    names += [] if span else ["seq"]
    names += [] if run.order == TOTAL else ["info"]
    group.first_ns, group.last_ns = reader.times(number)
    if not names and span is not None and known["site"] in run.users:
        size = int(known["count"])
        group.deliveries, group.submits = deliveries * size, submits * size
        group.own = {known["site"]: group.submits} if submits else {}
        if deliveries:
            group.lo, group.hi = span[0], span[1] + size
        return group
    table, submitted = reader.table(number, names), np.flatnonzero(sent)
    site, count = (
        numbers(table, name) if known[name] is None else np.full(len(event), known[name])
        for name in ("site", "count")
    )
    unknown = set(present(site)) - {*run.sites, NOBODY}
    if unknown:
        raise UsageError(f"trace {reader.part.path}: there is no site {min(unknown)} in this group")
    group.sends = bool((event == SEND).any())
    if "kind" in names:
        for stage in PROVISIONAL:
            provisional = word_is(table, "kind", stage)
            if provisional is not None:
                delivered &= ~provisional
    if delivered.any():
        size = count[delivered]
        if span is not None:
            group.lo, group.hi = span[0], span[1] + int(size.max())
        else:
            seq = numbers(table, "seq")[delivered]
            group.lo, group.hi = int(seq.min()), int((seq + size).max())
        group.deliveries = int(size.sum())
    if len(submitted):
        group.submits = int(count[submitted].sum())
        if run.order != TOTAL:
            info = column(table, "info").take(arrow().array(submitted))
            group.addressed = info.null_count < len(info)
    _specials(reader, group, table, event)
    crashes = {
        special.row.site: special.place - int(reader.first[number])
        for special in group.specials
        if special.row.event == "CRASH" and special.row.kind != "memory"
    }
    group.ended = sorted(crashes)
    if len(submitted):
        for one in run.users:
            mine = submitted[site[submitted] == one]
            group.own[one] = int(count[mine[mine > crashes.get(one, -1)]].sum())
    return group


def _specials(reader: Reader, group: Group, table: Any, event: Any) -> None:
    rows = np.flatnonzero(SPECIAL[event])
    if not len(rows):
        return
    kinds = column(table, "kind").take(arrow().array(rows)).to_pylist()
    wanted = [
        int(row)
        for row, kind in zip(rows, kinds, strict=True)
        if event[row] != NOTICE or kind in NOTICES
    ]
    if not wanted:
        return
    whole = reader.table(group.group).take(arrow().array(wanted))
    first = int(reader.first[group.group])
    lines = [line for batch in whole.to_batches() for line in rows_of(_plain(batch))]
    group.specials = [Special(first + row, line) for row, line in zip(wanted, lines, strict=True)]


def _plain(batch: Any) -> Any:
    """A record batch without dictionaries."""
    pa = arrow()
    columns = [
        col.dictionary_decode() if isinstance(col, pa.DictionaryArray) else col
        for col in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
