"""`roundelay verify`: were the promises of a group kept, according to the traces of all its sites?

Groups of total order are judged by ranges of positions (`verify.fast`), all others and whatever
that way cannot decide by Spark SQL (`verify.sql`), which can also be asked to judge everything:
the two share nothing but the table of special rows.  docs/verify.md says what each invariant
means.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundelay.core.errors import ConfigError, UsageError
from roundelay.pipeline.spark.failures import JobFailed, spark_errors
from roundelay.pipeline.spark.progress import watching
from roundelay.pipeline.verify import fast, sql
from roundelay.pipeline.verify.fast import RANGE_MESSAGES, Undecided
from roundelay.pipeline.verify.frames import Frames
from roundelay.pipeline.verify.holders import judge_holders
from roundelay.pipeline.verify.runs import TracedRun, find_runs
from roundelay.pipeline.verify.sql_sources import judge_own
from roundelay.pipeline.verify.tasks import on
from roundelay.pipeline.verify.verdict import NO_SENDS, RunJudgement
from roundelay.trace.checkers.checkers import TOTAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST: Final = "fast"
SQL: Final = "sql"
STRATEGIES: Final = (FAST, SQL)


def verify(
    spark: SparkSession,
    paths: Sequence[Path],
    scratch: Path,
    *,
    strategy: str = FAST,
    range_messages: int = RANGE_MESSAGES,
) -> list[RunJudgement]:
    """The verdict on every run behind `paths`.  Live traces are put together in `scratch`."""
    if strategy not in STRATEGIES:
        raise ConfigError("strategy", strategy, " or ".join(STRATEGIES))
    runs = find_runs(paths, scratch)
    return judge_all(spark, runs, strategy=strategy, range_messages=range_messages)


def judge_all(
    spark: SparkSession,
    runs: Sequence[TracedRun],
    *,
    strategy: str = FAST,
    range_messages: int = RANGE_MESSAGES,
) -> list[RunJudgement]:
    """The verdict on every run."""
    judgements = []
    for number, run in enumerate(runs, 1):
        what = "checking order" if len(runs) == 1 else f"checking run {number} of {len(runs)}"
        try:
            with watching(spark, what), spark_errors():
                judgements.append(
                    judge(spark, run, strategy=strategy, range_messages=range_messages)
                )
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
    if strategy == FAST:
        try:
            return _fast(spark, run, range_messages)
        except Undecided:
            pass
    return sql.judge(spark, run)


def _fast(spark: SparkSession, run: TracedRun, range_messages: int) -> RunJudgement:
    way = fast.judge if run.order == TOTAL else fast.prove
    judgement, surveyed = way(run, on(spark), range_messages=range_messages)
    if judgement.invariants["I5"].note == fast.OPEN:
        judge_own(Frames(spark, run, surveyed.control), judgement)
    if surveyed.sends:
        judge_holders(Frames(spark, run, surveyed.control), judgement)
    else:
        judgement.note(NO_SENDS, "holders")
    return judgement
