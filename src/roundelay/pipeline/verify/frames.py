"""The rows of a run as DataFrames of Spark: deliveries and submissions, one row per message.

What the oracle (`verify.sql`, `verify.sql_sources`, `verify.holders`) works with.  A row knows its
`place` in the trace, its `moment` (see `verify.control`) and the life of its site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pyspark.sql import functions as fn

from roundelay.core.errors import UsageError
from roundelay.core.events import NOBODY
from roundelay.pipeline.verify.columns import ANOTHER, OFFSET_BITS, PROVISIONAL
from roundelay.pipeline.verify.control import (
    ALWAYS,
    EVENTS,
    NOTICES,
    ROWS_MAX,
    Control,
    Special,
    control_of,
)
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.trace.reader import rows_of
from roundelay.trace.schema import TraceRow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession, WindowSpec

ROWS: Final = 10_000
"""Counterexamples of one kind that are fetched; `broken` counts no more than these."""

FILES_TOGETHER: Final = 32
"""Files of a run that are read in one scan, and told apart by their names."""

BLOCK: Final = 1 << 16
"""Positions, or rows, that one window looks at."""


class Frames:
    """What the oracle knows of one run."""

    def __init__(self, spark: SparkSession, run: TracedRun, control: Control | None = None) -> None:
        self.spark = spark
        self.run = run
        self.rows = self._read()
        self.sends = True
        self.addressed = False
        self.control = control or self._survey()
        self.deliveries = self._deliveries()
        self.submits = self._submits()

    # -- what there is ---------------------------------------------------------------------

    def _read(self) -> DataFrame:
        parts = self.run.parts
        index, moment = fn.col("_metadata.row_index"), "time" if self.run.apart else "place"
        if len(parts) <= FILES_TOGETHER:
            # One scan of all files is one piece of generated code; a union has one per file.
            first: Column = fn.raise_error(fn.lit("a file that is no part of the run"))
            for part in parts:
                name = Path(part.path).name
                here = fn.col("_metadata.file_name").isin(name, quote(name))
                first = fn.when(here, fn.lit(part.first)).otherwise(first)
            if len(parts) == 1:
                first = fn.lit(parts[0].first)
            rows = self.spark.read.parquet(*(part.path for part in parts))
            rows = rows.withColumn("place", index + first)
        else:
            each = (
                self.spark.read.parquet(part.path).withColumn("place", index + fn.lit(part.first))
                for part in parts
            )
            rows = reduce(lambda a, b: a.unionByName(b), each)
        return rows.withColumn("moment", fn.col(moment))

    def _survey(self) -> Control:
        """The special rows, and what else has to be known beforehand."""
        rows, run = self.rows, self.run
        about = rows.agg(
            fn.max("time").alias("last"),
            fn.max(fn.col("event") == "SEND").alias("sends"),
            fn.max((fn.col("event") == "SUBMIT") & fn.col("info").isNotNull()).alias("addressed"),
            fn.min(fn.when(~fn.col("site").isin(*run.sites, NOBODY), fn.col("site"))).alias("odd"),
        ).first()
        assert about is not None
        if about.odd is not None:
            raise UsageError(f"{run.name}: there is no site {about.odd} in this group")
        self.sends, self.addressed = bool(about.sends), bool(about.addressed)
        special = (
            rows.filter(fn.col("event").isin(*EVENTS))
            .filter((fn.col("event") != "NOTICE") | fn.col("kind").isin(*NOTICES))
            .select("place", *TraceRow.__struct_fields__)
            .limit(ROWS_MAX + 1)
            .toArrow()
        )
        places = special.column("place").to_pylist()
        lines = [row for batch in special.drop(["place"]).to_batches() for row in rows_of(batch)]
        control = control_of(run, list(map(Special, places, lines)))
        control.last_ns = about.last or 0
        return control

    def _messages(self, event: str, *columns: str) -> DataFrame:
        """One row per message of the users' rows of an event."""
        mine = (fn.col("event") == event) & fn.col("site").isin(*self.run.users)
        return self.rows.filter(mine).select(
            "site",
            "time",
            "place",
            "moment",
            *columns,
            fn.posexplode(_agreed()).alias("offset", "fp"),
        )

    def _deliveries(self) -> DataFrame:
        """One row per delivered message."""
        rows = self._messages("DELIVER", "kind", "seq", "source", "number")
        rows = rows.filter(fn.coalesce(fn.col("kind"), fn.lit("")) != PROVISIONAL).drop("kind")
        rows = rows.withColumn("pos", fn.col("seq") + fn.col("offset"))
        return self._with_life(rows, self.control.afresh, before=False)

    def _submits(self) -> DataFrame:
        """One row per submitted message; `key` rises in the order in which a site submitted."""
        rows = self._messages("SUBMIT", "info").withColumn("key", place_key())
        rows = rows.withColumn("to", fn.from_json("info", "array<int>")).drop("info")
        return self._with_life(rows, self.control.ended, before=True)

    def _with_life(self, rows: DataFrame, ends: dict[int, list[int]], *, before: bool) -> DataFrame:
        """In which life of its site a row was written; `before`: an end belongs to the old life."""
        if not any(ends.values()):
            return rows.withColumn("life", fn.lit(0))
        spans = [
            (site, life, since, till)
            for site, moments in ends.items()
            for life, (since, till) in enumerate(pairwise([-1, *moments, ALWAYS]))
        ]
        lives = self.spark.createDataFrame(spans, "whose int, life int, since long, till long")
        moment, since, till = fn.col("moment"), fn.col("since"), fn.col("till")
        inside = (moment > since) & (moment <= till)
        if not before:
            inside = (moment >= since) & (moment < till)
        mine = (fn.col("site") == fn.col("whose")) & inside
        with_life = rows.join(fn.broadcast(lives), mine, "left").drop("whose", "since", "till")
        return with_life.withColumn("life", fn.coalesce(fn.col("life"), fn.lit(0)))


def place_key() -> Column:
    """What orders messages as they stand in the trace."""
    return fn.shiftleft("place", OFFSET_BITS) + fn.col("offset")


def lagged(names: Iterable[str], window: WindowSpec) -> list[Column]:
    """Each column of the row before, as `last_` and its name."""
    return [fn.lag(name).over(window).alias(f"last_{name}") for name in names]


def picked(
    function: Callable[..., Column], names: Iterable[str], by: str, prefix: str = ""
) -> list[Column]:
    """Each column where `by` is least (`min_by`) or greatest (`max_by`)."""
    return [function(name, by).alias(prefix + name) for name in names]


def _agreed() -> Column:
    """The messages of a row; another one if its digest is not that of the one it has.

    Why, says `verify.columns`, which does the same to numbers.
    """
    only, digest = fn.element_at("messages", 1), fn.col("digest")
    another = fn.array(only.bitwiseXOR(digest).bitwiseXOR(fn.lit(ANOTHER)))
    touched = (fn.size("messages") == 1) & (digest != only)
    return fn.when(touched, another).otherwise(fn.col("messages"))
