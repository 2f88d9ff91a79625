"""The oracle: the same invariants as joins, groups and windows of Spark SQL, for every order.

Written without regard to the fast way (`verify.fast`), so that each can be held against the other.
Positions are cut into blocks of `BLOCK`; a window looks at one block of one site, and a second,
small one at the edges of the blocks.  So no stage has a single partition, and what reaches the
driver are counterexamples, at most `ROWS` of a kind, and the run's special rows.

Here is total order; `verify.sql_sources` has the rest, `verify.holders` the holders at commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from roundelay.pipeline.verify.control import ALWAYS, judge_lists
from roundelay.pipeline.verify.frames import ROWS, Frames
from roundelay.pipeline.verify.holders import judge_holders
from roundelay.pipeline.verify.runs import Run
from roundelay.pipeline.verify.sql_clean import Counts, looked_at
from roundelay.pipeline.verify.sql_sources import BLOCK, falling, judge_own, judge_sources
from roundelay.pipeline.verify.verdict import Finding, Judgement
from roundelay.trace.checkers.checkers import TOTAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def judge(spark: SparkSession, run: Run) -> Judgement:
    """The verdict on everything."""
    frames = Frames(spark, run)
    control = frames.control
    made = Judgement.of(run, "sql", control.settled)
    clean = looked_at(frames) if run.order == TOTAL else None
    if clean is not None:
        _clean(frames, made, clean)
    elif run.order == TOTAL:
        _total(frames, made)
    else:
        judge_sources(frames, made)
    if clean is not None and control.settled:
        made.invariants["I5"].checked = clean.submits
    elif control.settled:
        judge_own(frames, made)
    else:
        for name in ("I2", "I5"):
            made.invariants[name].note = "the trace has no end mark: not judged"
    judge_holders(frames, made)
    return made


def _clean(frames: Frames, made: Judgement, counts: Counts) -> None:
    """What there is to say about messages that are all right; lists may still be wrong."""
    control, checked = frames.control, made.invariants
    made.add(judge_lists(control))
    checked["I1"].checked = checked["I4"].checked = counts.deliveries
    checked["lists"].checked = len(control.versions())
    checked["I3"].checked = len(control.views) + (counts.positions if control.views else 0)
    if control.settled:
        checked["I2"].checked = counts.positions * len(control.up)


def _canon(frames: Frames) -> DataFrame:
    """What stands at each position, according to whoever delivered it first."""
    names = ("fp", "source", "number", "seq", "site", "time")
    return frames.deliveries.groupBy("pos").agg(
        fn.min("moment").alias("moment"),
        *(fn.min_by(name, "moment").alias(name) for name in names),
        fn.count("*").alias("deliveries"),
        (
            (fn.min("fp") != fn.max("fp"))
            | (fn.min("source") != fn.max("source"))
            | (fn.min("number") != fn.max("number"))
        ).alias("differs"),
    )


def _total(frames: Frames, made: Judgement) -> None:
    canon = _canon(frames).cache()
    try:
        _total_of(frames, made, canon)
    finally:
        canon.unpersist()


def _total_of(frames: Frames, made: Judgement, canon: DataFrame) -> None:
    control, checked = frames.control, made.invariants
    about = canon.agg(fn.count("*").alias("n"), fn.sum("deliveries").alias("d")).first()
    assert about is not None
    checked["I1"].checked = checked["I4"].checked = int(about.d or 0)
    made.add(judge_lists(control))
    checked["lists"].checked = len(control.versions())
    checked["I3"].checked = len(control.views) + (about.n if control.views else 0)
    made.add(_stretches(frames, about.n, made))
    made.add(_differing(frames, canon))
    made.add(_commits(frames, canon))
    made.add(_numbers(frames, canon))
    made.add(_sources(frames, canon))


def _stretches(frames: Frames, positions: int, made: Judgement) -> Iterable[Finding]:
    """I1, I4: each site has every position once, in order; I2: up to the end."""
    control = frames.control
    keys = ["site", "life", "block"]
    rows = frames.deliveries.withColumn("block", fn.floor(fn.col("pos") / BLOCK))
    w = Window.partitionBy(*keys).orderBy("pos", "place")
    for name in ("pos", "place", "time"):
        rows = rows.withColumn(f"last_{name}", fn.lag(name).over(w))
    bad = (
        (fn.col("pos") != fn.col("last_pos") + 1)
        | (fn.col("place") < fn.col("last_place"))
        | (fn.col("time") < fn.col("last_time"))
    )
    what = fn.struct("pos", "place", "time", "source", "number", "last_pos", "last_place",
                    "last_time")  # fmt: skip
    blocks = rows.groupBy(*keys).agg(
        fn.min("pos").alias("lo"), fn.max("pos").alias("hi"),
        fn.min_by("place", "pos").alias("lo_place"), fn.max_by("place", "pos").alias("hi_place"),
        fn.min_by("time", "pos").alias("lo_time"), fn.max_by("time", "pos").alias("hi_time"),
        fn.slice(fn.collect_list(fn.when(bad, what)), 1, 1000).alias("bad"),
    )  # fmt: skip
    w = Window.partitionBy("site", "life").orderBy("block")
    last = {name: fn.lag(name).over(w) for name in ("hi", "hi_place", "hi_time")}
    edges = blocks.select(
        *keys, "lo", "hi", "lo_place", "lo_time", "bad",
        fn.max("hi").over(Window.partitionBy("site", "life")).alias("top"),
        *(value.alias(f"last_{name}") for name, value in last.items()),
    )  # fmt: skip
    odd = (
        (fn.size("bad") > 0)
        | (fn.col("lo") != fn.coalesce(fn.col("last_hi"), fn.lit(-1)) + 1)
        | (fn.col("lo_place") < fn.col("last_hi_place"))
        | (fn.col("lo_time") < fn.col("last_hi_time"))
    )
    edges = edges.cache()
    try:
        tops = edges.groupBy("site", "life").agg(fn.max("top").alias("top")).collect()
        wrong = edges.filter(odd).limit(ROWS).collect()
    finally:
        edges.unpersist()
    for row in wrong:
        site, life = row.site, row.life
        last_hi = -1 if row.last_hi is None else row.last_hi
        if row.lo > last_hi + 1 and not control.covered(
            site, life, last_hi + 1, row.lo, row.lo_time
        ):
            yield _skipped(site, row.lo_time, last_hi + 1, row.lo)
        if row.last_hi is not None and (
            row.lo_place < row.last_hi_place or row.lo_time < row.last_hi_time
        ):
            yield _backwards(site, row.last_hi_time, last_hi, row.lo, row.lo_time)
        for one in row.bad:
            if one.pos == one.last_pos:
                detail = f"delivers position {one.pos} again"
                yield Finding("I4", site, one.time, detail, one.pos, one.source, one.number,
                              from_ns=one.last_time)  # fmt: skip
                continue
            if one.place < one.last_place or one.time < one.last_time:
                yield _backwards(site, one.last_time, one.last_pos, one.pos, one.time)
            if one.pos > one.last_pos + 1 and not control.covered(
                site, life, one.last_pos + 1, one.pos, one.time
            ):
                yield _skipped(site, one.time, one.last_pos + 1, one.pos)
    if control.settled:
        yield from _ends(frames, {(r.site, r.life): r.top + 1 for r in tops})
        made.invariants["I2"].checked = positions * len(control.up)


def _ends(frames: Frames, tops: dict[tuple[int, int], int]) -> Iterable[Finding]:
    control = frames.control
    stand = {
        site: control.beyond(site, tops.get((site, control.last_life(site)), 0))
        for site in frames.run.users
    }
    end = max([*tops.values(), *stand.values()], default=0)
    for site in sorted(control.up):
        if stand[site] < end:
            detail = f"never delivered the positions {stand[site]} to {end - 1}, which others did"
            yield Finding("I2", site, control.last_ns, detail, seq=stand[site])


def _differing(frames: Frames, canon: DataFrame) -> Iterable[Finding]:
    """I1: one message at every position; I2 if the first is gone; I4: one name."""
    control = frames.control
    first = canon.filter("differs").select(
        "pos", *(fn.col(name).alias(f"first_{name}") for name in
                 ("fp", "source", "number", "site", "time"))
    )  # fmt: skip
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
            yield Finding("I4", row.site, row.time, f"{detail} {was}", *more)
            continue
        yield Finding("I1", row.site, row.time, f"{detail} was {was}", *more)
        if row.first_site == row.site or not control.is_up(row.first_site, row.time):
            detail = f"position {row.pos} was replaced: no site that is up has the first"
            yield Finding("I2", row.site, row.time, detail, *more)
        if not row.known:
            detail = f"position {row.pos}: nobody submitted this content"
            yield Finding("I4", row.site, row.time, detail, *more)


def _commits(frames: Frames, canon: DataFrame) -> Iterable[Finding]:
    """I3: whoever is first to commit behind the start of a list has that list in force."""
    control = frames.control
    starts, ranks = control.required()
    if not len(starts):
        return
    versions = control.versions()
    ends = [*starts[1:].tolist(), ALWAYS]
    least = frames.spark.createDataFrame(
        list(zip(starts.tolist(), ends, ranks.tolist(), strict=True)),
        "start long, till long, least long",
    )
    spans = []
    for site in frames.run.users:
        times, held = control.in_force(site)
        edges = [-1, *times.tolist(), ALWAYS]
        spans += [
            (site, edges[i], edges[i + 1], rank) for i, rank in enumerate([-1, *held.tolist()])
        ]
    force = frames.spark.createDataFrame(spans, "whose int, since long, upto long, held long")
    back = [(site, time) for site, times in control.returned.items() for time in times]
    rows = (
        canon.join(fn.broadcast(least), (fn.col("pos") >= fn.col("start"))
                   & (fn.col("pos") < fn.col("till")))
        .join(fn.broadcast(force), (fn.col("site") == fn.col("whose"))
              & (fn.col("time") >= fn.col("since")) & (fn.col("time") < fn.col("upto")))
        .filter(fn.col("held") < fn.col("least"))
    )  # fmt: skip
    for row in rows.limit(ROWS).collect():
        if (row.site, row.time) in back:
            continue
        old = "none" if row.held < 0 else ".".join(map(str, versions[row.held]))
        new = ".".join(map(str, versions[row.least]))
        detail = (
            f"commits position {row.pos} under list {old}, but list {new} starts at position "
            f"{row.start}"
        )
        yield Finding("I3", row.site, row.time, detail, row.pos)


def _numbers(frames: Frames, canon: DataFrame) -> Iterable[Finding]:
    """I4: the numbers of a source rise from bundle to bundle."""
    rows = canon.select("pos", "source", "number", "seq", "time", "site").withColumn(
        "block", fn.floor(fn.col("pos") / BLOCK)
    )
    w = Window.partitionBy("source", "block").orderBy("pos")
    lagged = rows.select("*", fn.lag("number").over(w).alias("last"),
                         fn.lag("seq").over(w).alias("last_seq"))  # fmt: skip
    edge = rows.groupBy("source", "block").agg(
        fn.min("pos").alias("pos"), fn.min_by("number", "pos").alias("number"),
        fn.min_by("seq", "pos").alias("seq"), fn.min_by("time", "pos").alias("time"),
        fn.min_by("site", "pos").alias("site"), fn.max_by("number", "pos").alias("to"),
        fn.max_by("seq", "pos").alias("to_seq"),
    )  # fmt: skip
    w = Window.partitionBy("source").orderBy("block")
    edge = edge.select("pos", "source", "number", "seq", "time", "site", "block",
                       fn.lag("to").over(w).alias("last"),
                       fn.lag("to_seq").over(w).alias("last_seq"))  # fmt: skip
    wrong = (fn.col("number") >= 0) & (
        (fn.col("number") < fn.col("last"))
        | ((fn.col("number") == fn.col("last")) & (fn.col("seq") != fn.col("last_seq")))
    )
    for row in lagged.filter(wrong).unionByName(edge.filter(wrong)).limit(ROWS).collect():
        detail = (
            f"position {row.pos} is number {row.number} of source {row.source}, "
            f"after its number {row.last}"
        )
        yield Finding("I4", row.site, row.time, detail, row.pos, row.source, row.number)


def _sources(frames: Frames, canon: DataFrame) -> Iterable[Finding]:
    """I4: submitted before, by whom it is said, and once; I1: each source's order."""
    pairs = _paired(frames, canon)
    wrong = fn.col("pos").isNotNull() & (
        fn.col("key").isNull()
        | (fn.col("sub_site") != fn.col("source"))
        | (fn.col("sub_time") > fn.col("time"))
    )
    for row in pairs.filter(wrong).limit(ROWS).collect():
        more = (row.pos, row.source, row.number, row.fp)
        name = f"number {row.number} of source {row.source}"
        if row.key is None and row.first_pos is not None and row.first_pos < row.pos:
            detail = f"{name} was delivered at position {row.first_pos} already"
        elif row.key is None:
            detail = f"nobody submitted {name} with this content"
        elif row.sub_site != row.source:
            detail = f"is said to come from site {row.source}; site {row.sub_site} submitted it"
        else:
            detail = "is delivered before it is submitted"
        yield Finding("I4", row.site, row.time, f"position {row.pos}: {detail}", *more)
    both = pairs.filter(fn.col("pos").isNotNull() & fn.col("key").isNotNull())
    both = both.withColumn("block", fn.floor(fn.col("pos") / BLOCK))
    keys = ["sub_site", "sub_life"]
    for row in falling(both, keys, "pos").limit(ROWS).collect():
        detail = f"number {row.number} of source {row.source} comes after a later one"
        yield Finding("I1", row.site, row.time, f"position {row.pos}: {detail}", row.pos,
                      row.source, row.number, row.fp)  # fmt: skip


