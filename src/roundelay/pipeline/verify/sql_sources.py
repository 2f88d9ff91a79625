"""The oracle on groups without a common order, and on own messages in any group.

A message is *owed* to a site as `roundelay.trace.checkers.per_source` says; `verify.control` knows
from when to when.  The fast way leaves I5 to this module, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as fn

from roundelay.pipeline.verify.columns import OFFSET_BITS
from roundelay.pipeline.verify.control import ALWAYS
from roundelay.pipeline.verify.frames import BLOCK, ROWS, Frames, picked, place_key
from roundelay.pipeline.verify.verdict import NO_ORDER, Counterexample, RunJudgement
from roundelay.trace.checkers.checkers import FIFO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def judge_sources(frames: Frames, judgement: RunJudgement) -> None:
    """I1, I2, I4 and I8 where each source has an order of its own, or none."""
    in_order = frames.run.order == FIFO
    delivered = (
        frames.deliveries.withColumn("at", place_key())
        .groupBy("fp", "site", "life")
        .agg(
            fn.count("*").alias("n"),
            fn.min("at").alias("at"),
            fn.min("time").alias("time"),
            fn.max("time").alias("last_time"),
            *picked(fn.min_by, ("source", "number"), "at"),
        )
    )
    names = ("site", "life", "time", "moment", "to")
    sent = frames.submits.groupBy("fp").agg(
        fn.count("*").alias("n_key"),
        fn.min("key").alias("key"),
        *picked(fn.min_by, names, "key", "sub_"),
    )
    rows = delivered.join(sent, "fp", "left").cache()
    try:
        about = rows.agg(fn.sum("n").alias("n")).first()
        assert about is not None
        checked = int(about.n or 0)
        judgement.checked(checked, "I4", *(["I8"] if frames.addressed else []))
        judgement.add(_each(rows))
        if in_order:
            judgement.checked(checked, "I1")
            judgement.add(_out_of_turn(rows))
        else:
            judgement.note(NO_ORDER, "I1")
        if frames.control.settled:
            _judge_owed(frames, judgement, rows, sent)
    finally:
        rows.unpersist()


def _each(rows: DataFrame) -> Iterable[Counterexample]:
    """I4 and I8 of each message at each site."""
    stray = fn.col("sub_to").isNotNull() & ~fn.array_contains("sub_to", fn.col("site"))
    wrong = rows.filter(
        fn.col("key").isNull()
        | (fn.col("sub_site") != fn.col("source"))
        | (fn.col("n") > fn.col("n_key"))
        | (fn.col("sub_time") > fn.col("time"))
        | stray
    ).withColumn("stray", stray)
    for row in wrong.limit(ROWS).collect():
        name = f"number {row.number} of source {row.source}"
        more = (-1, row.source, row.number, row.fp)
        if row.key is None:
            yield Counterexample("I4", row.site, row.time, f"nobody submitted {name}", *more)
            continue
        if row.sub_site != row.source:
            detail = f"{name} was submitted by site {row.sub_site}"
            yield Counterexample("I4", row.site, row.time, detail, *more)
        if row.n > row.n_key:
            detail = f"{name} is delivered a second time"
            yield Counterexample("I4", row.site, row.last_time, detail, *more, row.time)
        if row.sub_time > row.time:
            detail = f"{name} is delivered before it is submitted"
            yield Counterexample("I4", row.site, row.time, detail, *more)
        if row.stray:
            detail = f"{name} is not destined to this site"
            yield Counterexample("I8", row.site, row.time, detail, *more, row.sub_time)


def _out_of_turn(rows: DataFrame) -> Iterable[Counterexample]:
    """I1: at each site the messages of a source come in its order."""
    both = rows.filter(fn.col("key").isNotNull() & (fn.col("n_key") == 1))
    both = both.withColumn("block", fn.floor(fn.col("at") / (BLOCK << OFFSET_BITS)))
    keys = ["site", "life", "sub_site", "sub_life"]
    for row in falling(both, keys, "at").limit(ROWS).collect():
        name = f"number {row.number} of source {row.source}"
        detail = f"{name} comes after a later one of the same site"
        yield Counterexample("I1", row.site, row.time, detail, -1, row.source, row.number, row.fp)


def _judge_owed(frames: Frames, judgement: RunJudgement, rows: DataFrame, sent: DataFrame) -> None:
    """I2, or I8 where messages have destinations: what is owed has been delivered."""
    control = frames.control
    spans = [
        (source, site, since, till)
        for (source, site), both in control.owed.items()
        if site in control.up
        for since, till in both
    ]
    if not spans:
        return
    name = "I8" if frames.addressed else "I2"
    owed = frames.spark.createDataFrame(spans, "sub_site int, site int, since long, till long")
    last = frames.spark.createDataFrame(
        [(site, control.last_life(site)) for site in frames.run.users], "site int, life int"
    )
    done = rows.join(fn.broadcast(last), ["site", "life"], "left_semi")
    due = sent.join(fn.broadcast(owed), "sub_site").filter(
        (fn.col("sub_moment") >= fn.col("since"))
        & (fn.col("sub_moment") < fn.col("till"))
        & (fn.col("sub_to").isNull() | fn.array_contains("sub_to", fn.col("site")))
    )
    missing = due.join(done.select("fp", "site"), ["fp", "site"], "left_anti").join(
        done.select("fp").distinct(), "fp", "left_semi"
    )
    for row in missing.limit(ROWS).collect():
        detail = f"a message of site {row.sub_site} was delivered elsewhere, but never here"
        more = (-1, row.sub_site, -1, row.fp, row.sub_time)
        judgement.add([Counterexample(name, row.site, control.last_ns, detail, *more)])
    verdict = judgement.invariants[name]
    verdict.checked = max(verdict.checked, due.count())


def judge_own(frames: Frames, judgement: RunJudgement) -> None:
    """I5: own messages of a site that stays up are delivered to it, or it is told."""
    control, spark = frames.control, frames.spark
    verdict = judgement.invariants["I5"]
    verdict.note = ""
    lives = [(site, control.last_own_life(site)) for site in sorted(control.up)]
    if not lives:
        return
    last = spark.createDataFrame(lives, "site int, life int")
    sent = frames.submits.join(fn.broadcast(last), ["site", "life"], "left_semi")
    sent = sent.filter(fn.col("to").isNull() | fn.array_contains("to", fn.col("site")))
    verdict.checked = sent.count()
    mine = frames.deliveries.filter(fn.col("source") == fn.col("site"))
    pending = sent.join(mine.select("fp", "site"), ["fp", "site"], "left_anti")
    returned = [(fp, site) for site, fps in control.given_back.items() for fp in fps]
    if returned:
        given = spark.createDataFrame(returned, "fp long, site int")
        pending = pending.join(fn.broadcast(given), ["fp", "site"], "left_anti")
    gaps = [(gap.site, gap.lo, gap.hi) for gap in control.gaps]
    if gaps:
        # What stands in a gap has its fate: it is to be had elsewhere.
        announced = fn.broadcast(spark.createDataFrame(gaps, "site int, lo long, hi long"))
        there = frames.deliveries.select("fp", "pos").join(
            announced, (fn.col("pos") >= fn.col("lo")) & (fn.col("pos") < fn.col("hi"))
        )
        pending = pending.join(there.select("fp", "site"), ["fp", "site"], "left_anti")
    bounds = _excused(frames, mine, sent)
    if bounds:
        table = fn.broadcast(spark.createDataFrame(bounds, "site int, bound long"))
        pending = pending.join(table, "site", "left").filter(
            fn.col("bound").isNull() | (fn.col("key") >= fn.col("bound"))
        )
    for row in pending.limit(ROWS).collect():
        detail = "an own message was neither delivered to its site nor declared indeterminate"
        more = (-1, row.site, -1, row.fp, row.time)
        verdict.add([Counterexample("I5", row.site, control.last_ns, detail, *more)])


def _excused(frames: Frames, mine: DataFrame, sent: DataFrame) -> list[tuple[int, int]]:
    """Per site the key below which an own message may have any fate.

    An `indeterminate` excuses what was submitted before it; once an own message with a number
    behind its range is delivered, only what was submitted before that one.
    """
    control = frames.control
    spans = [
        (site, since, till, hi)
        for site in control.up
        for (since, hi), (till, _) in pairwise([*control.unsure.get(site, []), (ALWAYS, 0)])
    ]
    if not spans:
        return []
    notices = frames.spark.createDataFrame(spans, "site int, since long, till long, hi long")
    behind = (
        (fn.col("moment") >= fn.col("since"))
        & (fn.col("moment") < fn.col("till"))
        & (fn.col("number") >= fn.col("hi"))
    )
    firsts = (
        mine.join(fn.broadcast(notices), "site")
        .filter(behind)
        .groupBy("site", "since")
        .agg(fn.min_by("fp", "moment").alias("fp"))
        .join(sent.select("fp", "site", "key"), ["fp", "site"], "left")
        .collect()
    )
    delivered = {(row.site, row.since): row.key for row in firsts}
    bounds: dict[Any, Any] = {}
    for site, since, till, _ in spans:
        key = delivered.get((site, since))
        if till == ALWAYS and (site, since) not in delivered:
            key = since << OFFSET_BITS
        if key is not None:
            bounds[site] = max(bounds.get(site, -1), key)
    return sorted(bounds.items())


def falling(rows: DataFrame, keys: list[str], along: str) -> DataFrame:
    """Rows whose `key` is not above that of every row before them, along `along`.

    Within a block by a window over it, from block to block by one over the blocks.
    """
    names = [along, "site", "time", "source", "number", "fp"]
    before = (Window.unboundedPreceding, -1)
    inside = Window.partitionBy(*keys, "block").orderBy(along).rowsBetween(*before)
    over = Window.partitionBy(*keys).orderBy("block").rowsBetween(*before)
    within = rows.withColumn("top", fn.max("key").over(inside))
    blocks = rows.groupBy(*keys, "block").agg(
        fn.max("key").alias("high"),
        fn.min("key").alias("low"),
        *picked(fn.min_by, names, "key", "low_"),
    )
    across = blocks.withColumn("top", fn.max("high").over(over))
    across = across.filter(fn.col("low") <= fn.col("top"))
    return (
        within.filter(fn.col("key") <= fn.col("top"))
        .select(*names)
        .unionByName(across.select(*(fn.col(f"low_{name}").alias(name) for name in names)))
        .distinct()
    )
