"""The swarm: many random runs under faults, each decided by its seed, each checked.

A seed is a plan (`sim.swarm.plan`), run by the driver, watched by the checkers.  Whatever goes
wrong in it is a finding of that seed and never the end of the swarm: a broken promise, an engine
that raises, a codec that takes damaged bytes for good ones, a run that does not end.

Seeds are spread over processes; what is reported does not depend on how.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from roundelay.core.autorm.config import GROUP
from roundelay.core.errors import ConfigError, InvariantBroken
from roundelay.core.events import RowSink
from roundelay.core.families import AUTORM, GRSB, TOKEN, WIDE
from roundelay.runs.folder import as_row
from roundelay.sim.families.registry import SIMULATED_FAMILIES
from roundelay.sim.mutants.registry import mutant_named
from roundelay.sim.swarm.fault_kinds import FAULT_KINDS
from roundelay.sim.swarm.fault_runner import Breach, Outcome, RunSetting, run_plan
from roundelay.sim.swarm.plan import ANY, Plan, rerun
from roundelay.trace.checkers.autorm import AutoRmChecker
from roundelay.trace.checkers.checkers import Checker
from roundelay.trace.checkers.journal import JournalChecker
from roundelay.trace.checkers.verdict import Judge
from roundelay.trace.recorder import Recorder
from roundelay.wire.beamon import BeamonCodec
from roundelay.wire.codec import GroupCodec

SEED_SECONDS_MAX: Final = 300
"""Real time after which a seed counts as hanging; the slowest takes a few seconds."""

SEEDS_MAX: Final = 10_000_000
AHEAD: Final = 8
"""Seeds handed out per process before the first of them has come back."""

HOUR_NS: Final = 3600 * 10**9
SUMMED: Final = ("committed", "submitted", "virtual_ns", "events")
"""What a seed has of its outcome, besides the faults."""


class SeedResult(Struct, frozen=True):
    """What came of one seed."""

    seed: int
    outcome: Outcome | None
    """None: it did not come to its end."""
    findings: tuple[Breach, ...]
    """What no run may do, the first of each kind: besides promises and rules there are
    `InvariantBroken` and other names of exceptions, `codec`, and `hang`."""


class SwarmParams(Struct, frozen=True, kw_only=True):
    """Which seeds, of what."""

    first: int
    beyond: int
    """One more than the last seed."""
    protocol: str = TOKEN
    mutant: str | None = None
    jobs: int = 0
    """Processes; 0: as many as there are processors."""
    stop_at_first: bool = False
    wire: bool = False
    """Every PDU goes through bytes, not only in the plans that say so."""
    profile: str = ANY
    """`any` configuration, or what live groups use: `fast`."""

    def settled(self) -> SwarmParams:
        """Checked; raises ConfigError."""
        Plan.from_seed(self.first, self.protocol, self.profile)  # knows which go together
        if self.mutant is not None:
            mutant_named(self.mutant, self.protocol)
        return self

    def rerun(self, seed: int) -> str:
        """The line that runs one seed again."""
        mutant = f" --mutant {self.mutant}" if self.mutant else ""
        wire = " --wire" if self.wire else ""
        return f"{rerun(seed, self.protocol, self.profile)}{mutant}{wire}"


def parse_seeds(text: str) -> tuple[int, int]:
    """A:B, from A up to but not including B; a single number is that seed alone.

    >>> parse_seeds("0:2000"), parse_seeds("17")
    ((0, 2000), (17, 18))
    """
    low, colon, high = text.partition(":")
    try:
        first = int(low)
        beyond = int(high) if colon else first + 1
    except ValueError:
        first = beyond = -1
    if not 0 <= first < beyond or beyond - first > SEEDS_MAX:
        allowed = f"A:B with 0 ≤ A < B, at most {SEEDS_MAX} seeds; B itself is not run"
        raise ConfigError("seeds", text, allowed)
    return first, beyond


# -- one seed ----------------------------------------------------------------------------------


def run_seed(
    seed: int, params: SwarmParams, *, trace: Path | None = None, plan: Plan | None = None
) -> SeedResult:
    """Run one seed; with `trace`, write its trace there."""
    plan = plan or Plan.from_seed(seed, params.protocol, params.profile)
    if params.wire:
        plan = structs.replace(plan, wire=True)
    checkers = Checkers(plan)
    recorder = None
    if trace is not None:
        recorder = Recorder(trace, params=trace_params(plan))
    outcome: Outcome | None = None
    findings: list[Breach] = []
    try:
        with _alarm(SEED_SECONDS_MAX):
            outcome = _run(plan, params.mutant, checkers, recorder)
    except _Hang:
        findings.append(Breach("hang", -1, -1, f"not done after {SEED_SECONDS_MAX} s"))
    except Exception as error:
        findings.append(Breach(type(error).__name__, -1, -1, _where(error)))
    finally:
        if recorder is not None:
            recorder.close()
    findings += checkers.findings()
    if outcome is not None:
        if outcome.undetected:
            missed = f"{outcome.undetected} damaged PDUs were not noticed"
            findings.append(Breach("codec", -1, -1, missed))
        findings += outcome.breaches
    return SeedResult(seed, outcome, tuple(findings))


# -- who judges ----------------------------------------------------------------------------------


def _of_nodes(plan: Plan) -> Judge:
    per_group = plan.config.get("serial_scope") == GROUP
    return AutoRmChecker(per_group=per_group, failover=bool(plan.config.get("someone_failover")))


JUDGES: Final[dict[str, Callable[[Plan], Judge]]] = {
    AUTORM: _of_nodes,
    GRSB: lambda plan: JournalChecker(),
    WIDE: lambda plan: JournalChecker(wide=True, excused=plan.settings().excused(plan.sites)),
}
"""By protocol; the others promise an order of their members' messages (`Checker`)."""


