"""The oracle: the same invariants as joins, groups and windows of Spark SQL, for every order.

Written without regard to the fast way (`verify.fast`), so that each can be held against the other.
Positions are cut into blocks of `BLOCK`; a window looks at one block of one site, and a second,
small one at the edges of the blocks.  So no stage has a single partition, and what reaches the
driver are counterexamples, at most `ROWS` of a kind, and the run's special rows.

Here is total order; `verify.sql_sources` has the rest, `verify.holders` the holders at commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as fn

from roundelay.pipeline.verify.control import ALWAYS, Control, count_total, judge_ends, outdated
from roundelay.pipeline.verify.frames import BLOCK, ROWS, Frames, lagged, picked
from roundelay.pipeline.verify.holders import judge_holders
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.sql_clean import counts_if_clean
from roundelay.pipeline.verify.sql_sources import falling, judge_own, judge_sources
from roundelay.pipeline.verify.verdict import (
    NO_END,
    Counterexample,
    RunJudgement,
    backwards,
    skipped,
)
from roundelay.trace.checkers.checkers import TOTAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def judge(spark: SparkSession, run: TracedRun) -> RunJudgement:
    """The verdict on everything."""
    frames = Frames(spark, run)
    settled = frames.control.settled
    judgement = RunJudgement.of(run, "sql", settled)
    clean = counts_if_clean(frames) if run.order == TOTAL else None
    if clean is not None:  # the messages are all right; lists may still be wrong
        count_total(frames.control, judgement, clean.deliveries, clean.positions)
        judgement.checked(clean.submits if settled else 0, "I5")
    elif run.order == TOTAL:
        _judge_total(frames, judgement)
    else:
        judge_sources(frames, judgement)
    if not settled:
        judgement.note(NO_END, "I2", "I5")
    elif clean is None:
        judge_own(frames, judgement)
    judge_holders(frames, judgement)
    return judgement


def _first_deliveries(frames: Frames) -> DataFrame:
    """What stands at each position, according to whoever delivered it first."""
    names = ("fp", "source", "number", "seq", "site", "time")
    differs = [fn.min(name) != fn.max(name) for name in ("fp", "source", "number")]
    return frames.deliveries.groupBy("pos").agg(
        fn.min("moment").alias("moment"),
        *picked(fn.min_by, names, "moment"),
        fn.count("*").alias("deliveries"),
        (differs[0] | differs[1] | differs[2]).alias("differs"),
    )


def _judge_total(frames: Frames, judgement: RunJudgement) -> None:
    canon = _first_deliveries(frames).cache()
    try:
        about = canon.agg(fn.count("*").alias("n"), fn.sum("deliveries").alias("d")).first()
        assert about is not None
        count_total(frames.control, judgement, int(about.d or 0), about.n)
        judgement.add(_stretches(frames))
        judgement.add(_differing(frames, canon))
        judgement.add(_commits(frames, canon))
        judgement.add(_numbers(canon))
        judgement.add(_sources(frames, canon))
    finally:
        canon.unpersist()


def _stretches(frames: Frames) -> Iterable[Counterexample]:
    """I1, I4: each site has every position once, in order; I2: up to the end."""
    keys, names = ["site", "life", "block"], ("pos", "place", "time")
    rows = frames.deliveries.withColumn("block", fn.floor(fn.col("pos") / BLOCK))
    rows = rows.select("*", *lagged(names, Window.partitionBy(*keys).orderBy("pos", "place")))
    bad = (
        (fn.col("pos") != fn.col("last_pos") + 1)
        | (fn.col("place") < fn.col("last_place"))
        | (fn.col("time") < fn.col("last_time"))
    )
    cells = fn.struct(*names, "source", "number", *(f"last_{name}" for name in names))
    blocks = rows.groupBy(*keys).agg(
        *picked(fn.min_by, names, "pos", "lo_"),
        *picked(fn.max_by, names, "pos", "hi_"),
        fn.slice(fn.collect_list(fn.when(bad, cells)), 1, 1000).alias("bad"),
    )
    lives = Window.partitionBy("site", "life")
    edges = blocks.select(
        "*", *lagged(("hi_pos", "hi_place", "hi_time"), lives.orderBy("block"))
    ).cache()
    wrong = (
        (fn.size("bad") > 0)
        | (fn.col("lo_pos") != fn.coalesce(fn.col("last_hi_pos"), fn.lit(-1)) + 1)
        | (fn.col("lo_place") < fn.col("last_hi_place"))
        | (fn.col("lo_time") < fn.col("last_hi_time"))
    )
    try:
        tops = edges.groupBy("site", "life").agg(fn.max("hi_pos").alias("top")).collect()
        found = edges.filter(wrong).limit(ROWS).collect()
    finally:
        edges.unpersist()
    for row in found:
        yield from _of_block(frames.control, row)
    if frames.control.settled:
        yield from judge_ends(frames.control, {(r.site, r.life): r.top + 1 for r in tops})


def _of_block(control: Control, block: Any) -> Iterable[Counterexample]:
    """What is wrong where a block of a site's positions begins, and inside it."""
    site, life = block.site, block.life
    steps = [
        (one.pos, one.place, one.time, one.last_pos, one.last_place, one.last_time)
        for one in block.bad
        if one.pos != one.last_pos
    ]
    before = (block.last_hi_pos, block.last_hi_place, block.last_hi_time)
    if before[0] is None:
        before = (-1, -1, -1)
    steps.insert(0, (block.lo_pos, block.lo_place, block.lo_time, *before))
    for pos, place, time, last_pos, last_place, last_time in steps:
        if pos > last_pos + 1 and not control.covered(site, life, last_pos + 1, pos, time):
            yield skipped(site, time, last_pos + 1, pos)
        if place < last_place or time < last_time:
            yield backwards(site, last_time, last_pos, pos, time)
    for one in block.bad:
        if one.pos == one.last_pos:
            detail, since = f"delivers position {one.pos} again", one.last_time
            yield Counterexample(
                "I4", site, one.time, detail, one.pos, one.source, one.number, from_ns=since
            )


