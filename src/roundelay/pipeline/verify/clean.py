"""The first look at a range of positions: is everything in it as it should be?

Nearly all ranges of nearly all traces are clean, and that is quickly seen without sorting or
searching anything: every site has the same positions without a hole, the same messages stand at
them, and those of a source are, one by one, what it submitted, in that order.  Each is one
comparison of arrays as they lie in the file.

`judge_clean` returns what `verify_positions.judge_range` would return for such a range, or None:
then that one looks closer.  It never says that something is wrong.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from roundelay.pipeline.verify.columns import (
    OFFSET_BITS,
    PROVISIONAL,
    Array,
    Reader,
    column,
    present,
    read,
)
from roundelay.pipeline.verify.control import Control
from roundelay.pipeline.verify.positions import (
    BACK_MESSAGES,
    Line,
    Numbers,
    Range,
    RangeResult,
    Stretch,
    judge_commits,
)
from roundelay.pipeline.verify.runs import Run

NAMES: Final = ("time", "event", "digest", "messages")
MORE: Final = ("seq", "source", "number")

Rows = dict[str, Array]
"""Columns by name, one item per message; `pos` if that is not `seq`, `offset` if it is not 0."""


class Strange(Exception):
    """Something is not as it is in a clean trace."""


class Told(Struct):
    """What some row groups say, by site, in the order of the file."""

    deliveries: list[tuple[int, Rows]] = field(default_factory=list)
    submits: dict[int, list[Rows]] = field(default_factory=dict)


def judge_clean(run: Run, control: Control, task: Range) -> RangeResult | None:
    """What there is to say about a range if it is clean."""
    try:
        return _judge(run, control, task)
    except Strange:
        return None


def _judge(run: Run, control: Control, task: Range) -> RangeResult:
    readers: dict[int, Reader] = {}
    told = Told()
    starts, _ = control.required()
    sides = Sides(run, control, bool(((starts > task.lo) & (starts < task.hi)).any()))
    for reader, group in read(readers, run.parts, task.groups):
        _take(told, run, reader, group, task)
        for site, rows in told.deliveries:
            sides.take(site, rows)
        told.deliveries.clear()
    result = RangeResult(task.lo)
    if not sides.chunks:
        return result
    sides.finish(result)
    _judge_commits(run, control, result, sides)
    _judge_sources(run, control, result, task, readers, told, sides.canon)
    return result


# -- reading -----------------------------------------------------------------------------------


def _take(
    told: Told, run: Run, reader: Reader, group: int, task: Range, *, submits_only: bool = False
) -> None:
    """Take the messages of a row group in, as they lie there."""
    alone = reader.only(group, "site")
    names = [*NAMES, *(() if submits_only else MORE), *(("site",) if alone is None else ())]
    stage = None if submits_only else reader.only(group, "kind")
    if stage is None or stage in PROVISIONAL:
        names += () if submits_only else ("kind",)
    table = reader.table(group, names)
    event = column(table, "event")
    words = event.dictionary.to_pylist()
    code = event.indices.to_numpy()
    lists = column(table, "messages")
    first = int(reader.first[group])
    if event.null_count:
        raise Strange
    for word in ("SUBMIT",) if submits_only else ("SUBMIT", "DELIVER"):
        if word not in words:
            continue
        rows = np.flatnonzero(code == words.index(word))
        delivered = word == "DELIVER"
        if delivered and "kind" in names:
            rows = _final(table, rows)
        if not len(rows):
            continue
        whose = {alone: rows} if alone is not None else _by_site(table, rows)
        for site, mine in whose.items():
            if site not in run.users:
                continue
            found = _spread(table, lists, mine, first, delivered)
            if delivered:
                found = _inside(found, task)
                if len(found["fp"]):
                    told.deliveries.append((site, found))
            else:
                told.submits.setdefault(site, []).append(found)


def _final(table: Any, rows: Array) -> Array:
    """Those of the deliveries that promise something."""
    kind = column(table, "kind")
    words = kind.dictionary.to_pylist()
    for stage in PROVISIONAL:
        if stage in words:
            indices = kind.indices.fill_null(-1).to_numpy()
            rows = rows[indices[rows] != words.index(stage)]
    return rows


def _by_site(table: Any, rows: Array) -> dict[int, Array]:
    site = _raw(column(table, "site"))[rows]
    return {one: rows[site == one] for one in present(site)}


def _spread(table: Any, lists: Any, rows: Array, first: int, delivered: bool) -> Rows:
    """The messages of some rows."""
    offsets, values = lists.offsets.to_numpy(), _raw(lists.values)
    starts = offsets[rows]
    sizes = offsets[rows + 1] - starts
    found: Rows = {}
    if (sizes == 1).all():
        found["fp"] = values[starts]
        _check_digests(table, rows, found["fp"])
    else:
        alone = sizes == 1
        _check_digests(table, rows[alone], values[starts[alone]])
        rows, starts = np.repeat(rows, sizes), np.repeat(starts, sizes)
        before = np.repeat(np.cumsum(sizes) - sizes, sizes)
        found["offset"] = np.arange(len(rows)) - before
        found["fp"] = values[starts + found["offset"]]
    found["place"] = rows + first
    for name in ("time", "seq", "source", "number") if delivered else ("time",):
        values = column(table, name)
        if values.null_count and not _valid(values)[rows].all():
            raise Strange
        found[name] = _raw(values)[rows]
    if "offset" in found and delivered:
        found["pos"] = found["seq"] + found["offset"]
    return found


def _check_digests(table: Any, rows: Array, fp: Array) -> None:
    """The digest of a row of one message is that of the message (`verify_columns`)."""
    if not np.array_equal(_raw(column(table, "digest"))[rows], fp):
        raise Strange


def _raw(values: Any) -> Array:
    """A column of numbers as it is, whatever stands where there is none."""
    buffer = values.buffers()[1]
    kind = np.dtype(str(values.type))
    if buffer is None:
        return np.zeros(len(values), kind)
    found: Array = np.frombuffer(buffer, kind, len(values), values.offset * kind.itemsize)
    return found


def _valid(values: Any) -> Array:
    """Where a column has a value."""
    bits = np.frombuffer(values.buffers()[0], np.uint8)
    every = np.unpackbits(bits, count=values.offset + len(values), bitorder="little")
    found: Array = every[values.offset :].astype(bool)
    return found


def _position(rows: Rows) -> Array:
    return rows.get("pos", rows["seq"])


def _inside(rows: Rows, task: Range) -> Rows:
    """What belongs to the range."""
    position = _position(rows)
    if not len(position) or (position.min() >= task.lo and position.max() < task.hi):
        return rows
    inside = (position >= task.lo) & (position < task.hi)
    return {name: values[inside] for name, values in rows.items()}


def _joined(chunks: list[Rows], without: tuple[str, ...] = ()) -> Rows:
    if any("offset" in chunk for chunk in chunks):
        for chunk in chunks:
            chunk.setdefault("offset", np.zeros(len(chunk["fp"]), np.int64))
            if "seq" in chunk:
                chunk.setdefault("pos", chunk["seq"])
    names = [name for name in chunks[0] if name not in without]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in names}


# -- judging -----------------------------------------------------------------------------------


class Sides:
    """The deliveries of all sites, laid against those of one of them, chunk by chunk.

    Where sites have files of their own, that of the first is read before the others, and their
    chunks are compared as they come; otherwise they wait until the first site's are complete.
    """

    def __init__(self, run: Run, control: Control, named: bool) -> None:
        self.run, self.control = run, control
        self.named = named
        """Whether it matters who delivered a position first."""
        self.chunks: list[Rows] = []  # of the first site
        self.waiting: list[tuple[int, Rows]] = []
        self.first = -1
        self.canon: Rows = {}
        """What stands at each position; `time`: when it was first delivered."""
        self.who = self.moment = np.zeros(0, np.int64)
        self.stretches: dict[int, Stretch] = {}
        self.one_by_one = run.apart and all(part.low == part.high for part in run.parts)

    def take(self, site: int, rows: Rows) -> None:
        """Compare some deliveries of a site."""
        if not self.chunks:
            self.first = site
        if site == self.first:
            if self.canon:
                raise Strange
            self._follow(site, rows)
            self.chunks.append(rows)
        elif self.one_by_one:
            if not self.canon:
                self._complete()
            self._compare(site, rows)
        else:
            self.waiting.append((site, rows))

    def finish(self, result: RangeResult) -> None:
        """All is there: every site must have every position."""
        if not self.canon:
            self._complete()
        for site, rows in self.waiting:
            self._compare(site, rows)
        begin, end = (int(_position(self.canon)[i]) for i in (0, -1))
        if set(self.stretches) != set(self.run.users):
            raise Strange
        for site in self.run.users:
            stretch = self.stretches[site]
            if (stretch.first[0], stretch.last[0]) != (begin, end):
                raise Strange
            at = 2 if self.run.apart else 1
            moments = np.array([stretch.first[at], stretch.last[at]])
            first, last = self.control.life(site, moments)
            if first != last:
                raise Strange
            stretch.life = int(first)
            result.stretches.append(stretch)
            result.deliveries += stretch.count
        result.positions = end + 1 - begin

    def _complete(self) -> None:
        """The first site is through."""
        apart = self.run.apart
        self.canon = _joined(self.chunks, ("place",) if apart else ())
        self.moment = self.canon["time" if apart else "place"]
        if self.named:
            self.who = np.full(len(self.moment), self.first)

    def _follow(self, site: int, rows: Rows) -> None:
        """I1, I4: a site goes on where it was, in order."""
        position, place, time = _position(rows), rows["place"], rows["time"]
        if (position[1:] - position[:-1] != 1).any() or (time[1:] < time[:-1]).any():
            raise Strange
        first, last = ((int(position[i]), int(place[i]), int(time[i])) for i in (0, -1))
        known = self.stretches.setdefault(site, Stretch(site, 0, first, first, 0))
        if known.count and (
            first[0] != known.last[0] + 1 or first[1] < known.last[1] or first[2] < known.last[2]
        ):
            raise Strange
        known.last = last
        known.count += len(position)

    def _compare(self, site: int, rows: Rows) -> None:
        """I1: what stands at a position is the same everywhere."""
        self._follow(site, rows)
        canon = self.canon
        start = int(_position(rows)[0]) - int(_position(canon)[0])
        here = slice(start, start + len(rows["fp"]))
        if start < 0:
            raise Strange
        for name in ("fp", "source", "number", "seq"):
            if not np.array_equal(rows[name], canon[name][here]):
                raise Strange
        when, moment = canon["time"][here], self.moment[here]
        if self.run.apart and not self.named:
            np.minimum(when, rows["time"], out=when)
            return
        mine = rows["time" if self.run.apart else "place"]
        sooner = mine < moment
        if self.named:
            who = self.who[here]
            sooner |= (mine == moment) & (site < who)
            who[sooner] = site
        moment[sooner] = mine[sooner]
        when[sooner] = rows["time"][sooner]


def _judge_commits(run: Run, control: Control, result: RangeResult, sides: Sides) -> None:
    """I3: whoever is first to commit behind the start of a list has that list in force."""
    starts, ranks = control.required()
    position, when = _position(sides.canon), sides.canon["time"]
    if not len(starts):
        return
    if not sides.named:
        now = int(np.searchsorted(starts, position[0], "right")) - 1
        if now < 0 or _in_force(control, run.users, int(when.min()), int(ranks[now])):
            return
        raise Strange
    judge_commits(control, result, sides.who, when, position)
    if result.counts:
        raise Strange


def _in_force(control: Control, sites: tuple[int, ...], since: int, least: int) -> bool:
    """Whether all sites have that list, or a newer one, all the time from `since` on."""
    for site in sites:
        when, newest = control.in_force(site)
        step = int(np.searchsorted(when, since, "right")) - 1
        if step < 0 or (newest[step:] < least).any():
            return False
    return True


def _judge_sources(
    run: Run,
    control: Control,
    result: RangeResult,
    task: Range,
    readers: dict[int, Reader],
    told: Told,
    canon: Rows,
) -> None:
    """I1, I4: what comes of a source is what it submitted, in that order, and not before."""
    position, back = _position(canon), list(task.back)
    for source in present(canon["source"]):
        rows = np.flatnonzero(canon["source"] == source)
        start = _find(run, task, readers, told, back, source, canon["fp"][rows])
        mine = slice(start, start + len(rows))
        sent = _submits(told, source)
        times = sent["time"][mine]
        if (times > canon["time"][rows]).any():
            raise Strange
        place = sent["place"][mine][[0, -1]]
        first, last = control.own_life(source, times[[0, -1]] if run.apart else place)
        if first != last:
            raise Strange
        keys = place << OFFSET_BITS
        if "offset" in sent:
            keys |= sent["offset"][mine][[0, -1]]
        low, high = (
            (int(key), int(position[row]), int(canon["fp"][row]))
            for key, row in zip(keys, rows[[0, -1]], strict=True)
        )
        result.lines.append(Line(source, int(first), low, high))
        _judge_numbers(result, source, rows, canon)
        if control.settled and source in control.up and first == control.last_own_life(source):
            result.own[source] = len(rows)


def _find(
    run: Run,
    task: Range,
    readers: dict[int, Reader],
    told: Told,
    back: list[tuple[int, int]],
    source: int,
    wanted: Array,
) -> int:
    """Where the source has submitted just these, one after the other.

    Row groups before the range are read as long as needed; `back` says which are left.
    """
    looked = 0
    while True:
        sent = _submits(told, source)
        found = np.flatnonzero(sent["fp"] == wanted[0]) if sent else np.zeros(0, np.int64)
        if len(found) > 1:
            raise Strange  # messages that are alike
        if len(found) and len(sent["fp"]) - found[0] >= len(wanted):
            break
        near = next((one for one in back if run.parts[one[0]].may_have(source)), None)
        if near is None or looked > BACK_MESSAGES:
            raise Strange
        back.remove(near)
        for reader, group in read(readers, run.parts, [near]):
            _take(told, run, reader, group, task, submits_only=True)
            looked += reader.part.rows[group]
    start = int(found[0])
    if not np.array_equal(sent["fp"][start : start + len(wanted)], wanted):
        raise Strange
    return start


def _submits(told: Told, source: int) -> Rows:
    """What a source submitted, as far as it was read, in its order."""
    chunks = told.submits.get(source, [])
    if len(chunks) > 1:
        chunks.sort(key=lambda chunk: int(chunk["place"][0]))
        told.submits[source] = chunks = [_joined(chunks)]
    return chunks[0] if chunks else {}


def _judge_numbers(result: RangeResult, source: int, rows: Array, canon: Rows) -> None:
    """I4: the numbers of a source rise from bundle to bundle."""
    number, seq = canon["number"][rows], canon["seq"][rows]
    if not (number[1:] > number[:-1]).all():
        same = (number[1:] == number[:-1]) & (seq[1:] != seq[:-1])
        if ((number[1:] >= 0) & ((number[1:] < number[:-1]) | same)).any():
            raise Strange
    ends = [(int(number[i]), int(seq[i]), int(canon["time"][rows[i]])) for i in (0, -1)]
    result.numbers.append(Numbers(source, ends[0], ends[1]))