def judge_of(plan: Plan, members: tuple[int, ...] | None = None) -> Judge:
    """Return the checker of a run of `plan`, or of the `members` that a cluster goes on with."""
    if plan.protocol in JUDGES:
        return JUDGES[plan.protocol](plan)
    members = tuple(range(plan.sites)) if members is None else members
    to = plan.destinations(members)
    return Checker(
        members,
        order=plan.order,
        liveness_ns=plan.liveness_ns,
        destinations=None if to is None else to.of,
    )


class Checkers:
    """The checker of a seed, and that of each group that takes the place of the first."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.judges: list[Judge] = []
        self.first = self.make(tuple(range(plan.sites)))

    def make(self, members: tuple[int, ...]) -> Judge:
        judge = judge_of(self.plan, members)
        self.judges.append(judge)
        return judge

    def findings(self) -> list[Breach]:
        """The first violation of each invariant, and how many more there are."""
        findings: list[Breach] = []
        for checker in self.judges:
            first = {violation.invariant: violation for violation in reversed(checker.violations)}
            for invariant, violation in sorted(first.items()):
                more = checker.counts[invariant] - 1
                detail = violation.detail + (f" (and {more} more)" if more else "")
                findings.append(Breach(invariant, violation.site, violation.time, detail))
        return findings


def _run(plan: Plan, mutant: str | None, checkers: Checkers, recorder: RowSink | None) -> Outcome:
    broken = None if mutant is None else mutant_named(mutant, plan.protocol)
    setting = RunSetting(
        observers=(checkers.first,),
        recorder=recorder,
        trace_receives=True,
        codec=BeamonCodec() if plan.family.core.own_packets else GroupCodec("swarm"),
        successors=lambda members: [checkers.make(members)],
    )
    with nullcontext() if broken is None else broken.break_rule():
        return run_plan(plan, setting)


def trace_params(plan: Plan) -> dict[str, Any]:
    """What the trace file of a seed says about its run."""
    judged = {"judged": "live"} if plan.family.judged_live else {}
    return judged | {
        "command": "swarm",
        "protocol": plan.protocol,
        "sites": plan.sites,
        "resilience": plan.resilience,
        "seed": plan.seed,
        "order": plan.order,
        "liveness_ns": plan.liveness_ns,
    }


def _where(error: Exception) -> str:
    """An exception in one line: what, and the place in our code that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error} ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"


