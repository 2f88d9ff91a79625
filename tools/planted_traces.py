"""Traces made to order: clean ones of any length, and one with a known fault in it.

A checker that has never found anything proves little.  `clean` makes the trace of a group in which
everything went well, as large as is wanted, in a few seconds; each of `FAULTS` breaks one promise
in it, at a place of its own choosing, and says which invariants have to complain.  Nothing here
looks like the checkers inside: a fault is done to the rows, as a bug or a bad disk would do it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from roundelay.core import events as ev
from roundelay.core.engine import ACKNOWLEDGED, COMMITTED, MS
from roundelay.trace.recorder import GROUP_ROWS
from roundelay.trace.schema import (
    RUN_KEY,
    SPARSE,
    VERSION,
    VERSION_KEY,
    arrow,
    arrow_schema,
    parquet,
)

Array = np.ndarray[Any, Any]

NULL: Final = -(1 << 62)
SIZE: Final = 64
STEP_NS: Final = 20_000
"""Between two submissions."""
KINDS: Final = (COMMITTED, ACKNOWLEDGED, "view", "end", "B")
NUMBERS: Final = (
    "time", "site", "event", "ref", "peer", "kind", "seq", "source", "number", "tl_version",
    "tl_site", "next", "count", "size", "fp", "info",
)  # fmt: skip


class Story:
    """A trace as columns of numbers; `kind` and `info` are places in a list of words.

    Every bundle has one message, `fp` is its fingerprint.
    """

    def __init__(self, columns: dict[str, Array], words: list[str], params: dict[str, Any]) -> None:
        self.columns = columns
        self.words = words
        self.params = params

    def __len__(self) -> int:
        return len(self.columns["time"])

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def rows(self, **wanted: int) -> Array:
        """Where all these columns have these values."""
        mask = np.ones(len(self), bool)
        for name, value in wanted.items():
            mask &= self.columns[name] == value
        return np.flatnonzero(mask)

    def drop(self, rows: Array) -> None:
        keep = np.ones(len(self), bool)
        keep[rows] = False
        self.columns = {name: column[keep] for name, column in self.columns.items()}

    def insert(self, at: int, **values: int) -> None:
        """A row before row `at`, like that one but for these columns."""
        self.columns = {
            name: np.insert(column, at, values.get(name, column[at]))
            for name, column in self.columns.items()
        }

    def exchange(self, a: int, b: int, *names: str) -> None:
        for name in names:
            column = self.columns[name]
            column[[a, b]] = column[[b, a]]

    def word(self, text: str) -> int:
        if text not in self.words:
            self.words.append(text)
        return self.words.index(text)

    def write(self, path: Path, group_rows: int = GROUP_ROWS) -> None:
        """One trace file of all sites."""
        self._write(path, slice(None), group_rows)

    def write_apart(self, folder: Path, group_rows: int = GROUP_ROWS) -> None:
        """One trace file per site; what concerns all stands in the first one's."""
        site = np.maximum(self["site"], 0)
        for number in range(self.params["sites"]):
            name = f"site-{number}.parquet"
            self._write(folder / name, np.flatnonzero(site == number), group_rows)

    def _write(self, path: Path, chosen: Any, group_rows: int) -> None:
        pa, pq = arrow(), parquet()
        metadata = {
            VERSION_KEY: str(VERSION).encode(),
            RUN_KEY: msgspec.json.encode(self.params, order="deterministic"),
        }
        schema = arrow_schema(metadata)
        columns = {name: column[chosen] for name, column in self.columns.items()}
        words = pa.array(self.words, pa.string())
        made = []
        for field in schema:
            name = field.name
            if name == "event":
                made.append(pa.array(ev.EVENT_NAMES).take(pa.array(columns["event"], pa.int32())))
            elif name in ("kind", "info"):
                code = columns[name]
                made.append(words.take(pa.array(code, pa.int32(), mask=code < 0)))
            elif name in ("digest", "messages"):
                fp = columns["fp"]
                values = pa.array(fp, pa.int64(), mask=fp == NULL)
                if name == "messages":
                    offsets = np.concatenate([[0], np.cumsum(fp != NULL)])
                    nowhere = np.append(fp == NULL, False)
                    values = pa.ListArray.from_arrays(
                        pa.array(offsets, pa.int32(), mask=nowhere), pa.array(fp[fp != NULL])
                    )
                made.append(values)
            elif name in columns:
                value = columns[name]
                mask = value == NULL if name in SPARSE else None
                made.append(pa.array(np.where(value == NULL, 0, value), field.type, mask=mask))
            else:
                made.append(pa.nulls(len(columns["time"]), field.type))
        table = pa.Table.from_arrays(made, schema=schema)
        pq.write_table(
            table, path, row_group_size=group_rows, compression="zstd",
            use_dictionary=["event", "kind", "info", "site", "peer", "source", "by", "next"],
        )  # fmt: skip


