"""Workloads: what a group was asked to carry, taken from its journal or its trace.

    a trace file, the folder of a run, the folder of live nodes' traces, the folder of a journal

A trace says when messages were submitted, by whom and how large they were, how many copies were
lost, how long a PDU is under way and what the group was.  A journal says when messages were
recorded, from whom, and how large; nothing of losses.  The last `messages` are taken, so memory is
bounded whatever the record's length.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from roundelay.core.engine import EVERYONE
from roundelay.core.errors import ConfigError
from roundelay.core.selection import Selection
from roundelay.journal.files import META
from roundelay.journal.format import GAP
from roundelay.journal.reader import Reader
from roundelay.runs.folder import TRACE
from roundelay.runs.replay import Arrival
from roundelay.trace.live import live_files
from roundelay.trace.merge import merge
from roundelay.trace.reader import TraceFile

MESSAGES_LEAST: Final = 2
TRANSITS: Final = 4096
"""Transmissions that are timed."""

COLUMNS: Final = ("time", "site", "event", "ref", "peer", "kind", "count", "size")
NOT_THE_NETWORK: Final = ("down", "stale")
"""Copies that did arrive, and found nobody who wanted them."""

LOSS_MOST: Final = 0.9


class Workload(Struct, frozen=True, kw_only=True):
    """What was recorded."""

    source: str
    group: str
    sites: int
    arrivals: tuple[Arrival, ...]
    recorded: int
    """Messages in the whole record."""
    loss: float | None = None
    """Share of copies that did not arrive, if the record tells."""
    transit_ns: int | None = None
    """How long a PDU is under way, if the record tells."""
    params: dict[str, Any] = {}
    """What the record says of the group itself."""

    def described(self) -> dict[str, Any]:
        """Arrivals and sizes in numbers."""
        times = [time for time, _, _ in self.arrivals]
        sizes = sorted(size for _, _, size in self.arrivals)
        gaps = [after - before for before, after in pairwise(times)]
        mean = fmean(gaps)
        span_s = (times[-1] - times[0]) / 1e9
        shares = Counter(source for _, source, _ in self.arrivals)
        return {
            "source": self.source,
            "group": self.group,
            "sites": self.sites,
            "recorded": self.recorded,
            "messages": len(times),
            "seconds": span_s,
            "rate": (len(times) - 1) / span_s if span_s else None,
            "burstiness": pstdev(gaps) / mean if mean else None,
            "senders": len(shares),
            "busiest_sender": max(shares.values()) / len(times),
            "size_mean": fmean(sizes),
            "size_median": median(sizes),
            "size_p99": sizes[min(len(sizes) - 1, int(0.99 * len(sizes)))],
            "size_max": sizes[-1],
            "loss": self.loss,
            "transit_ms": None if self.transit_ns is None else self.transit_ns / 1e6,
        }


def read_workload(path: Path, messages: int, group: str | None = None) -> Workload:
    """The last `messages` of whatever is at `path`."""
    groups = sorted({file.header.group for file in live_files(path)} if path.is_dir() else ())
    trace = path / TRACE if path.is_dir() else path
    if (path / META).exists():
        if group is not None:
            raise ConfigError("group", group, "only with a folder of traces of live nodes")
        workload = _of_journal(path, messages)
    elif group is None and len(groups) > 1:
        raise ConfigError("group", group, "one of " + ", ".join(groups))
    elif groups:
        with TemporaryDirectory(prefix="roundelay-advise-") as scratch:
            merged = merge(path, Path(scratch) / TRACE, group=group or groups[0])
            workload = _of_trace(merged.path, messages, path)
    elif trace.exists():
        workload = _of_trace(trace, messages, path)
    else:
        raise ConfigError("path", path, "a trace file, or a folder with a journal or traces")
    count = len(workload.arrivals)
    if count < MESSAGES_LEAST:
        raise ConfigError("path", workload.source, f"a record of some messages (it has {count})")
    return workload


# -- journals ----------------------------------------------------------------------------------


def _of_journal(folder: Path, messages: int) -> Workload:
    reader = Reader(folder)
    heard: dict[str, int] = {}
    arrivals: deque[Arrival] = deque(maxlen=messages)
    last = 0
    for run in reader.read(Selection(since=max(reader.begin, reader.end - messages))):
        if run.flags & GAP:
            continue
        source = heard.setdefault(run.sender, len(heard))
        last = max(last, run.time)  # clocks of recorders may go back, arrivals may not
        arrivals.extend((last, source, size) for size in run.bundle.sizes)
    return Workload(
        source=str(folder),
        group=reader.meta.group,
        sites=max(3, len(heard)),
        arrivals=tuple(arrivals),
        recorded=reader.end - reader.begin,
    )


# -- traces ------------------------------------------------------------------------------------


def _of_trace(path: Path, messages: int, shown: Path) -> Workload:
    file = TraceFile(path)
    scan = _Scan(messages)
    for batch in file.batches(columns=COLUMNS):
        scan.add(batch)
    params = file.params
    known = params.get("sites")
    sites = known if isinstance(known, int) else len(known or scan.sources)
    numbers = {site: k for k, site in enumerate(sorted(scan.sources))}
    if max(numbers, default=0) < sites:
        numbers = {site: site for site in numbers}
    return Workload(
        source=str(shown),
        group=str(params.get("group", "")),
        sites=max(2, sites),
        arrivals=tuple((time, numbers[site], size) for time, site, size in scan.arrivals),
        recorded=scan.recorded,
        loss=scan.loss(sites),
        transit_ns=scan.transit_ns(),
        params=params,
    )


class _Scan:
    """One pass over a trace, a batch of rows at a time."""

    def __init__(self, messages: int) -> None:
        self.arrivals: deque[Arrival] = deque(maxlen=messages)
        self.recorded = 0
        self.sources: set[int] = set()
        self.received = self.lost = self.unicasts = self.multicasts = 0
        self.sent: dict[int, int] = {}  # id of a transmission → when
        self.transits: list[int] = []

    def add(self, batch: Any) -> None:
        event = batch.column("event")

        def of(name: str) -> Any:
            return batch.filter(pc.equal(event, name))

        self.received += pc.sum(pc.equal(event, "RECEIVE")).as_py() or 0
        sends = of("SEND")
        multicasts = pc.sum(pc.equal(sends.column("peer"), EVERYONE)).as_py() or 0
        self.multicasts += multicasts
        self.unicasts += len(sends) - multicasts
        ends = pc.is_in(of("LOSE").column("kind"), pa.array(NOT_THE_NETWORK))
        self.lost += pc.sum(pc.invert(ends)).as_py() or 0
        if len(self.transits) < TRANSITS:
            self._time(sends, of("RECEIVE"))
        submits = of("SUBMIT")
        names = ("time", "site", "count", "size")
        for time, site, count, size in zip(
            *(submits.column(name).to_pylist() for name in names), strict=True
        ):
            self.sources.add(site)
            self.recorded += count
            self.arrivals.extend((time, site, length) for length in _sizes(count, size))

    def _time(self, sends: Any, receives: Any) -> None:
        """How long PDUs are under way; the first few thousand tell."""
        sent = zip(sends.column("ref").to_pylist(), sends.column("time").to_pylist(), strict=True)
        self.sent = dict(sent)
        for ref, time in zip(
            receives.column("ref").to_pylist(), receives.column("time").to_pylist(), strict=True
        ):
            if ref in self.sent:
                self.transits.append(time - self.sent[ref])

    def loss(self, sites: int) -> float | None:
        """By the copies that were lost, or by those that should have come."""
        if self.lost:
            return self.lost / (self.lost + self.received)
        expected = self.unicasts + self.multicasts * (sites - 1)
        if not expected:
            return None
        return min(LOSS_MOST, max(0.0, 1 - self.received / expected))

    def transit_ns(self) -> int | None:
        return max(1, int(median(self.transits))) if self.transits else None


def _sizes(count: int, size: int) -> Iterator[int]:
    """A trace knows the size of a bundle, not of each message in it."""
    each, more = divmod(size, count) if count else (0, 0)
    for k in range(count):
        yield each + (k < more)