class _Hang(BaseException):
    """The alarm of a seed; not an Exception, so that nothing on the way takes it for its own."""


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """Interrupt a seed that does not end, where the platform can."""
    usable = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    if not usable:
        yield
        return

    def ring(_signal: int, _frame: object) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- many seeds --------------------------------------------------------------------------------


class Swarm:
    """Adds up the results of seeds."""

    def __init__(self, params: SwarmParams) -> None:
        self.params = params
        self.sums: Counter[str] = Counter()
        self.seeds = 0
        kinds = SIMULATED_FAMILIES[params.protocol].fault_kinds
        self.faults = Counter(dict.fromkeys(kinds, 0))
        self.violations: list[dict[str, Any]] = []

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        seed, outcome = result.seed, result.outcome
        if outcome is not None:
            self.sums.update({name: getattr(outcome, name) for name in SUMMED})
            self.faults.update(outcome.faults)
        again = self.params.rerun(seed)
        self.violations += [
            {"seed": seed, **as_row(finding), "rerun": again} for finding in result.findings
        ]

    def results(self) -> dict[str, Any]:
        params = self.params
        return {
            "seeds": self.seeds,
            "range": f"{params.first}:{params.beyond}",
            "protocol": params.protocol,
            "mutant": params.mutant,
            "profile": params.profile,
            "committed": self.sums["committed"],
            "submitted": self.sums["submitted"],
            "virtual_hours": self.sums["virtual_ns"] / HOUR_NS,
            "events": self.sums["events"],
            "faults": dict(sorted(self.faults.items(), key=_as_listed)),
            "violations": self.violations,
        }


def _as_listed(fault: tuple[str, int]) -> int:
    """Kinds are reported in the order of their list, new ones last."""
    kinds = tuple(FAULT_KINDS)
    return kinds.index(fault[0]) if fault[0] in FAULT_KINDS else len(kinds)


Watch = Callable[[int, int, int], None]
"""Called after each seed with (seeds done, seeds in all, findings so far)."""


def swarm(params: SwarmParams, watch: Watch | None = None) -> dict[str, Any]:
    """Run all seeds and add them up."""
    params = params.settled()
    total = params.beyond - params.first
    added = Swarm(params)
    seeds = range(params.first, params.beyond)
    for result in in_processes(partial(run_seed, params=params), seeds, params.jobs, "seed"):
        added.add(result)
        if watch is not None:
            watch(added.seeds, total, len(added.violations))
        if params.stop_at_first and added.violations:
            break
    return added.results()


T = TypeVar("T")
K = TypeVar("K")


def in_processes(
    function: Callable[[K], T], keys: Sequence[K], jobs: int, what: str
) -> Iterator[T]:
    """What `function` returns for each key, in their order; with 0 `jobs` on all processors."""
    jobs = min(jobs or processors(), len(keys))
    if jobs <= 1:
        yield from map(function, keys)
        return
    # Not forked: a child is the same whatever its parent was doing.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    pending: deque[tuple[K, Future[T]]] = deque()

    def oldest() -> T:
        key, future = pending.popleft()
        try:
            return future.result()
        except BrokenProcessPool:
            raise InvariantBroken(f"a process of the swarm died around {what} {key}") from None

    try:
        for key in keys:
            with _deaf_to_ctrl_c():  # a process is started when all others are busy
                pending.append((key, pool.submit(function, key)))
            if len(pending) >= AHEAD * jobs:
                yield oldest()
        while pending:
            yield oldest()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Ctrl-C is the parent's affair: processes started in here never hear of it.

    They inherit what is blocked.  The parent itself hears it a moment later.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
