"""Bars on stderr for Spark's own progress, and an end to its jobs on Ctrl-C.

Classic sessions are asked twice a second for their active stages; Spark Connect reports by itself.
Nothing is drawn when stderr is no terminal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PERIOD_S: Final = 0.5


@contextmanager
def watching(spark: SparkSession, what: str) -> Iterator[None]:
    """Show how far the jobs inside are; cancel them when the block is left by Ctrl-C."""
    console = Console(stderr=True)
    try:
        if not console.is_terminal:
            yield
            return
        counts = (MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn())
        what_and_bar = (TextColumn("{task.description}"), BarColumn())
        bar = Progress(*what_and_bar, *counts, console=console, transient=True)
        with bar, (_remote if _is_remote(spark) else _classic)(spark, bar, what):
            yield
    except KeyboardInterrupt:
        with suppress(Exception):
            if _is_remote(spark):
                spark.interruptAll()
            else:
                spark.sparkContext.setLogLevel("OFF")  # every cancelled task would complain
                spark.sparkContext.cancelAllJobs()
        raise


def _is_remote(spark: SparkSession) -> bool:
    return not hasattr(spark, "_jsparkSession")


@contextmanager
def _classic(spark: SparkSession, bar: Progress, what: str) -> Iterator[None]:
    done = threading.Event()
    task = bar.add_task(what, total=None)
    tracker = spark.sparkContext.statusTracker()

    def look() -> None:
        tasks: dict[int, int] = {}  # of each stage so far
        while not done.wait(PERIOD_S):
            with suppress(Exception):  # the session may be stopping
                infos = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
                active = [info for info in infos if info is not None]
                tasks |= {info.stageId: info.numTasks for info in active}
                # A stage that is no longer active has done all it had to do.
                left = sum(info.numTasks - info.numCompletedTasks for info in active)
                total = sum(tasks.values())
                bar.update(task, completed=total - left, total=total or None)

    thread = threading.Thread(target=look, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def _remote(spark: SparkSession, bar: Progress, what: str) -> Iterator[None]:
    task = bar.add_task(what, total=None)

    def tell(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        finished = sum(stage.num_completed_tasks for stage in stages or ())
        total = sum(stage.num_tasks for stage in stages or ())
        bar.update(task, completed=finished, total=total or None)

    spark.registerProgressHandler(tell)  # type: ignore[arg-type]
    try:
        yield
    finally:
        spark.removeProgressHandler(tell)  # type: ignore[arg-type]
