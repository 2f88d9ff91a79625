"""A proof that a total order was kept, by Spark SQL: one query that counts what is odd.

Deliveries are spread over tasks by blocks of positions, once; the last position of a block goes to
the next one, too, so no border is left out.  In its block a site's deliveries are looked at in the
order of positions, then those of a position are laid together, then each message is laid beside
its submission, then those of a source are looked at in order.  Every step is a window or a group
in SQL, every row is looked at once, and what comes back is a row of counts.

Nothing is proved if anything is odd, also where that may have a good reason (a crash, a gap that
was announced, messages that are alike): see `verify.diagnosis`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from roundelay.pipeline.verify.control import Control
from roundelay.pipeline.verify.frames import Frames, picked
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.verdict import Figures
from roundelay.trace.checkers.checkers import TOTAL

BLOCK_BITS: Final = 16
LAST: Final = (1 << BLOCK_BITS) - 1
TASK_ROWS: Final = 1_000_000
TASKS_LEAST: Final = 2
TASKS_MAX: Final = 2000
ALWAYS: Final = 1 << 62
LISTS_MAX: Final = 32
"""Lists of a run that are written into the query; with more of them it is not tried."""


def prove_by_sql(frames: Frames, control: Control) -> Figures | None:
    """How much there is in a run of total order, if all of it is clean."""
    if frames.run.order != TOTAL or not control.plain or not control.lists_hold():
        return None
    late = _late(frames.run, control)
    if late is None:
        return None
    beside = _beside(frames, _positions(_deliveries(frames), late))
    counts = _in_turn(frames, beside).first()
    assert counts is not None
    positions, own = counts.positions or 0, counts.own or 0
    deliveries = counts.deliveries or 0
    complete = not control.settled or (
        deliveries == len(frames.run.users) * positions and own == counts.submits
    )
    if counts.odd or (positions and counts.top != positions - 1) or not complete:
        return None
    return Figures(deliveries, positions, own)


def _tasks(frames: Frames) -> int:
    """How many tasks a stage should have, so that what each sorts stays small."""
    return max(TASKS_LEAST, min(TASKS_MAX, frames.run.rows // TASK_ROWS))


def _deliveries(frames: Frames) -> DataFrame:
    """Each delivery in its block, and whether it is out of order there."""
    block = fn.shiftright("pos", BLOCK_BITS)
    at_end = fn.col("pos").bitwiseAND(LAST) == LAST
    blocks = fn.when(at_end, fn.array(block, block + 1)).otherwise(fn.array(block))
    rows = frames.deliveries().withColumn("block", fn.explode(blocks))
    rows = rows.repartition(_tasks(frames), "block")
    w = Window.partitionBy("block", "site").orderBy("pos", "place")
    last_pos, last_place, last_time = (fn.lag(name).over(w) for name in ("pos", "place", "time"))
    before = fn.greatest(fn.shiftleft("block", BLOCK_BITS) - 1, fn.lit(0))
    out = (
        (fn.col("pos") != fn.coalesce(last_pos + 1, before))
        | (fn.col("place") < last_place)
        | (fn.col("time") < last_time)
    )
    return rows.withColumn("out", fn.coalesce(out, fn.lit(False)))


def _positions(rows: DataFrame, late: Column) -> DataFrame:
    """What stands at each position; `odd` if somebody says something else, or out of order."""
    same = fn.xxhash64("fp", "source", "number")
    canon = rows.groupBy("block", "pos").agg(
        *picked(fn.min_by, ("site", "time"), "moment"),
        *(fn.min(name).alias(name) for name in ("fp", "source", "number", "seq")),
        fn.count("*").alias("n"),
        fn.count_if(fn.col("site") == fn.col("source")).alias("own"),
        ((fn.min(same) != fn.max(same)) | fn.bool_or("out")).alias("odd"),
    )
    own_block = fn.shiftright("pos", BLOCK_BITS) == fn.col("block")
    canon = canon.withColumn("odd", fn.col("odd") | late | fn.col("source").isNull())
    # The copy of a block's last position has served its purpose, but what it shows counts.
    return canon.filter(own_block | fn.col("odd")).select(
        "fp", "time", "pos", "seq", "source", "number", "n", "own", "odd"
    )


def _late(run: TracedRun, control: Control) -> Column | None:
    """I3: whether a position was first committed by a site without the list that it needed."""
    starts, ranks = control.required()
    if len(starts) > LISTS_MAX:
        return None
    ends = [*starts[1:].tolist(), ALWAYS]
    late: list[Column] = [fn.lit(False)]
    for start, end, rank in zip(starts.tolist(), ends, ranks.tolist(), strict=True):
        inside = (fn.col("pos") >= start) & (fn.col("pos") < end)
        for site in run.users:
            times, held = control.in_force(site)
            since = ALWAYS
            for time, list_held in reversed(list(zip(times.tolist(), held.tolist(), strict=True))):
                if list_held < rank:
                    break
                since = time
            late.append(inside & (fn.col("site") == site) & (fn.col("time") < since))
    return reduce(or_, late)


def _beside(frames: Frames, canon: DataFrame) -> DataFrame:
    """Each message beside its submission; `odd` if there is none, or not just one of each."""
    submits = frames.submits().select(
        "fp", "key", fn.col("site").alias("sub_site"), fn.col("time").alias("sub_time")
    )
    names = ("pos", "time", "seq", "source", "number", "n", "own", "key", "sub_site", "sub_time")
    grouped = (
        canon.unionByName(submits, allowMissingColumns=True)
        .repartition(_tasks(frames), "fp")
        .groupBy("fp")
        .agg(
            fn.count("pos").alias("n_pos"),
            fn.count("key").alias("n_key"),
            fn.bool_or("odd").alias("odd"),
            *(fn.max(name).alias(name) for name in names),
        )
    )
    unlike = (
        (fn.col("n_key") == 0)
        | (fn.col("sub_site") != fn.col("source"))
        | (fn.col("sub_time") > fn.col("time"))
    )
    odd = (
        fn.coalesce(fn.col("odd"), fn.lit(False))
        | (fn.col("n_pos") > 1)
        | (fn.col("n_key") > 1)
        | ((fn.col("n_pos") > 0) & unlike)
    )
    return grouped.withColumn("odd", odd).drop("fp", "time", "sub_time", "n_pos")


def _in_turn(frames: Frames, rows: DataFrame) -> DataFrame:
    """Counts, and whether the messages of a source come in the order in which it submitted."""
    names = ("key", "number", "seq")
    rows = rows.withColumn("block", fn.shiftright("pos", BLOCK_BITS))
    rows = rows.repartition(_tasks(frames), "sub_site", "block")
    w = Window.partitionBy("sub_site", "block").orderBy("pos")
    back = _falls({name: (fn.col(name), fn.lag(name).over(w)) for name in names})
    rows = rows.withColumn("back", back & fn.col("pos").isNotNull())
    sums = {"n": "deliveries", "n_key": "submits", "own": "own"}
    blocks = rows.groupBy("sub_site", "block").agg(
        *(fn.sum(name).alias(alias) for name, alias in sums.items()),
        fn.count("pos").alias("positions"),
        fn.max("pos").alias("top"),
        fn.count_if(fn.col("odd") | fn.col("back")).alias("odd"),
        *(fn.min(name).alias(f"low_{name}") for name in names),
        *(fn.max(name).alias(f"high_{name}") for name in names),
    )
    w = Window.partitionBy("sub_site").orderBy("block")
    # One bundle may lie on both sides of a border.
    over = _falls({name: (fn.col(f"low_{name}"), fn.lag(f"high_{name}").over(w)) for name in names})
    blocks = blocks.withColumn("over", over & fn.col("block").isNotNull())
    return blocks.agg(
        *(fn.sum(name).alias(name) for name in ("deliveries", "positions", "submits", "own")),
        fn.max("top").alias("top"),
        (fn.sum("odd") + fn.count_if("over")).alias("odd"),
    )


def _falls(pairs: dict[str, tuple[Column, Column]]) -> Column:
    """Whether a key, or the number of a bundle, is not above the one before it."""
    (key, last_key), (number, last_number), (seq, last_seq) = pairs.values()
    again = (number == last_number) & (seq != last_seq)
    falls = (key <= last_key) | ((number >= 0) & ((number < last_number) | again))
    return fn.coalesce(falls, fn.lit(False))
