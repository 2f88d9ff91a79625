"""Running the checkers over a trace file."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from roundelay.core.errors import UsageError
from roundelay.core.events import END, HEAL
from roundelay.trace.checkers.checkers import TOTAL, Checker
from roundelay.trace.checkers.per_source import Destinations
from roundelay.trace.checkers.promises import Delivered, Submission
from roundelay.trace.checkers.total_order import HORIZON
from roundelay.trace.reader import TraceFile
from roundelay.trace.schema import TraceRow, notice_of

JUDGED: Final = ("SUBMIT", "DELIVER", "NOTICE", "CRASH", "RESTART", "PAUSE", "RESUME", "MARK")
"""Events a checker hears of.  Transmissions, the bulk of a trace, are none of its business."""


def check_trace(
    path: Path,
    *,
    order: str | None = None,
    liveness_ns: int | None = None,
    destinations: Destinations | None = None,
    horizon: int = HORIZON,
) -> Checker:
    """A checker that has seen the whole trace `path`.

    What is not given is taken from the file: `sites` (how many, or which), `order` and
    `liveness_ns` from its parameters, destinations from its SUBMIT rows.  I6 is not judged, since a
    trace has no samples of buffers; and unless the trace has an END mark, neither is what only has
    to be true in the end.
    """
    trace = TraceFile(path)
    params = trace.params
    if params.get("judged") == "live":
        raise UsageError(
            f"trace {path}: its users want different messages, which a trace does not say; "
            "run the seed again to judge it"
        )
    every = _sites(trace)
    # Where only some sites have applications, the others have nothing to be judged by.
    users = params.get("users") or every
    order = order or params.get("order", TOTAL)
    stated = SaidDestinations(tuple(users))
    if destinations is None and order != TOTAL and _some_are_addressed(trace):
        destinations = stated
    checker = Checker(
        users,
        order=order,
        liveness_ns=params.get("liveness_ns") if liveness_ns is None else liveness_ns,
        destinations=destinations,
        horizon=horizon,
    )
    up = set(checker.sites)
    known = frozenset((*every, -1))
    silent = known - {*checker.sites, -1}
    settled = False
    for row in trace.rows(events=JUDGED):
        if row.site not in known:
            raise UsageError(f"trace {path}: there is no site {row.site} in this group")
        if row.site in silent:
            continue
        if row.event == "MARK" and row.kind == END:
            settled = True
        else:
            if row.event == "SUBMIT":
                stated.row = row
            tell(checker, row, up)
    checker.finished(trace.last_ns, up, settled)
    return checker


class SaidDestinations:
    """Whom the messages of `row` are for, as that row says; everyone if it does not."""

    def __init__(self, everyone: tuple[int, ...]) -> None:
        self.everyone = everyone
        self.row: TraceRow | None = None

    def __call__(self, submission: Submission) -> Collection[int]:
        if self.row is None or not self.row.info:
            return self.everyone
        return destinations_of(self.row.info)


def destinations_of(info: str) -> tuple[int, ...]:
    """The destinations that the `info` of a SUBMIT names.

    >>> destinations_of("[2,3]")
    (2, 3)
    """
    try:
        return msgspec.json.decode(info, type=tuple[int, ...])
    except msgspec.MsgspecError:
        raise UsageError(f"a SUBMIT has damaged destinations: {info!r}") from None


def _some_are_addressed(trace: TraceFile) -> bool:
    compute = import_module("pyarrow.compute")
    for batch in trace.batches(columns=("time", "event", "info")):
        info = batch.filter(compute.equal(batch.column("event"), "SUBMIT")).column("info")
        if info.null_count < len(info):
            return True
    return False


def _sites(trace: TraceFile) -> tuple[int, ...]:
    sites = trace.params.get("sites")
    if isinstance(sites, int):
        return tuple(range(sites))
    if isinstance(sites, list) and all(isinstance(site, int) for site in sites):
        return tuple(sites)
    raise UsageError(f"trace {trace.path} does not say which sites its group has")


def tell(checker: Checker, row: TraceRow, up: set[int]) -> None:
    """Let the checker see one row, and keep track of who is up."""
    time, site, event = row.time, row.site, row.event
    if event == "SUBMIT":
        checker.submitted_as(time, site, row.ref, row.messages)
    elif event == "DELIVER":
        bundle = Delivered(time, site, row.seq, row.source, row.number, row.messages)
        checker.delivered_as(bundle, row.kind)
    elif event == "NOTICE" and row.messages:
        checker.given_back(site, row.messages)
    elif event == "NOTICE":
        checker.noticed(time, site, notice_of(row))
    elif event == "CRASH":
        checker.crashed(time, site, row.kind)
        up.discard(site)
    elif event == "RESTART":
        checker.restarted(time, site, row.kind)
        up.add(site)
    elif event == "PAUSE":
        up.discard(site)
    elif event == "RESUME":
        up.add(site)
    elif row.kind == HEAL:
        checker.healed(time)
