"""Running the checkers over a trace file."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.engine import STAMPED
from roundelay.core.errors import UsageError
from roundelay.core.events import END, HEAL, NOBODY
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
    group = TracedGroup.of(trace)
    order = order or group.order
    addressed = destinations is None and order != TOTAL and _some_are_addressed(trace)
    checker = RowChecker(
        group.users,
        order=order,
        addressed=addressed,
        liveness_ns=params.get("liveness_ns") if liveness_ns is None else liveness_ns,
        destinations=destinations,
        horizon=horizon,
    )
    known = frozenset((*group.sites, NOBODY))
    for row in trace.rows(events=JUDGED):
        if row.site not in known:
            raise UsageError(f"trace {path}: there is no site {row.site} in this group")
        checker.take(row)
    checker.finish(trace.last_ns)
    return checker


class TracedGroup(Struct, frozen=True):
    """What the parameters of a trace say about its group."""

    sites: tuple[int, ...]
    users: tuple[int, ...]
    """Sites with applications: the others have nothing to be judged by."""
    order: str

    @classmethod
    def of(cls, trace: TraceFile) -> TracedGroup:
        """UsageError if the trace cannot be judged."""
        params = trace.params
        if params.get("judged") == "live":
            raise UsageError(
                f"trace {trace.path}: its users want different messages, which a trace does not "
                "say; run the seed again to judge it"
            )
        sites = params.get("sites")
        if isinstance(sites, int):
            sites = list(range(sites))
        if not isinstance(sites, list) or not all(isinstance(site, int) for site in sites):
            raise UsageError(f"trace {trace.path} does not say which sites its group has")
        sites = tuple(sorted(sites))
        return cls(sites, tuple(params.get("users") or sites), params.get("order", TOTAL))


class RowChecker(Checker):
    """A checker of `users` that is shown the rows of a trace, and keeps track of who is up.

    `addressed`: SUBMIT rows say whom their messages are for.  Other arguments: see `Checker`.
    """

    def __init__(
        self,
        users: Collection[int],
        *,
        addressed: bool = False,
        destinations: Destinations | None = None,
        **options: Any,
    ) -> None:
        stated = self._stated if addressed else destinations
        super().__init__(users, destinations=stated, **options)
        self._users = frozenset((*users, NOBODY))
        self.up = set(users)
        self.settled = False
        """Whether there was an END mark."""
        self._addressees = ""
        """What the present SUBMIT says of them."""

    def _stated(self, submission: Submission) -> Collection[int]:
        """Whom the messages of the present SUBMIT are for; everyone if it does not say."""
        return destinations_of(self._addressees) if self._addressees else self.sites

    def take(self, row: TraceRow) -> None:
        """Judge one row, if it is one of a user or of nobody in particular."""
        time, site, event = row.time, row.site, row.event
        if site not in self._users:
            return
        if event == "SUBMIT":
            self._addressees = row.info
            self._log.submitted(time, site, row.ref, row.messages)
        elif event == "DELIVER" and row.kind != STAMPED:
            bundle = Delivered(time, site, row.seq, row.source, row.number, row.messages)
            self._log.delivered(bundle)
        elif event == "NOTICE" and row.messages:
            self._promises.give_back(site, row.messages)
        elif event == "NOTICE":
            self.noticed(time, site, notice_of(row))
        elif event == "CRASH":
            self.crashed(time, site, row.kind)
            self.up.discard(site)
        elif event == "RESTART":
            self.restarted(time, site, row.kind)
            self.up.add(site)
        elif event == "PAUSE":
            self.up.discard(site)
        elif event == "RESUME":
            self.up.add(site)
        elif event == "MARK" and row.kind == HEAL:
            self.healed(time)
        elif event == "MARK" and row.kind == END:
            self.settled = True

    def finish(self, last_ns: int) -> None:
        """There are no more rows."""
        self.finished(last_ns, self.up, self.settled)


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