def _paired(frames: Frames, canon: DataFrame) -> DataFrame:
    """Positions and submissions of the same message side by side.

    Of messages that are alike the k-th that was submitted is the k-th that was delivered.
    """
    order = Window.partitionBy("fp").orderBy("pos")
    # One group per message instead of a join: each row is a position, or a submission.
    positions = canon.select("fp", "pos", "site", "time", "source", "number")
    submits = frames.submits.select(
        "fp", "key", fn.col("site").alias("sub_site"), fn.col("time").alias("sub_time"),
        fn.col("life").alias("sub_life"),
    )  # fmt: skip
    union = positions.unionByName(submits, allowMissingColumns=True)
    told = ("pos", "site", "time", "source", "number", "key", "sub_site", "sub_time",
            "sub_life")  # fmt: skip
    grouped = union.groupBy("fp").agg(
        fn.count("pos").alias("n_pos"), fn.count("key").alias("n_key"),
        *(fn.max(name).alias(name) for name in told),
    )  # fmt: skip
    once = grouped.filter("n_pos <= 1 and n_key <= 1").select(
        "fp", *told, fn.lit(None).cast("long").alias("first_pos")
    )
    alike = grouped.filter("n_pos > 1 or n_key > 1").select("fp")
    p = positions.join(alike, "fp", "left_semi").select(
        "*", fn.row_number().over(order).alias("k"),
        fn.min("pos").over(Window.partitionBy("fp")).alias("first_pos"),
    )  # fmt: skip
    s = submits.join(alike, "fp", "left_semi").withColumn(
        "k", fn.row_number().over(Window.partitionBy("fp").orderBy("key"))
    )
    several = p.join(s, ["fp", "k"], "left").select("fp", *told, "first_pos")
    return once.unionByName(several)


def _skipped(site: int, time: int, lo: int, hi: int) -> Finding:
    detail = f"goes from position {lo} to {hi} without a word about what lies between"
    return Finding("I1", site, time, detail, lo)


def _backwards(site: int, time: int, position: int, later: int, since: int) -> Finding:
    detail = f"delivers position {position} after position {later}"
    return Finding("I1", site, time, detail, position, from_ns=since)
