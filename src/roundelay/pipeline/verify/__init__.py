"""`roundelay verify`: were the promises of a group kept, according to the traces of all its sites?

A run is first *proved* clean, if it is: by comparisons of arrays (`verify.total_order`,
`verify.per_source`), or by Spark SQL (`verify.sql`), which shares nothing with the former but the
survey of the row groups.  A run that is not proved is shown to the checkers, row by row
(`verify.diagnosis`): they say what is wrong, or that everything has its excuse.

docs/verify.md says what each invariant means.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from roundelay.core.errors import UsageError
from roundelay.core.limits import one_of
from roundelay.pipeline.spark.executors import Mapper, answers
from roundelay.pipeline.spark.failures import JobFailed, spark_errors
from roundelay.pipeline.spark.progress import watching
from roundelay.pipeline.verify.diagnosis import diagnose
from roundelay.pipeline.verify.frames import Frames
from roundelay.pipeline.verify.holders import judge_holders
from roundelay.pipeline.verify.per_source import prove_per_source
from roundelay.pipeline.verify.runs import TracedRun, find_runs
from roundelay.pipeline.verify.sql import prove_by_sql
from roundelay.pipeline.verify.survey import RANGE_MESSAGES, Survey, survey
from roundelay.pipeline.verify.total_order import prove_total
from roundelay.pipeline.verify.verdict import NO_END, NO_ORDER, NO_SENDS, Figures, RunJudgement
from roundelay.trace.checkers.checkers import NONE, TOTAL

FAST: Final = "fast"
SQL: Final = "sql"
STRATEGIES: Final = (FAST, SQL)


def verify(
    spark: SparkSession, paths: Sequence[Path], scratch: Path, *, strategy: str = FAST
) -> list[RunJudgement]:
    """The verdict on every run behind `paths`.  Live traces are put together in `scratch`."""
    return judge_all(spark, find_runs(paths, scratch), strategy=strategy)


def judge_all(
    spark: SparkSession, runs: Sequence[TracedRun], *, strategy: str = FAST
) -> list[RunJudgement]:
    """The verdict on every run."""
    one_of("strategy", strategy, STRATEGIES)
    judgements = []
    for number, run in enumerate(runs, 1):
        what = "checking order" if len(runs) == 1 else f"checking run {number} of {len(runs)}"
        try:
            with watching(spark, what), spark_errors():
                judgements.append(judge(spark, run, strategy=strategy))
        except JobFailed as error:
            raise UsageError(f"{run.name} cannot be verified: {error}") from error
    return judgements


def judge(
    spark: SparkSession,
    run: TracedRun,
    *,
    strategy: str = FAST,
    range_messages: int = RANGE_MESSAGES,
) -> RunJudgement:
    """The verdict on one run."""
    mapper = partial(answers, spark)
    surveyed = survey(run, mapper)
    if strategy == SQL:
        proof = prove_by_sql(Frames(spark, run), surveyed.control)
    else:
        proof = prove(surveyed, mapper, range_messages)
    judgement = conclude(surveyed, mapper, proof, strategy)
    if surveyed.sends:
        judge_holders(Frames(spark, run), judgement)
    else:
        judgement.note(NO_SENDS, "holders")
    return judgement


def prove(surveyed: Survey, mapper: Mapper, range_messages: int = RANGE_MESSAGES) -> Figures | None:
    """How much there is in a run, if numpy proves all of it clean."""
    way = prove_total if surveyed.run.order == TOTAL else prove_per_source
    return way(surveyed, mapper, range_messages)


def conclude(
    surveyed: Survey, mapper: Mapper, proof: Figures | None, strategy: str
) -> RunJudgement:
    """The verdict, with a proof or without."""
    run, control = surveyed.run, surveyed.control
    known = (run.name, run.parts, run.order, len(run.users), run.rows)
    judgement = RunJudgement(*known, strategy, control.settled)
    if proof is not None:
        _count(judgement, surveyed, proof)
        return judgement
    diagnosis = diagnose(surveyed, mapper)
    _count(judgement, surveyed, diagnosis.figures)
    for name, verdict in judgement.invariants.items():
        kept = [finding for finding in diagnosis.findings if finding.invariant == name]
        verdict.add(kept, diagnosis.counts.get(name, 0))
    judgement.invariants["lists"].add(control.contradictions())
    return judgement


def _count(judgement: RunJudgement, surveyed: Survey, figures: Figures) -> None:
    """How much was looked at for each invariant, but for `holders`."""
    control, deliveries, positions = surveyed.control, figures.deliveries, figures.positions
    in_the_end, due = "I2", deliveries
    judgement.checked(deliveries, "I1", "I4")
    if judgement.order == TOTAL:
        views = len(control.views)
        judgement.checked(len(control.versions()), "lists")
        judgement.checked(views + positions if views else 0, "I3")
        due = positions * len(control.up)
    elif surveyed.addressed:
        in_the_end = "I8"
        judgement.checked(deliveries, "I8")
    if judgement.order == NONE:
        judgement.checked(0, "I1")
        judgement.note(NO_ORDER, "I1")
    if control.settled:
        judgement.checked(due, in_the_end)
        judgement.checked(figures.own, "I5")
    else:
        judgement.note(NO_END, "I2", "I5")
