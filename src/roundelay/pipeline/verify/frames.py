"""The rows of a run as DataFrames of Spark: deliveries and submissions, one row per message.

What the oracle (`verify.sql`, `verify.sql_sources`, `verify.holders`) works with.  A row knows its
`place` in the trace, its `moment` (see `verify.control`) and the life of its site.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
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
from roundelay.pipeline.verify.runs import Run
from roundelay.trace.schema import NONE, TraceRow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS: Final = 10_000
"""Counterexamples of one kind that are fetched; `broken` counts no more than these."""


FILES_TOGETHER: Final = 32
"""Files of a run that are read in one scan, and told apart by their names."""


class Frames:
    """What the oracle knows of one run."""

    def __init__(self, spark: SparkSession, run: Run, control: Control | None = None) -> None:
        self.spark = spark
        self.run = run
        self.rows = self._read()
        self.sends = True
        self.addressed = False
        self.control = control or self._look()
        self.deliveries = self._deliveries()
        self.submits = self._submits()

    # -- what there is ---------------------------------------------------------------------

    def _read(self) -> DataFrame:
        parts = self.run.parts
        if len(parts) <= FILES_TOGETHER:
            # One scan of all files is one piece of generated code; a union has one per file.
            rows = self.spark.read.parquet(*(part.path for part in parts))
            first: Column = fn.raise_error(fn.lit("a file that is no part of the run"))
            for part in parts:
                name = Path(part.path).name
                here = fn.col("_metadata.file_name").isin(name, quote(name))
                first = fn.when(here, fn.lit(part.first)).otherwise(first)
            if len(parts) == 1:
                first = fn.lit(parts[0].first)
            rows = rows.withColumn("place", fn.col("_metadata.row_index") + first)
        else:
            each = [
                self.spark.read.parquet(part.path).withColumn(
                    "place", fn.col("_metadata.row_index") + fn.lit(part.first)
                )
                for part in parts
            ]
            rows = reduce(lambda a, b: a.unionByName(b), each)
        return rows.withColumn("moment", fn.col("time") if self.run.apart else fn.col("place"))

    def _look(self) -> Control:
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
        names = list(TraceRow.__struct_fields__)
        special = (
            rows.filter(fn.col("event").isin(*EVENTS))
            .filter((fn.col("event") != "NOTICE") | fn.col("kind").isin(*NOTICES))
            .select("place", *names)
            .limit(ROWS_MAX + 1)
        )
        found = [Special(row.place, _trace_row(row, names)) for row in special.collect()]
        control = control_of(run, found)
        control.last_ns = about.last or 0
        return control

    def _deliveries(self) -> DataFrame:
        """One row per delivered message."""
        rows = (
            self.rows.filter((fn.col("event") == "DELIVER") & fn.col("site").isin(*self.run.users))
            .filter(~fn.coalesce(fn.col("kind"), fn.lit("")).isin(*PROVISIONAL))
            .select("site", "time", "place", "moment", "seq", "source", "number",
                    fn.posexplode(_agreed()).alias("offset", "fp"))
        )  # fmt: skip
        rows = rows.withColumn("pos", fn.col("seq") + fn.col("offset"))
        return self._with_life(rows, self.control.afresh, "life", before=False)

    def _submits(self) -> DataFrame:
        """One row per submitted message; `key` rises in the order in which a site submitted."""
        rows = (
            self.rows.filter((fn.col("event") == "SUBMIT") & fn.col("site").isin(*self.run.users))
            .select("site", "time", "place", "moment", "info",
                    fn.posexplode(_agreed()).alias("offset", "fp"))
        )  # fmt: skip
        key = fn.shiftleft("place", OFFSET_BITS) + fn.col("offset")
        rows = rows.withColumn("key", key).withColumn("to", fn.from_json("info", "array<int>"))
        return self._with_life(rows.drop("info"), self.control.ended, "life", before=True)

    def _with_life(
        self, rows: DataFrame, ends: dict[int, list[int]], name: str, *, before: bool
    ) -> DataFrame:
        """In which life of its site a row was written; `before`: an end belongs to the old life."""
        if not any(ends.values()):
            return rows.withColumn(name, fn.lit(0))
        spans = []
        for site, moments in ends.items():
            edges = [-1, *moments, ALWAYS]
            spans += [(site, life, edges[life], edges[life + 1]) for life in range(len(edges) - 1)]
        lives = self.spark.createDataFrame(spans, f"site int, {name} int, since long, till long")
        moment = fn.col("moment")
        inside: Column
        if before:
            inside = (moment > fn.col("since")) & (moment <= fn.col("till"))
        else:
            inside = (moment >= fn.col("since")) & (moment < fn.col("till"))
        life = fn.broadcast(lives.withColumnRenamed("site", "whose"))
        joined = rows.join(life, (fn.col("site") == fn.col("whose")) & inside, "left")
        filled = joined.withColumn(name, fn.coalesce(fn.col(name), fn.lit(0)))
        return filled.drop("whose", "since", "till")


def _agreed() -> Column:
    """The messages of a row; another one if its digest is not that of the one it has.

    Why, says `verify_columns`, which does the same to numbers.
    """
    only, digest = fn.element_at("messages", 1), fn.col("digest")
    another = fn.array(only.bitwiseXOR(digest).bitwiseXOR(fn.lit(ANOTHER)))
    return fn.when((fn.size("messages") == 1) & (digest != only), another).otherwise(
        fn.col("messages")
    )


def _trace_row(row: Any, names: list[str]) -> TraceRow:
    blank: dict[str, Any] = {"kind": "", "info": "", "messages": (), "digest": None}
    values: dict[str, Any] = {}
    for name in names:
        value = row[name]
        values[name] = blank.get(name, NONE) if value is None else value
    values["messages"] = tuple(values["messages"])
    return TraceRow(**values)
