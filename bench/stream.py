"""Does a stream keep up with a live group?

    python -m bench.stream                        50,000 messages a second, a trigger every 2 s
    python -m bench.stream --rate 5000 --seconds 20

A node records a group; messages go into it at a steady rate, from a process of its own, while a
query reads them from the recorder and counts them by sender.  A query keeps up when, once it is
warm, its micro-batches take less than the time between two triggers and what waits does not grow.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.stream_kills import load, recorded
from roundelay.pipeline.session import SparkOptions, spark_session
from tools.recording_node import RecordingNode

WARM = 20_000
"""Messages before the clock starts: Spark's first micro-batches take their time."""
SETTLED_S = 6.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=50_000, help="messages a second")
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--trigger", type=float, default=2.0, help="seconds")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as scratch,
        RecordingNode(Path(scratch, "node"), ["in"]) as node,
        spark_session("stream", SparkOptions(master="local[2]")) as spark,
    ):
        source = spark.readStream.format("roundelay").option("recorder", node.where)
        table = source.option("group", "token:in").load()
        table = table.selectExpr("sender", "length(data) AS bytes", "seq")
        sink = table.writeStream.format("noop").option("checkpointLocation", f"{scratch}/check")
        query = sink.trigger(processingTime=f"{options.trigger} seconds").start()
        load(node.where, WARM, options.rate)
        query.processAllAvailable()
        messages = options.rate * options.seconds
        loading = multiprocessing.get_context("spawn").Process(
            target=load, args=(node.where, messages, options.rate)
        )
        loading.start()
        begun = time.time()
        waits = []
        while loading.is_alive():
            time.sleep(0.5)
            waits.append((time.time() - begun, recorded(node.where, "token:in") - behind(query)))
        came = (recorded(node.where, "token:in") - WARM) / (time.time() - begun)
        progress: list[Any] = [one for one in query.recentProgress if one.numInputRows > WARM]
        query.processAllAvailable()
        total = sum(one.numInputRows for one in query.recentProgress)
        query.stop()
    assert total == messages + WARM, (total, messages)
    took = sorted(one.durationMs["triggerExecution"] / 1000 for one in progress)
    median = took[len(took) // 2]
    late = [behind for at, behind in waits if at > SETTLED_S]
    most = max(late, default=0)
    print(f"{came:,.0f} messages/s came in (wanted {options.rate:,})")
    print(
        f"{len(took)} warm micro-batches, one every {options.trigger} s: median {median:.2f} s, "
        f"longest {took[-1]:.2f} s"
    )
    print(f"at most {most:,} messages waited, {most / options.rate:.1f} s of them")
    # A trigger's worth has come when a batch begins, and another while it is worked on.
    good = median < options.trigger and most <= 3 * options.trigger * options.rate
    print("keeps up" if good else "FALLS BEHIND")
    return 0 if good else 1


def behind(query: Any) -> int:
    """The position up to which the query has read."""
    last = query.lastProgress
    offset = last and last.sources[0].endOffset
    return int(json.loads(offset)["token:in"]) if offset else 0


if __name__ == "__main__":
    sys.exit(main())