def clean(
    rows: int,
    *,
    sites: int = 5,
    seed: int = 0,
    order: str = "total",
    destinations: int = 0,
    transmissions: bool = False,
) -> Story:
    """A trace of about so many rows in which every promise is kept.

    Order "total" is that of a token group with L = 1 that is reformed once; order "fifo" that of a
    cluster, with `destinations` of each message if that is not 0.  `transmissions`: with the PDUs
    that bring the messages (total order only).
    """
    rng = np.random.default_rng(seed)
    selective = order != "total" and 0 < destinations < sites
    each = 1 + (destinations if selective else sites) + (sites if transmissions else 0)
    count = max(16, (rows - 2 * sites - 1) // each)
    source = rng.integers(0, sites, count)
    number = np.zeros(count, np.int64)
    for site in range(sites):
        mine = source == site
        number[mine] = np.arange(mine.sum())
    fp = rng.integers(-(1 << 62) + 1, 1 << 62, count)
    submit = np.arange(1, count + 1, dtype=np.int64) * STEP_NS + rng.integers(0, STEP_NS, count)
    words = list(KINDS)
    info = np.full(count, -1)
    goes_to = np.ones((sites, count), bool)
    if selective:
        sets = list(combinations(range(sites), destinations))
        chosen = rng.integers(0, len(sets), count)
        info = len(words) + chosen
        words += [msgspec.json.encode(one).decode() for one in sets]
        member = np.array([[site in one for one in sets] for site in range(sites)])
        goes_to = member[:, chosen]
    total = order == "total"
    blocks = [
        _block(time=submit, site=source, event=ev.SUBMIT, ref=number, size=SIZE, count=1, fp=fp,
               info=info)
    ]  # fmt: skip
    ref = np.arange(count) + 1
    if transmissions:
        sent = submit + 1
        blocks.append(_block(time=sent, site=source, event=ev.SEND, ref=ref, kind=4,
                             source=source, number=number, count=1, size=SIZE))  # fmt: skip
    for site in range(sites):
        if transmissions:
            others = source != site
            blocks.append(_block(time=sent[others] + MS + site, site=site, event=ev.RECEIVE,
                                 ref=ref[others], peer=source[others]))  # fmt: skip
        # A delivery never overtakes the one before it at the same site.
        lag = rng.integers(2 * MS, 4 * MS) + rng.integers(0, MS, count)
        when = np.maximum.accumulate(submit + lag)
        here = goes_to[site]
        blocks.append(_block(
            time=when[here], site=site, event=ev.DELIVER, source=source[here],
            number=number[here], peer=source[here], fp=fp[here], size=SIZE, count=1,
            seq=np.arange(count)[here] if total else -1,
            ref=np.arange(count)[here] if total else -1, kind=0 if total else 1,
        ))  # fmt: skip
    end = int(submit[-1]) + 20 * MS
    if total:
        # The first list is in force from the start, the second from the middle on.
        middle = count // 2
        everyone = list(range(sites))
        for version, start, time in ((0, 0, 0), (1, middle, int(submit[middle]))):
            text = msgspec.json.encode([[version, 0], everyone, 0, start]).decode()
            words.append(text)
            blocks.append(_block(
                time=np.full(sites, time), site=np.arange(sites), event=ev.NOTICE, kind=2,
                seq=start, tl_version=version, tl_site=0, next=0, count=sites, info=len(words) - 1,
            ))  # fmt: skip
    blocks.append(_block(time=np.array([end]), site=-1, event=ev.MARK, kind=3))
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in NUMBERS}
    in_time = np.lexsort((columns["event"], columns["time"]))
    columns = {name: column[in_time] for name, column in columns.items()}
    params: dict[str, Any] = {"command": "planted", "order": order, "sites": sites, "seed": seed}
    params |= {"protocol": "token" if total else "spo" if selective else "po"}
    if total:
        params["resilience"] = 1
    return Story(columns, words, params)


def _block(*, time: Array, **given: Any) -> dict[str, Array]:
    """Rows of one kind; what is not given is null."""
    empty = {"ref": -1, "peer": -1, "kind": -1, "info": -1}
    block = {"time": time.astype(np.int64)}
    for name in NUMBERS[1:]:
        value = given.get(name, empty.get(name, NULL))
        block[name] = np.broadcast_to(np.asarray(value, np.int64), time.shape).copy()
    return block


