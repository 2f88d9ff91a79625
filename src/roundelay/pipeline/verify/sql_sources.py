"""The oracle on groups without a common order, and on own messages in any group.

A message is *owed* to a site as `roundelay.trace.checkers.per_source` says; `verify.control` knows
from when to when.  The fast way leaves I5 to this module, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from roundelay.pipeline.verify.columns import OFFSET_BITS
from roundelay.pipeline.verify.control import ALWAYS
from roundelay.pipeline.verify.frames import ROWS, Frames
from roundelay.pipeline.verify.verdict import Finding, Judgement
from roundelay.trace.checkers.checkers import FIFO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BLOCK: Final = 1 << 16
"""Positions, or rows, that one window looks at."""


def judge_sources(frames: Frames, made: Judgement) -> None:
    run, control = frames.run, frames.control
    got = (
        frames.deliveries.withColumn("at", fn.shiftleft("place", OFFSET_BITS) + fn.col("offset"))
        .groupBy("fp", "site", "life")
        .agg(
            fn.count("*").alias("n"), fn.min("at").alias("at"), fn.min("time").alias("time"),
            fn.max("time").alias("last_time"), fn.min_by("source", "at").alias("source"),
            fn.min_by("number", "at").alias("number"),
        )
    )  # fmt: skip
    sent = frames.submits.groupBy("fp").agg(
        fn.count("*").alias("n_key"), fn.min("key").alias("key"),
        *(fn.min_by(name, "key").alias(f"sub_{name}")
          for name in ("site", "life", "time", "moment", "to")),
    )  # fmt: skip
    rows = got.join(sent, "fp", "left").cache()
    try:
        about = rows.agg(fn.sum("n").alias("n")).first()
        assert about is not None
        checked = int(about.n or 0)
        made.invariants["I4"].checked = checked
        made.invariants["I1"].checked = checked if run.order == FIFO else 0
        made.invariants["I8"].checked = checked if frames.addressed else 0
        if run.order != FIFO:
            made.invariants["I1"].note = "the service promises no order"
        _each(frames, made, rows)
        if run.order == FIFO:
            both = rows.filter(fn.col("key").isNotNull() & (fn.col("n_key") == 1))
            both = both.withColumn("block", fn.floor(fn.col("at") / (BLOCK << OFFSET_BITS)))
            keys = ["site", "life", "sub_site", "sub_life"]
            for row in falling(both, keys, "at").limit(ROWS).collect():
                name = f"number {row.number} of source {row.source}"
                detail = f"{name} comes after a later one of the same site"
                made.add([Finding("I1", row.site, row.time, detail, -1, row.source, row.number,
                                  row.fp)])  # fmt: skip
        if control.settled:
            _owed(frames, made, rows, sent)
    finally:
        rows.unpersist()


def _each(frames: Frames, made: Judgement, rows: DataFrame) -> None:
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
            made.add([Finding("I4", row.site, row.time, f"nobody submitted {name}", *more)])
            continue
        if row.sub_site != row.source:
            detail = f"{name} was submitted by site {row.sub_site}"
            made.add([Finding("I4", row.site, row.time, detail, *more)])
        if row.n > row.n_key:
            detail = f"{name} is delivered a second time"
            made.add([Finding("I4", row.site, row.last_time, detail, *more, row.time)])
        if row.sub_time > row.time:
            detail = f"{name} is delivered before it is submitted"
            made.add([Finding("I4", row.site, row.time, detail, *more)])
        if row.stray:
            detail = f"{name} is not destined to this site"
            made.add([Finding("I8", row.site, row.time, detail, *more, row.sub_time)])


def _owed(frames: Frames, made: Judgement, rows: DataFrame, sent: DataFrame) -> None:
    """I2, or I8 where messages have destinations: what is owed has been delivered."""
    control = frames.control
    spans = [
        (source, site, since, till)
        for (source, site), both in control.owed.items()
        if site in control.up
        for since, till in both
    ]
    name = "I8" if frames.addressed else "I2"
    if not spans:
        return
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
        made.add([Finding(name, row.site, control.last_ns, detail, -1, row.sub_site, -1,
                          row.fp, row.sub_time)])  # fmt: skip
    about = due.agg(fn.count("*").alias("n")).first()
    assert about is not None
    made.invariants[name].checked = max(made.invariants[name].checked, about.n)


def judge_own(frames: Frames, made: Judgement) -> None:
    """I5: own messages of a site that stays up are delivered to it, or it is told."""
    control = frames.control
    verdict = made.invariants["I5"]
    verdict.note = ""
    lives = [(site, control.last_own_life(site)) for site in sorted(control.up)]
    if not lives:
        return
    last = frames.spark.createDataFrame(lives, "site int, life int")
    sent = frames.submits.join(fn.broadcast(last), ["site", "life"], "left_semi")
    sent = sent.filter(fn.col("to").isNull() | fn.array_contains("to", fn.col("site")))
    about = sent.agg(fn.count("*").alias("n")).first()
    assert about is not None
    verdict.checked = about.n
    mine = frames.deliveries.filter(fn.col("source") == fn.col("site"))
    left = sent.join(mine.select("fp", "site"), ["fp", "site"], "left_anti")
    back = [(fp, site) for site, fps in control.given_back.items() for fp in fps]
    if back:
        given = frames.spark.createDataFrame(back, "fp long, site int")
        left = left.join(fn.broadcast(given), ["fp", "site"], "left_anti")
    gaps = [(gap.site, gap.lo, gap.hi) for gap in control.gaps]
    if gaps:
        # What stands in a gap has its fate: it is to be had elsewhere.
        told = fn.broadcast(frames.spark.createDataFrame(gaps, "site int, lo long, hi long"))
        there = frames.deliveries.select("fp", "pos").join(
            told, (fn.col("pos") >= fn.col("lo")) & (fn.col("pos") < fn.col("hi"))
        )
        left = left.join(there.select("fp", "site"), ["fp", "site"], "left_anti")
    bounds = _excused(frames, mine, sent)
    if bounds:
        table = fn.broadcast(frames.spark.createDataFrame(bounds, "site int, bound long"))
        left = left.join(table, "site", "left").filter(
            fn.col("bound").isNull() | (fn.col("key") >= fn.col("bound"))
        )
    for row in left.limit(ROWS).collect():
        detail = "an own message was neither delivered to its site nor declared indeterminate"
        verdict.add([Finding("I5", row.site, control.last_ns, detail, -1, row.site, -1, row.fp,
                             row.time)])  # fmt: skip


def _excused(frames: Frames, mine: DataFrame, sent: DataFrame) -> list[tuple[int, int]]:
    """Per site the key below which an own message may have any fate.

    An `indeterminate` excuses what was submitted before it; once an own message with a number
    behind its range is delivered, only what was submitted before that one.
    """
    control = frames.control
    spans: list[Any] = []
    bounds: dict[Any, Any] = {}
    for site in control.up:
        notices = control.unsure.get(site, [])
        for i, (moment, hi) in enumerate(notices):
            till = notices[i + 1][0] if i + 1 < len(notices) else ALWAYS
            spans.append((site, moment, till, hi))
    if not spans:
        return []
    told = frames.spark.createDataFrame(spans, "site int, since long, till long, hi long")
    behind = (
        mine.join(fn.broadcast(told), "site")
        .filter((fn.col("moment") >= fn.col("since")) & (fn.col("moment") < fn.col("till"))
                & (fn.col("number") >= fn.col("hi")))
        .groupBy("site", "since")
        .agg(fn.min_by("fp", "moment").alias("fp"))
        .join(sent.select("fp", "site", "key"), ["fp", "site"], "left")
        .collect()
    )  # fmt: skip
    seen = {(row.site, row.since): row.key for row in behind}
    for site, since, till, _ in spans:
        key = seen.get((site, since))
        if key is None and till == ALWAYS and (site, since) not in seen:
            key = since << OFFSET_BITS
        if key is not None:
            bounds[site] = max(bounds.get(site, -1), key)
    return sorted(bounds.items())


def falling(rows: DataFrame, keys: list[str], along: str) -> DataFrame:
    """Rows whose `key` is not above that of every row before them, along `along`.

    Within a block by a window over it, from block to block by one over the blocks.
    """
    inside = Window.partitionBy(*keys, "block").orderBy(along)
    so_far = fn.max("key").over(inside.rowsBetween(Window.unboundedPreceding, -1))
    names = ("pos", "at", "site", "time", "source", "number", "fp")
    told = [name for name in names if name in rows.columns]
    within = rows.withColumn("top", so_far).filter(fn.col("key") <= fn.col("top")).select(*told)
    blocks = rows.groupBy(*keys, "block").agg(
        fn.max("key").alias("high"), fn.min("key").alias("low"),
        *(fn.min_by(name, "key").alias(f"low_{name}") for name in told),
    )  # fmt: skip
    over = Window.partitionBy(*keys).orderBy("block")
    before = fn.max("high").over(over.rowsBetween(Window.unboundedPreceding, -1))
    across = blocks.withColumn("top", before).filter(fn.col("low") <= fn.col("top"))
    across = across.select(*(fn.col(f"low_{name}").alias(name) for name in told))
    return within.unionByName(across).distinct()
