"""`roundelay verify`: were the promises of a group kept, according to the traces of all its sites?

A run is first *proved* clean, if it is: by comparisons of arrays (`verify.total_order`,
`verify.per_source`), or by Spark SQL (`verify.sql`), which shares nothing with the former but the
survey of the row groups.  A run that is not proved is shown to the checkers, row by row
(`verify.diagnosis`): they say what is wrong, or that everything has its excuse.

docs/verify.md says what each invariant means.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundelay.core.errors import ConfigError, UsageError
from roundelay.pipeline.spark.failures import JobFailed, spark_errors
from roundelay.pipeline.spark.progress import watching
from roundelay.pipeline.verify.frames import Frames
from roundelay.pipeline.verify.holders import judge_holders
from roundelay.pipeline.verify.judging import conclude, prove
from roundelay.pipeline.verify.ranges import RANGE_MESSAGES
from roundelay.pipeline.verify.runs import TracedRun, find_runs
from roundelay.pipeline.verify.sql import prove_by_sql
from roundelay.pipeline.verify.survey import survey
from roundelay.pipeline.verify.tasks import on
from roundelay.pipeline.verify.verdict import NO_SENDS, RunJudgement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    if strategy not in STRATEGIES:
        raise ConfigError("strategy", strategy, " or ".join(STRATEGIES))
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
    mapper = on(spark)
    surveyed = survey(run, mapper)
    if strategy == SQL:
        proof = prove_by_sql(Frames(spark, run), surveyed.control)
    else:
        proof = prove(run, surveyed, mapper, range_messages)
    judgement = conclude(run, surveyed, mapper, proof, strategy)
    if surveyed.sends:
        judge_holders(Frames(spark, run), judgement)
    else:
        judgement.note(NO_SENDS, "holders")
    return judgement
