"""Advise: which protocol, L and T would carry a recorded workload best.

The recorded messages are sent once more (`runs.replay`), on Spark, under every candidate, several
times with other losses.  The recommendation follows one criterion, which the answer states:

    of the candidates that give the order and survive the failures asked for, that deliver
    everything, and deliver 99 % of it within the time allowed, and so on average: the one with
    the fewest PDUs per broadcast; among those within 1 % of it the quickest.

If none is quick enough, the quickest of the others is named, and so is what it misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from roundelay.core.errors import ConfigError
from roundelay.core.families import FAMILIES, PO, POSITIVE_ACK, TO, TOKEN, Family
from roundelay.core.limits import one_of
from roundelay.pipeline.research.grid import seed_of
from roundelay.pipeline.research.summary import mean_and_ci95
from roundelay.pipeline.research.workload import Workload
from roundelay.pipeline.spark.executors import answers
from roundelay.pipeline.spark.failures import spark_errors
from roundelay.pipeline.spark.progress import watching
from roundelay.runs.measured import FAST, PAPER, PROFILES
from roundelay.runs.replay import replay
from roundelay.runs.simulate import HOLD_MS_DEFAULT, SimulateParams
from roundelay.sim.families.registry import PROTOCOLS
from roundelay.trace.checkers.checkers import FIFO, NONE, TOTAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS: Final = (NONE, FIFO, TOTAL)
"""From the weakest to the strongest."""

CHOICE: Final = (TOKEN, TO, PO, POSITIVE_ACK)
"""Candidates, unless others are named."""

HOLDS_MS: Final = (10.0, 20.0, 50.0, 100.0, 200.0)
TRANSITS_PER_HOLD: Final = 110
"""T is at least so many transit times: requests are repeated every T/50, and have to be answered
by then."""

TRANSIT_MS: Final = 0.1
DELAY_MS: Final = 200.0
LEVELS_MAX: Final = 5
CLOSE: Final = 1.01
"""Counts this near to each other are as good as equal."""

MEANS: Final = ("pdus_per_message", "control_per_message", "delay_ms_mean", "delay_ms_p99")
"""Measures of a trial of which the mean is told."""
OUTCOMES: Final = ("storage_max", "delivered_everywhere", "violations")


def _failures(count: int) -> str:
    """How many, in words.

    >>> _failures(0), _failures(1), _failures(2)
    ('no failure', '1 failure', '2 failures')
    """
    return f"{count or 'no'} failure{'s' if count > 1 else ''}"


class Requirements(Struct, frozen=True, kw_only=True):
    """What is asked for."""

    order: str = TOTAL
    resilience: int = 1
    delay_ms: float = DELAY_MS
    """99 % of the deliveries within this time."""

    def text(self) -> str:
        ordered = {TOTAL: "one order for all", FIFO: "each sender's order", NONE: "any order"}
        return (
            f"the fewest PDUs per broadcast, with {ordered[self.order]}, "
            f"{_failures(self.resilience)} survived, everything delivered and 99 % of it within "
            f"{self.delay_ms:g} ms, and so on average; among those within 1 % of it the quickest"
        )


class GroupCandidate(Struct, frozen=True):
    """A group as it could be."""

    protocol: str
    profile: str
    resilience: int
    hold_ms: float | None
    """T; None where nothing waits for it."""

    @property
    def family(self) -> Family:
        return FAMILIES[self.protocol]

    @property
    def name(self) -> str:
        words = [self.protocol]
        if self.family.resilient:
            words.append(f"L = {self.resilience}")
        if self.hold_ms is not None:
            words.append(f"T = {self.hold_ms:g} ms")
        if self.profile == FAST:
            words.append("fast")
        return ", ".join(words)

    def params(self, sites: int, loss: float, seed: int) -> SimulateParams:
        return SimulateParams(
            protocol=self.protocol,
            profile=self.profile,
            sites=sites,
            loss=loss,
            seed=seed,
            resilience=self.resilience if self.family.resilient else None,
            hold_ms=self.hold_ms or HOLD_MS_DEFAULT,
        )


class TrialResult(Struct, frozen=True, kw_only=True):
    """A candidate, and what it did with the workload.  Means over the repetitions."""

    candidate: GroupCandidate
    runs: int
    pdus_per_message: float
    pdus_ci95: float | None
    control_per_message: float
    delay_ms_mean: float
    delay_ms_p99: float
    storage_max: int
    delivered: bool
    violations: int

    def misses(self, required: Requirements) -> list[str]:
        """What it lacks of what is asked for."""
        order, level = self.candidate.family.order, self.candidate.resilience
        missed = []
        if ORDERS.index(order) < ORDERS.index(required.order):
            missed.append({FIFO: "no common order", NONE: "no order"}[order])
        if level < required.resilience:
            missed.append(f"survives {_failures(level)}")
        if self.violations:
            missed.append("broke a promise")
        elif not self.delivered:
            missed.append("did not deliver everything")
        if self.delay_ms_p99 > required.delay_ms:
            missed.append(f"99 % within {self.delay_ms_p99:.0f} ms only")
        elif self.delay_ms_mean > required.delay_ms:
            # One in a hundred that waits for the next message, in a group that is hardly used.
            missed.append(f"after {self.delay_ms_mean:.0f} ms on average")
        return missed


# -- candidates --------------------------------------------------------------------------------


def candidates(
    sites: int,
    transit_ms: float,
    *,
    protocols: Sequence[str] = CHOICE,
    profiles: Sequence[str] = PROFILES,
    holds_ms: Sequence[float] = (),
) -> list[GroupCandidate]:
    """All that is tried; what is not given is chosen."""
    for protocol in protocols:
        one_of("protocol", protocol, PROTOCOLS)
    least_ms = TRANSITS_PER_HOLD * transit_ms
    for hold in holds_ms:
        if hold < least_ms:
            least = f"at least {TRANSITS_PER_HOLD} transit times of {transit_ms:g} ms"
            raise ConfigError("hold_ms", hold, least)
    chosen = list(holds_ms) or [hold for hold in HOLDS_MS if hold >= least_ms]
    chosen = chosen or [least_ms, 2 * least_ms, 5 * least_ms]
    levels = range(min((sites + 1) // 2, LEVELS_MAX))
    tried: list[GroupCandidate] = []
    for protocol in protocols:
        family = FAMILIES[protocol]
        if family.is_cluster:  # nothing in them waits for T
            tried.append(GroupCandidate(protocol, FAST if FAST in profiles else PAPER, 0, None))
            continue
        for profile in profiles:
            holds = chosen if profile == PAPER else (None,)
            usable = levels if family.resilient else (0,)
            tried += [GroupCandidate(protocol, profile, *pair) for pair in product(usable, holds)]
    return list(dict.fromkeys(tried))


def present(workload: Workload) -> GroupCandidate | None:
    """The group as it was recorded, if the record says so."""
    params = workload.params
    protocol, profile = params.get("protocol"), params.get("profile", FAST)
    if protocol not in PROTOCOLS or profile not in PROFILES:
        return None
    family = FAMILIES[protocol]
    timed = not family.is_cluster and profile == PAPER
    level = params.get("resilience")
    level = level if family.resilient and isinstance(level, int) else 0
    hold_ms = float(params.get("hold_ms") or HOLD_MS_DEFAULT) if timed else None
    return GroupCandidate(protocol, profile, level, hold_ms)


# -- on Spark ----------------------------------------------------------------------------------


def trials(
    spark: SparkSession,
    workload: Workload,
    tried: Sequence[GroupCandidate],
    loss: float,
    transit_ms: float,
    seeds: int,
) -> list[TrialResult]:
    """What came of each candidate; of all repetitions the longest begin first, each is a task."""
    arrivals, transit_ns = workload.arrivals, max(1, int(transit_ms * 1e6))
    work: list[tuple[GroupCandidate, SimulateParams]] = []
    for candidate, repetition in product(tried, range(seeds)):
        seed = seed_of("advise", candidate.name, repetition)
        work.append((candidate, candidate.params(workload.sites, loss, seed)))
    # Clusters are stretched, and poll: those of many sites take longest.
    work.sort(key=lambda trial: -trial[1].sites * (12 if trial[0].family.is_cluster else 1))

    def outcome(params: SimulateParams) -> dict[str, Any]:
        results = replay(params, arrivals, transit_ns)
        return {name: results[name] for name in (*MEANS, *OUTCOMES)}

    outcomes = answers(spark, [[params] for _, params in work], outcome, dict[str, Any])
    by_candidate: dict[GroupCandidate, list[dict[str, Any]]] = {one: [] for one in tried}
    for (candidate, _), measured in zip(work, outcomes, strict=True):
        by_candidate[candidate].append(measured)
    return [_gathered(candidate, measured) for candidate, measured in by_candidate.items()]


def _gathered(candidate: GroupCandidate, outcomes: Sequence[dict[str, Any]]) -> TrialResult:
    means = {name: mean_and_ci95([outcome[name] for outcome in outcomes]) for name in MEANS}
    return TrialResult(
        candidate=candidate,
        runs=len(outcomes),
        pdus_ci95=means["pdus_per_message"][1],
        storage_max=max(outcome["storage_max"] for outcome in outcomes),
        delivered=all(outcome["delivered_everywhere"] for outcome in outcomes),
        violations=sum(len(outcome["violations"]) for outcome in outcomes),
        **{name: mean for name, (mean, _) in means.items()},
    )


# -- the answer --------------------------------------------------------------------------------


def best(tried: Sequence[TrialResult], required: Requirements) -> TrialResult | None:
    """The one to recommend, by the criterion at the top; None if none keeps its promises."""
    sound = [trial for trial in tried if not trial.violations and trial.delivered]
    patient = structs.replace(required, delay_ms=float("inf"))
    good = [trial for trial in sound if not trial.misses(required)]
    if good:
        fewest = min(trial.pdus_per_message for trial in good)
        close = [trial for trial in good if trial.pdus_per_message <= CLOSE * fewest]
        return min(close, key=lambda trial: (trial.delay_ms_p99, trial.storage_max))
    slow = [trial for trial in sound if not trial.misses(patient)]
    return min(slow, key=lambda trial: max(trial.delay_ms_p99, trial.delay_ms_mean), default=None)


def words(
    chosen: TrialResult | None,
    now: TrialResult | None,
    tried: Sequence[TrialResult],
    required: Requirements,
) -> list[str]:
    """The recommendation in sentences, with the figures behind it."""
    if chosen is None:
        return [
            f"None of {len(tried)} candidates gives what is asked for: {required.order} order, "
            f"{_failures(required.resilience)} survived, everything delivered."
        ]
    candidate = chosen.candidate
    sentences = [
        f"Use {candidate.name}: {chosen.pdus_per_message:.2f} PDUs per broadcast"
        + (f" (±{chosen.pdus_ci95:.2f})" if chosen.pdus_ci95 is not None else "")
        + f", delivered everywhere after {chosen.delay_ms_mean:.1f} ms on average and 99 % within "
        f"{chosen.delay_ms_p99:.1f} ms; a site keeps at most {chosen.storage_max} messages."
    ]
    missed = chosen.misses(required)
    if missed:
        sentences.append(f"It is the quickest, but not quick enough: {', '.join(missed)}.")
    if now is not None and now.candidate == candidate:
        sentences.append("That is what was recorded: leave it as it is.")
    elif now is not None:
        less = 1 - chosen.pdus_per_message / now.pdus_per_message
        than = f"{abs(less):.0%} {'fewer' if less > 0 else 'more'} PDUs than now"
        reason = now.misses(required)
        sentences.append(
            f"That is {than} ({now.candidate.name}: {now.pdus_per_message:.2f}, 99 % within "
            f"{now.delay_ms_p99:.1f} ms" + (f"; {', '.join(reason)}" if reason else "") + ")."
        )
    cheaper = [
        t for t in tried if t.pdus_per_message < chosen.pdus_per_message and t.misses(required)
    ]
    if cheaper:
        other = min(cheaper, key=lambda t: t.pdus_per_message)
        sentences.append(
            f"Cheaper, but not what is asked for: {other.candidate.name} with "
            f"{other.pdus_per_message:.2f} ({', '.join(other.misses(required))})."
        )
    call = f'roundelay.join(GROUP, service="{candidate.family.service}"'
    call += f", resilience={candidate.resilience})" if candidate.family.resilient else ")"
    if candidate.profile == FAST:
        sentences.append(f"Live: {call}.")
    elif candidate.family.resilient:
        sentences.append(
            f"T is a parameter of the simulator's paper profile; live groups pass the token at "
            f"once ({call}), which --profile {FAST} compares."
        )
    return sentences


def advise(
    spark: SparkSession,
    workload: Workload,
    required: Requirements,
    tried: Sequence[GroupCandidate],
    *,
    loss: float,
    transit_ms: float,
    seeds: int,
) -> dict[str, Any]:
    """Try all candidates and recommend one."""
    now = present(workload)
    everyone = list(tried)
    if now is not None and now not in everyone and now.resilience <= (workload.sites - 1) // 2:
        everyone.append(now)
    with watching(spark, "advise"), spark_errors():
        results = trials(spark, workload, everyone, loss, transit_ms, seeds)
    allowed = [t for t in results if t.candidate in tried]
    chosen = best(allowed, required)
    recorded = next((t for t in results if t.candidate == now), None)
    ranked = sorted(results, key=lambda t: (bool(t.misses(required)), t.pdus_per_message))
    return {
        "workload": workload.described() | {"loss": loss, "transit_ms": transit_ms},
        "criterion": required.text(),
        "recommendation": None if chosen is None else _shown(chosen, required),
        "recorded_as": None if recorded is None else _shown(recorded, required),
        "words": words(chosen, recorded, allowed, required),
        "candidates": [_shown(t, required) for t in ranked],
    }


def _shown(trial: TrialResult, required: Requirements) -> dict[str, Any]:
    fields = structs.asdict(trial)
    candidate = fields.pop("candidate")
    return {
        "name": candidate.name,
        **structs.asdict(candidate),
        "order": candidate.family.order,
        **fields,
        "misses": trial.misses(required),
    }