# -- faults ------------------------------------------------------------------------------------


class Fault(Struct, frozen=True):
    """What is done to a story, and who must complain (others may, too)."""

    name: str
    about: str
    breaks: tuple[str, ...]
    plant: Callable[[Story, float], None]
    order: str = "total"
    destinations: int = 0
    transmissions: bool = False


def _delivery(story: Story, at: float, site: int = 2) -> int:
    """A delivery of `site`, so far into the trace."""
    found = story.rows(event=ev.DELIVER, site=site)
    return int(found[int(at * (len(found) - 2))])


def _next_delivery(story: Story, row: int) -> int:
    later = story.rows(event=ev.DELIVER, site=int(story["site"][row]))
    return int(later[np.searchsorted(later, row) + 1])


MESSAGE: Final = ("seq", "ref", "source", "peer", "number", "fp")
"""The columns that say which message is delivered, and where it stands."""


def swap(story: Story, at: float) -> None:
    row = _delivery(story, at)
    story.exchange(row, _next_delivery(story, row), *MESSAGE)


def exchanged(story: Story, at: float) -> None:
    row = _delivery(story, at)
    story.exchange(row, _next_delivery(story, row), "source", "peer", "number", "fp")


def gap(story: Story, at: float) -> None:
    story.drop(np.array([_delivery(story, at)]))


def duplicate(story: Story, at: float) -> None:
    story.insert(_delivery(story, at))


def altered(story: Story, at: float) -> None:
    story["fp"][_delivery(story, at)] ^= 0x5555


def foreign(story: Story, at: float) -> None:
    fp = story["fp"]
    was = fp[_delivery(story, at)]
    fp[(fp == was) & (story["event"] == ev.DELIVER)] ^= 0x5555


def replayed(story: Story, at: float) -> None:
    """What stands at a position is delivered once more, in place of a later message."""
    first = _delivery(story, at / 2)
    later = story.rows(event=ev.DELIVER, seq=int(story["seq"][_delivery(story, at / 2 + 0.5)]))
    for name in ("source", "peer", "number", "fp"):
        story[name][later] = story[name][first]


def misnamed(story: Story, at: float) -> None:
    rows = story.rows(event=ev.DELIVER, seq=int(story["seq"][_delivery(story, at)]))
    story["source"][rows] = (story["source"][rows] + 1) % story.params["sites"]


def lost(story: Story, at: float) -> None:
    """One site has delivered a last message; the others never will."""
    last = int(story["seq"][story.rows(event=ev.DELIVER)].max())
    rows = story.rows(event=ev.DELIVER, seq=last)
    story.drop(rows[story["site"][rows] != 2])


def unfair(story: Story, at: float) -> None:
    """At every site the same order, but two messages of one source the wrong way round."""
    row = _delivery(story, at)
    seq, source = int(story["seq"][row]), int(story["source"][row])
    later = story.rows(event=ev.DELIVER, site=2, source=source)
    other = int(story["seq"][later[np.searchsorted(later, row) + 1]])
    for site in range(story.params["sites"]):
        a, b = (story.rows(event=ev.DELIVER, site=site, seq=s)[0] for s in (seq, other))
        story.exchange(int(a), int(b), "fp")


def unanswered(story: Story, at: float) -> None:
    """A site submits a message that nobody hears of again."""
    row = int(story.rows(event=ev.SUBMIT)[int(at * (len(story.rows(event=ev.SUBMIT)) - 1))])
    story.insert(row, fp=int(story["fp"][row]) ^ 0x5555)


def two_lists(story: Story, at: float) -> None:
    """Two sites announce different lists under one version."""
    row = story.rows(event=ev.NOTICE, tl_version=1, site=3)[0]
    start = int(story["seq"][row])
    members = list(range(story.params["sites"] - 1))
    story["count"][row] = len(members)
    story["info"][row] = story.word(msgspec.json.encode([[1, 0], members, 0, start]).decode())


def old_list(story: Story, at: float) -> None:
    """A site goes on under the old list, and is the first to commit behind the new one's start."""
    story.drop(story.rows(event=ev.NOTICE, tl_version=1, site=3))
    middle = int(story["seq"][story.rows(event=ev.NOTICE, tl_version=1)[0]])
    rows = story.rows(event=ev.DELIVER, seq=middle + 5)
    late = int(rows[story["site"][rows] == 3][0])
    first = int(rows[0])
    if late != first:
        # Site 3 and the first one change places from here on, for good.
        everywhere = np.flatnonzero((story["event"] == ev.DELIVER) & (story["seq"] >= 0))
        site = story["site"]
        other = int(site[first])
        mine = everywhere[(site[everywhere] == 3)]
        theirs = everywhere[(site[everywhere] == other)]
        site[mine], site[theirs] = other, 3


