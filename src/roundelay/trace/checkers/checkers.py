"""Checkers: the promises I1–I8 of a group, judged by what an application can see.

`Checker` is an observer (`roundelay.core.events.Observer`): a driver tells it of submissions,
deliveries, notices, crashes and restarts as they happen, and it says what was violated.  It never
looks into an engine.  `check_trace` runs the same checker over a trace file.

=====  =============================================================================  ===========
I1     every position holds one message, whoever delivers it; no site leaves one out  total_order,
       unannounced; each source's messages keep their order (`fifo`: this alone)      per_source
I2     what anybody delivered, everybody up has delivered in the end                  both
I3     lists: versions rise, members agree and are a majority, no commit behind the   views
       back of a newer list
I4     at most once, only what was submitted, as it was submitted, by whom            both
I5     own messages of a site that stays up are delivered or declared indeterminate   promises
I6     samples of buffers are within their caps                                       verdict
I7     after healing, own messages of sites that stay up are delivered in time        promises
I8     all and only what is destined to a site (given destination sets)               per_source
=====  =============================================================================  ===========

Groups with recorders and AutoRM promise something else: `journal.py`, `autorm.py`.

Memory does not grow with the run: positions are kept up to a horizon, messages until they have
their position.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import STAMPED, Delivery, Notice
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.events import DISK, END, HEAL, MEMORY, NOBODY
from roundelay.core.limits import whole
from roundelay.trace.checkers.per_source import Destinations, PerSource
from roundelay.trace.checkers.promises import Delivered, Promises, Submission
from roundelay.trace.checkers.total_order import HORIZON, TotalOrder
from roundelay.trace.checkers.verdict import LIMIT, Judge, Violation
from roundelay.trace.checkers.views import Version, ViewChecker
from roundelay.trace.fingerprint import Fingerprints
from roundelay.trace.reader import TraceFile
from roundelay.trace.schema import TraceRow, bundles_in, notice_of

TOTAL: Final = "total"
FIFO: Final = "fifo"
NONE: Final = "none"

JUDGED: Final = ("SUBMIT", "DELIVER", "NOTICE", "CRASH", "RESTART", "PAUSE", "RESUME", "MARK")
"""Events a checker hears of.  Transmissions, the bulk of a trace, are none of its business."""


class Checker(Judge):
    """Looks on at one group and collects violations.

    `sites` are all sites of the group, up or not.  `order` is what the service promises: "total",
    "fifo" or "none".  `liveness_ns` bounds I7 (None: I7 is not judged).  `destinations` says for
    each submission which sites it is meant for (orders "fifo" and "none" only; default:
    everyone).  `durable`: a site that restarts with its disk knows what it has delivered (default:
    in total order, where positions are kept; not otherwise).  `horizon` is the number of positions,
    or of settled messages, that are kept for comparison.  Deliveries that are only stamped promise
    nothing yet.
    """

    def __init__(
        self,
        sites: Collection[int],
        *,
        order: str = TOTAL,
        liveness_ns: int | None = None,
        destinations: Destinations | None = None,
        durable: bool | None = None,
        horizon: int = HORIZON,
        limit: int = LIMIT,
    ) -> None:
        if order not in (TOTAL, FIFO, NONE):
            raise ConfigError("order", order, f"{TOTAL}, {FIFO} or {NONE}")
        if destinations is not None and order == TOTAL:
            raise ConfigError("destinations", "given", f"only with order {FIFO} or {NONE}")
        whole("horizon", horizon, 1)
        super().__init__(limit)
        self.sites = tuple(sorted(sites))
        self.order = order
        self.durable = order == TOTAL if durable is None else durable
        self.everywhere = 0  # messages delivered at all sites that were up in the end
        self._promises = Promises(self.sites, self.report, liveness_ns)
        self._views = ViewChecker(self.sites, self.report)
        self._log: TotalOrder | PerSource
        if order == TOTAL:
            self._log = TotalOrder(self.sites, self, self._promises, self._views, horizon)
        else:
            fifo = order == FIFO
            self._log = PerSource(
                self.sites, self.report, self._promises, fifo, destinations, horizon
            )
        self._fingerprints = Fingerprints()

    def twin_delivered(self, delivery: Delivery) -> None:
        """A life of a site that was replaced has delivered this: whoever does so now repeats it."""
        end = delivery.seq + len(delivery.bundle)
        self._views.elsewhere = max(self._views.elsewhere, end)

    # -- the verdict -----------------------------------------------------------------------

    @property
    def committed(self) -> int:
        """Messages delivered by at least one site (in total order: positions given)."""
        return self._log.top

    # -- what happens ----------------------------------------------------------------------

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        self._log.submitted(time, site, index, self._fingerprints(bundle))

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if delivery.stage != STAMPED:
            seq, source, number = delivery.seq, delivery.source, delivery.number
            fingerprints = self._fingerprints(delivery.bundle)
            self._log.delivered(Delivered(time, site, seq, source, number, fingerprints))

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        kind = notice.kind
        info: tuple[Any, ...] = notice.info
        if kind == "view" and self.order == TOTAL:
            version: Version = tuple(info[0])
            # A list whose start is not told cannot be outrun.
            start = info[3] if len(info) > 3 else 1 << 62
            self._views.viewed(time, site, version, tuple(info[1]), start)
        elif kind == "gap_unavailable" and isinstance(self._log, TotalOrder):
            self._log.gap(time, site, info[0], info[1])
        elif kind == "indeterminate":
            self._promises.indeterminate(site, info[1])
        elif kind == "undelivered":
            for bundle in bundles_in(info):
                self._promises.give_back(site, self._fingerprints(bundle))
        elif kind == "suspect" and isinstance(self._log, PerSource):
            self._log.suspected(site, info[0])

    def crashed(self, time: int, site: int, keeps: str) -> None:
        self._log.crashed(time, site, keeps == MEMORY)
        if keeps != MEMORY:
            self._promises.own[site].end_life()

    def restarted(self, time: int, site: int, keeps: str) -> None:
        remembers = keeps == MEMORY or (keeps == DISK and self.durable)
        self._log.restarted(time, site, not remembers)

    def healed(self, time: int) -> None:
        self._promises.healed_at = time
        if isinstance(self._log, PerSource):  # total order is promised through faults
            self._log.healed()

    def finished(self, time: int, up: Collection[int], settled: bool = True) -> list[Violation]:
        """Judge what should have happened by now, unless the run was cut short (not settled)."""
        self._log.finished(time, up, settled)
        self.everywhere = self._log.everywhere(up)
        return self.violations


# -- over a trace file ----------------------------------------------------------------------------


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