def _differing(frames: Frames, canon: DataFrame) -> Iterable[Counterexample]:
    """I1: one message at every position; I2 if the first is gone; I4: one name."""
    names = ("fp", "source", "number", "site", "time")
    first = canon.filter("differs").select(
        "pos", *(fn.col(name).alias(f"first_{name}") for name in names)
    )
    rows = frames.deliveries.join(fn.broadcast(first.limit(ROWS)), "pos").filter(
        (fn.col("fp") != fn.col("first_fp"))
        | (fn.col("source") != fn.col("first_source"))
        | (fn.col("number") != fn.col("first_number"))
    )
    known = frames.submits.select("fp").distinct().withColumn("known", fn.lit(True))
    for row in rows.join(known, "fp", "left").limit(ROWS).collect():
        was = f"number {row.first_number} of source {row.first_source} at site {row.first_site}"
        detail = f"position {row.pos} is number {row.number} of source {row.source} here, but"
        more = (row.pos, row.source, row.number, row.fp, row.first_time)
        if row.fp == row.first_fp:
            yield Counterexample("I4", row.site, row.time, f"{detail} {was}", *more)
            continue
        yield Counterexample("I1", row.site, row.time, f"{detail} was {was}", *more)
        if row.first_site == row.site or not frames.control.is_up(row.first_site, row.time):
            detail = f"position {row.pos} was replaced: no site that is up has the first"
            yield Counterexample("I2", row.site, row.time, detail, *more)
        if not row.known:
            detail = f"position {row.pos}: nobody submitted this content"
            yield Counterexample("I4", row.site, row.time, detail, *more)


def _commits(frames: Frames, canon: DataFrame) -> Iterable[Counterexample]:
    """I3: whoever is first to commit behind the start of a list has that list in force."""
    control = frames.control
    starts, ranks = control.required()
    if not len(starts):
        return
    lists = zip(pairwise([*starts.tolist(), ALWAYS]), ranks.tolist(), strict=True)
    least = frames.spark.createDataFrame(
        [(start, till, rank) for (start, till), rank in lists], "start long, till long, least long"
    )
    spans = []
    for site in frames.run.users:
        times, held = control.in_force(site)
        edges = pairwise([-1, *times.tolist(), ALWAYS])
        steps = zip(edges, [-1, *held.tolist()], strict=True)
        spans += [(site, since, upto, rank) for (since, upto), rank in steps]
    force = frames.spark.createDataFrame(spans, "whose int, since long, upto long, held long")
    behind = (fn.col("pos") >= fn.col("start")) & (fn.col("pos") < fn.col("till"))
    then = (fn.col("time") >= fn.col("since")) & (fn.col("time") < fn.col("upto"))
    rows = (
        canon.join(fn.broadcast(least), behind)
        .join(fn.broadcast(force), (fn.col("site") == fn.col("whose")) & then)
        .filter(fn.col("held") < fn.col("least"))
    )
    for row in rows.limit(ROWS).collect():
        if row.time not in control.returned.get(row.site, ()):
            yield outdated(control, row.site, row.time, row.pos, row.held)


