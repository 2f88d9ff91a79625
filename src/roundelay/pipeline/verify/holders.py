"""How many sites have a message when it is first committed, as far as PDUs in the trace show it.

The token protocol promises L + 1 (CM84 §4: a message is committed once the token was passed on L
times, and whoever accepts the token has all messages before it).  A site has a message when it sent
it, when a PDU that carries it arrived, or when it commits it; what came in bulk has no names in the
trace, so whoever got any of that meanwhile is given the benefit of the doubt.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as fn

from roundelay.pipeline.verify.frames import ROWS, Frames
from roundelay.pipeline.verify.verdict import Finding, Judgement

CARRIERS: Final = ("B", "RETX_MSG")
"""PDUs of the token protocol that bring one message, with its name."""
BULK: Final = ("RETX_BULK", "RECOVER_DATA")
"""PDUs that bring several, without."""


def judge_holders(frames: Frames, made: Judgement) -> None:
    """At its first commit a message is at L + 1 sites, as far as PDUs in the trace show it."""
    verdict, run = made.invariants["holders"], frames.run
    if run.resilience is None:
        verdict.note = "no L: a promise of the token protocol, if the trace says what L is"
        return
    if not frames.sends:
        verdict.note = "the trace has no transmissions"
        return
    sends = frames.rows.filter(fn.col("event") == "SEND")
    carried = sends.filter(fn.col("kind").isin(*CARRIERS)).select(
        "ref", "source", "number", "moment", fn.col("site").alias("peer")
    )
    if carried.limit(1).count() == 0:
        verdict.note = "the trace has no transmissions"
        return
    arrived = frames.rows.filter(fn.col("event") == "RECEIVE").select(
        "ref", "peer", "site", fn.col("moment").alias("came")
    )
    commits = frames.deliveries.groupBy("source", "number").agg(
        fn.min("moment").alias("commit"),
        *(fn.min_by(name, "moment").alias(name) for name in ("site", "time", "pos")),
    )  # fmt: skip
    has = (
        carried.join(arrived, ["ref", "peer"])
        .filter(fn.col("came") >= fn.col("moment"))
        .select("source", "number", "site", "came")
        .unionByName(carried.select("source", "number", fn.col("peer").alias("site"),
                                    fn.col("moment").alias("came")))
        .unionByName(commits.select("source", "number", "site", fn.col("commit").alias("came")))
        .groupBy("source", "number", "site")
        .agg(fn.min("came").alias("came"))
    )  # fmt: skip
    held = (
        commits.withColumnRenamed("site", "by")
        .join(has, ["source", "number"])
        .filter(fn.col("came") <= fn.col("commit"))
        .groupBy("source", "number", "by", "time", "pos", "commit")
        .agg(fn.count("*").alias("holders"), fn.min("came").alias("since"),
             fn.collect_set("site").alias("sites"))
    )  # fmt: skip
    held = held.cache()
    try:
        verdict.checked = held.count()
        few = held.filter(fn.col("holders") < run.resilience + 1)
        # Whoever got messages in bulk meanwhile may have this one.
        bulk = (
            sends.filter(fn.col("kind").isin(*BULK))
            .select("ref", fn.col("site").alias("peer"))
            .join(arrived, ["ref", "peer"])
            .select(fn.col("site").alias("bulk_site"), "came")
        )
        rows = (
            few.limit(ROWS)
            .join(bulk, (fn.col("came") >= fn.col("since")) & (fn.col("came") <= fn.col("commit")),
                  "left")
            .groupBy("source", "number", "by", "time", "pos")
            .agg(fn.first("sites").alias("sites"), fn.collect_set("bulk_site").alias("bulk"))
        )  # fmt: skip
        for row in rows.collect():
            sites = sorted({*row.sites, *row.bulk})
            if len(sites) <= run.resilience:
                detail = (
                    f"commits position {row.pos}, which only the sites {sites} have; "
                    f"L = {run.resilience}"
                )
                verdict.add([Finding("holders", row.by, row.time, detail, row.pos, row.source,
                                     row.number)])  # fmt: skip
    finally:
        held.unpersist()
