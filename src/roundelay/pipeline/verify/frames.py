"""The rows of a run as DataFrames of Spark: deliveries and submissions, one row per message.

A row knows its `place` in the trace, and its `moment`, which orders the rows of all sites: the
place, or the time where sites have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from roundelay.pipeline.verify.columns import ANOTHER, OFFSET_BITS, PROVISIONAL
from roundelay.pipeline.verify.runs import TracedRun

FILES_TOGETHER: Final = 32
"""Files of a run that are read in one scan, and told apart by their names."""


class Frames:
    """The rows of one run."""

    def __init__(self, spark: SparkSession, run: TracedRun) -> None:
        self.run = run
        moment = "time" if run.apart else "place"
        self.rows = _read(spark, run).withColumn("moment", fn.col(moment))

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

    def deliveries(self) -> DataFrame:
        """One row per message that was delivered for good."""
        rows = self._messages("DELIVER", "kind", "seq", "source", "number")
        rows = rows.filter(fn.coalesce(fn.col("kind"), fn.lit("")) != PROVISIONAL).drop("kind")
        return rows.withColumn("pos", fn.col("seq") + fn.col("offset"))

    def submits(self) -> DataFrame:
        """One row per submitted message; `key` rises in the order in which a site submitted."""
        key = fn.shiftleft("place", OFFSET_BITS) + fn.col("offset")
        return self._messages("SUBMIT").withColumn("key", key)


def _read(spark: SparkSession, run: TracedRun) -> DataFrame:
    parts, index = run.parts, fn.col("_metadata.row_index")
    if len(parts) > FILES_TOGETHER:
        each = (
            spark.read.parquet(part.path).withColumn("place", index + fn.lit(part.first))
            for part in parts
        )
        return reduce(lambda a, b: a.unionByName(b), each)
    # One scan of all files is one piece of generated code; a union has one per file.
    first: Column = fn.raise_error(fn.lit("a file that is no part of the run"))
    for part in parts:
        name = Path(part.path).name
        here = fn.col("_metadata.file_name").isin(name, quote(name))
        first = fn.when(here, fn.lit(part.first)).otherwise(first)
    if len(parts) == 1:
        first = fn.lit(parts[0].first)
    return spark.read.parquet(*(part.path for part in parts)).withColumn("place", index + first)


def picked(function: Callable[..., Column], names: Iterable[str], by: str) -> list[Column]:
    """Each column where `by` is least (`min_by`) or greatest (`max_by`)."""
    return [function(name, by).alias(name) for name in names]


def _agreed() -> Column:
    """The messages of a row; another one if its digest is not that of the one it has.

    Why, says `verify.columns`, which does the same to numbers.
    """
    only, digest = fn.element_at("messages", 1), fn.col("digest")
    another = fn.array(only.bitwiseXOR(digest).bitwiseXOR(fn.lit(ANOTHER)))
    touched = (fn.size("messages") == 1) & (digest != only)
    return fn.when(touched, another).otherwise(fn.col("messages"))