def _numbers(canon: DataFrame) -> Iterable[Counterexample]:
    """I4: the numbers of a source rise from bundle to bundle."""
    names = ("pos", "number", "seq", "time", "site")
    rows = canon.select(*names, "source", fn.floor(fn.col("pos") / BLOCK).alias("block"))
    blocks = rows.groupBy("source", "block").agg(
        *picked(fn.min_by, names, "pos"), *picked(fn.max_by, ("number", "seq"), "pos", "to_")
    )
    last = ["last_number", "last_seq"]
    inside = Window.partitionBy("source", "block").orderBy("pos")
    across = Window.partitionBy("source").orderBy("block")
    within = rows.select(*names, "source", *lagged(("number", "seq"), inside))
    edges = blocks.select(*names, "source", *lagged(("to_number", "to_seq"), across))
    edges = edges.toDF(*names, "source", *last)
    wrong = (fn.col("number") >= 0) & (
        (fn.col("number") < fn.col("last_number"))
        | ((fn.col("number") == fn.col("last_number")) & (fn.col("seq") != fn.col("last_seq")))
    )
    for row in within.unionByName(edges).filter(wrong).limit(ROWS).collect():
        detail = (
            f"position {row.pos} is number {row.number} of source {row.source}, "
            f"after its number {row.last_number}"
        )
        yield Counterexample("I4", row.site, row.time, detail, row.pos, row.source, row.number)


def _sources(frames: Frames, canon: DataFrame) -> Iterable[Counterexample]:
    """I4: submitted before, by whom it is said, and once; I1: each source's order."""
    pairs = _paired(frames, canon)
    wrong = fn.col("pos").isNotNull() & (
        fn.col("key").isNull()
        | (fn.col("sub_site") != fn.col("source"))
        | (fn.col("sub_time") > fn.col("time"))
    )
    for row in pairs.filter(wrong).limit(ROWS).collect():
        name = f"number {row.number} of source {row.source}"
        if row.key is None and row.first_pos is not None and row.first_pos < row.pos:
            detail = f"{name} was delivered at position {row.first_pos} already"
        elif row.key is None:
            detail = f"nobody submitted {name} with this content"
        elif row.sub_site != row.source:
            detail = f"is said to come from site {row.source}; site {row.sub_site} submitted it"
        else:
            detail = "is delivered before it is submitted"
        yield _at_position("I4", row, detail)
    both = pairs.filter(fn.col("pos").isNotNull() & fn.col("key").isNotNull())
    both = both.withColumn("block", fn.floor(fn.col("pos") / BLOCK))
    for row in falling(both, ["sub_site", "sub_life"], "pos").limit(ROWS).collect():
        detail = f"number {row.number} of source {row.source} comes after a later one"
        yield _at_position("I1", row, detail)


def _at_position(invariant: str, row: Any, detail: str) -> Counterexample:
    detail = f"position {row.pos}: {detail}"
    return Counterexample(
        invariant, row.site, row.time, detail, row.pos, row.source, row.number, row.fp
    )


def _paired(frames: Frames, canon: DataFrame) -> DataFrame:
    """Positions and submissions of the same message side by side.

    Of messages that are alike the k-th that was submitted is the k-th that was delivered.
    """
    # One group per message instead of a join: each row is a position, or a submission.
    of_position = ("pos", "site", "time", "source", "number")
    positions = canon.select("fp", *of_position)
    of_submit = {"key": "key", "sub_site": "site", "sub_time": "time", "sub_life": "life"}
    submits = frames.submits.select(
        "fp", *(fn.col(name).alias(alias) for alias, name in of_submit.items())
    )
    names = (*of_position, *of_submit)
    grouped = (
        positions.unionByName(submits, allowMissingColumns=True)
        .groupBy("fp")
        .agg(
            fn.count("pos").alias("n_pos"),
            fn.count("key").alias("n_key"),
            *(fn.max(name).alias(name) for name in names),
        )
    )
    once = grouped.filter("n_pos <= 1 and n_key <= 1").select(
        "fp", *names, fn.lit(None).cast("long").alias("first_pos")
    )
    alike = grouped.filter("n_pos > 1 or n_key > 1").select("fp")
    same = Window.partitionBy("fp")
    p = positions.join(alike, "fp", "left_semi").select(
        "*",
        fn.row_number().over(same.orderBy("pos")).alias("k"),
        fn.min("pos").over(same).alias("first_pos"),
    )
    s = submits.join(alike, "fp", "left_semi").withColumn(
        "k", fn.row_number().over(same.orderBy("key"))
    )
    return once.unionByName(p.join(s, ["fp", "k"], "left").select("fp", *names, "first_pos"))
