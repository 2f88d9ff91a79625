"""How many sites have a message when it is first committed, as far as PDUs in the trace show it.

The token protocol promises L + 1 (CM84 §4: a message is committed once the token was passed on L
times, and whoever accepts the token has all messages before it).  A site has a message when it sent
it, when a PDU that carries it arrived, or when it commits it; what came in bulk has no names in the
trace, so whoever got any of that meanwhile is given the benefit of the doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from roundelay.pipeline.verify.frames import Frames, picked
from roundelay.pipeline.verify.verdict import NO_SENDS, RunJudgement
from roundelay.trace.checkers.verdict import Violation

CARRIERS: Final = ("B", "RETX_MSG")
"""PDUs of the token protocol that bring one message, with its name."""
BULK: Final = ("RETX_BULK", "RECOVER_DATA")
"""PDUs that bring several, without."""
ROWS: Final = 10_000
"""Counterexamples that are fetched; no more are counted."""


def judge_holders(frames: Frames, judgement: RunJudgement) -> None:
    """At its first commit a message is at L + 1 sites, as far as PDUs in the trace show it."""
    verdict, level = judgement.invariants["holders"], frames.run.resilience
    if level is None:
        verdict.note = "no L: a promise of the token protocol, if the trace says what L is"
        return
    sends = _transmissions(frames, CARRIERS)
    if sends.limit(1).count() == 0:
        verdict.note = NO_SENDS
        return
    held = _holders(frames, sends).cache()
    try:
        verdict.checked = held.count()
        few = held.filter(fn.col("holders") < level + 1).limit(ROWS)
        verdict.add(
            _too_few(row, level)
            for row in _with_bulk(frames, few).collect()
            if len({*row.sites, *row.bulk}) <= level
        )
    finally:
        held.unpersist()


def _too_few(row: Any, level: int) -> Violation:
    sites = sorted({*row.sites, *row.bulk})
    detail = f"commits position {row.pos}, which only the sites {sites} have; L = {level}"
    return Violation("holders", row.by, row.time, detail, row.pos, row.source, row.number)


def _transmissions(frames: Frames, kinds: Sequence[str]) -> DataFrame:
    """PDUs of these kinds that were sent: which, when, by whom (`peer`)."""
    sends = frames.rows.filter((fn.col("event") == "SEND") & fn.col("kind").isin(*kinds))
    return sends.select("ref", "source", "number", "moment", fn.col("site").alias("peer"))


def _arrivals(frames: Frames, sends: DataFrame) -> DataFrame:
    """Transmissions with each site at which one `came`, and when."""
    arrived = frames.rows.filter(fn.col("event") == "RECEIVE").select(
        "ref", "peer", "site", fn.col("moment").alias("came")
    )
    return sends.join(arrived, ["ref", "peer"])


def _holders(frames: Frames, sends: DataFrame) -> DataFrame:
    """Every message at its first commit, `by` a site: how many have it, which, and since when."""
    name = ["source", "number"]
    commits = (
        frames.deliveries()
        .groupBy(*name)
        .agg(
            fn.min("moment").alias("commit"), *picked(fn.min_by, ("site", "time", "pos"), "moment")
        )
    )
    arrived = _arrivals(frames, sends).filter(fn.col("came") >= fn.col("moment"))
    sent = sends.select(*name, fn.col("peer").alias("site"), fn.col("moment").alias("came"))
    first = commits.select(*name, "site", fn.col("commit").alias("came"))
    has = (
        arrived.select(*name, "site", "came")
        .unionByName(sent)
        .unionByName(first)
        .groupBy(*name, "site")
        .agg(fn.min("came").alias("came"))
    )
    return (
        commits.withColumnRenamed("site", "by")
        .join(has, name)
        .filter(fn.col("came") <= fn.col("commit"))
        .groupBy(*name, "by", "time", "pos", "commit")
        .agg(
            fn.count("*").alias("holders"),
            fn.min("came").alias("since"),
            fn.collect_set("site").alias("sites"),
        )
    )


def _with_bulk(frames: Frames, held: DataFrame) -> DataFrame:
    """With the sites that got messages in `bulk` meanwhile: they may have this one."""
    bulk = _arrivals(frames, _transmissions(frames, BULK).drop("source", "number"))
    bulk = bulk.select(fn.col("site").alias("bulk_site"), "came")
    meanwhile = (fn.col("came") >= fn.col("since")) & (fn.col("came") <= fn.col("commit"))
    return (
        held.join(bulk, meanwhile, "left")
        .groupBy("source", "number", "by", "time", "pos")
        .agg(fn.first("sites").alias("sites"), fn.collect_set("bulk_site").alias("bulk"))
    )