def minority(story: Story, at: float) -> None:
    """A list of two of five comes into force."""
    row = story.rows(event=ev.NOTICE, tl_version=1, site=3)[0]
    start = int(story["seq"][row])
    story["tl_version"][row] = 2
    story["count"][row] = 2
    story["info"][row] = story.word(f"[[2,3],[3,4],3,{start + (1 << 40)}]")


def early(story: Story, at: float) -> None:
    """A site commits its own message before anybody else has it."""
    sites = story.params["sites"]
    delivered = story.rows(event=ev.DELIVER)
    _, firsts = np.unique(story["seq"][delivered], return_index=True)
    rows = delivered[firsts]
    mine = rows[story["site"][rows] == story["source"][rows]]
    first = int(mine[int(at * (len(mine) - 1))])
    source, number = int(story["source"][first]), int(story["number"][first])
    send = int(story.rows(event=ev.SEND, source=source, number=number)[0])
    arrivals = story.rows(event=ev.RECEIVE, ref=int(story["ref"][send]))
    late = int(story["time"][first]) + 1
    # Its copies come only after the first commit, everywhere.
    columns = {name: column[arrivals].copy() for name, column in story.columns.items()}
    columns["time"][:] = late
    story.drop(arrivals)
    at_row = int(np.searchsorted(story["time"], late))
    for i in range(sites - 1):
        story.insert(at_row, **{name: int(column[i]) for name, column in columns.items()})


def wrong_destination(story: Story, at: float) -> None:
    """A site gets what is not for it, in place of nothing: one delivery more."""
    row = _delivery(story, at)
    source, number = int(story["source"][row]), int(story["number"][row])
    there = story.rows(event=ev.DELIVER, source=source, number=number)
    stranger = next(s for s in range(story.params["sites"]) if s not in set(story["site"][there]))
    story.insert(int(there[-1]) + 1, **{
        name: int(column[there[-1]]) for name, column in story.columns.items()
    } | {"site": stranger})  # fmt: skip


def not_delivered(story: Story, at: float) -> None:
    """A site never gets what is for it."""
    story.drop(np.array([_delivery(story, at)]))


def out_of_turn(story: Story, at: float) -> None:
    """At one site two messages of one source come the wrong way round; there is no other order."""
    row = _delivery(story, at)
    later = story.rows(event=ev.DELIVER, site=2, source=int(story["source"][row]))
    other = int(later[np.searchsorted(later, row) + 1])
    story.exchange(row, other, "number", "fp")


FAULTS: Final = (
    Fault("swap", "a site delivers two positions the wrong way round", ("I1",), swap),
    Fault("exchanged", "two messages have changed places at one site", ("I1",), exchanged),
    Fault("gap", "a site leaves a position out, without a word", ("I1",), gap),
    Fault("duplicate", "a site delivers a position twice", ("I4",), duplicate),
    Fault("altered", "one site has another message at a position", ("I1", "I4"), altered),
    Fault("foreign", "all deliver what nobody has submitted", ("I4",), foreign),
    Fault("replayed", "all deliver a message a second time, elsewhere", ("I4",), replayed),
    Fault("misnamed", "a message comes under the name of another site", ("I4",), misnamed),
    Fault("lost", "what one has committed never reaches the others", ("I2",), lost),
    Fault("unfair", "one order, but not that of the source", ("I1",), unfair),
    Fault("unanswered", "an own message has no fate", ("I5",), unanswered),
    Fault("two lists", "one version, two lists", ("I3", "lists"), two_lists),
    Fault("old list", "a commit behind the back of the new list", ("I3",), old_list),
    Fault("minority", "a list without a majority", ("I3",), minority),
    Fault("early commit", "a commit with one holder", ("holders",), early, transmissions=True),
    Fault("wrong destination", "a site gets what is not for it", ("I8",), wrong_destination,
          order="fifo", destinations=3),
    Fault("not delivered", "a site never gets what is for it", ("I8",), not_delivered,
          order="fifo", destinations=3),
    Fault("out of turn", "a source's messages out of its order", ("I1",), out_of_turn,
          order="fifo"),
)  # fmt: skip
"""Every fault that `verify` has to find, wherever it stands in a trace."""


def planted(fault: Fault, rows: int, at: float = 0.5, seed: int = 0) -> Story:
    """A trace of about so many rows with that fault in it."""
    story = clean(
        rows, seed=seed, order=fault.order, destinations=fault.destinations,
        transmissions=fault.transmissions,
    )  # fmt: skip
    fault.plant(story, at)
    return story
