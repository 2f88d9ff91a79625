"""A stream from one group into another, killed again and again: none lost, none twice.

    python -m bench.stream_kills                          1,000,000 messages, 20 kills
    python -m bench.stream_kills --messages 20000 --kills 2

A node records two groups.  Numbered messages go into the first while a query copies them into the
second through the data source and the sink.  At random moments the query is killed with SIGKILL:
in turn the driver alone, so that the Python workers it leaves behind go on for a while, and all of
its processes.  Then it is started again from its checkpoint.  At the end the second group's journal
is read: each number must be there once, and in order.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from bench.children import ROOT
from roundelay.client.publisher import Publisher
from roundelay.client.recorder import RecorderClient
from roundelay.core.bundle import Bundle
from roundelay.journal.format import GAP
from roundelay.journal.reader import Reader
from roundelay.pipeline.sink.envelope import decode_marker
from tools.recording_node import RecordingNode

BYTES = 64
TOGETHER = 256
READY = "ready"


def load(where: str, messages: int, rate: float) -> None:
    """Numbered messages into the first group, at most so many a second."""

    def parcels() -> Iterator[Bundle]:
        begun = time.monotonic()
        for first in range(0, messages, TOGETHER):
            ahead = first / rate - (time.monotonic() - begun)
            if ahead > 0:
                time.sleep(ahead)
            numbers = range(first, min(messages, first + TOGETHER))
            yield Bundle.of(*[b"%020d" % one + bytes(BYTES - 20) for one in numbers])

    with Publisher(where, "token:in", name="load", timeout_s=300) as publisher:
        for _ in publisher.send(parcels()):
            pass


def query(where: str, checkpoint: str, rows: int) -> None:
    """The query, in a process of its own; runs until it is killed."""
    from roundelay.pipeline.session import SparkOptions, spark_session

    with spark_session("stream", SparkOptions(master="local[2]", conf=CONF)) as spark:
        source = spark.readStream.format("roundelay").option("recorder", where)
        source = source.option("group", "token:in").option("maxRowsPerTrigger", rows)
        sink = source.load().select("data").writeStream.format("roundelay").option("node", where)
        sink = sink.option("group", "token:out").option("checkpointLocation", checkpoint)
        running = sink.trigger(processingTime="200 milliseconds").start()
        print(READY, flush=True)
        running.awaitTermination()


CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Query:
    """A life of the query."""

    def __init__(self, where: str, checkpoint: Path, rows: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.stream_kills", "--query", where, str(checkpoint),
             "--rows", str(rows)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line != READY:
            raise SystemExit(f"the query ended by itself: {line!r}")

    def kill(self, everything: bool) -> None:
        """The driver (Python and Java), or all that it started too."""
        session = self.process.pid
        os.killpg(session, signal.SIGKILL)
        if everything:
            for process in processes_of(session):
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self.process.wait()


def processes_of(session: int) -> list[int]:
    """Processes of a session, as the kernel knows them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[3]) == session:
                found.append(int(folder.name))
    return found


def recorded(where: str, group: str) -> int:
    with RecorderClient(where, group) as client:
        return client.status().next


def numbers_in(folder: Path) -> Iterator[int]:
    for run in Reader(folder).read():
        if run.flags & GAP:
            raise SystemExit(f"{folder}: a gap from {run.position} to {run.end}")
        for message in run.bundle:
            if decode_marker(message) is None:
                yield int(message[:20])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=20_000, help="of a micro-batch, at most")
    parser.add_argument("--rate", type=float, default=10_000, help="messages a second that come in")
    parser.add_argument(
        "--life", type=float, default=5.0, help="seconds of work before a kill, at most"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--query", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.query:
        where, checkpoint = options.query
        query(where, checkpoint, options.rows)
        return 0
    chance = random.Random(options.seed)
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as scratch,
        RecordingNode(Path(scratch, "node"), ["in", "out"]) as node,
    ):
        checkpoint = Path(scratch, "checkpoint")
        loading = threading.Thread(
            target=load, args=(node.where, options.messages, options.rate), daemon=True
        )
        loading.start()
        everything = False
        for number in range(options.kills):
            life = Query(node.where, checkpoint, options.rows)
            try:
                before = recorded(node.where, "token:out")
                life.wait_until_ready()
                if chance.random() < 0.8:  # while it is at work; otherwise while it comes to it
                    _wait_until_moving(life, node.where, before)
                time.sleep(chance.uniform(0, options.life))
            finally:
                life.kill(everything)
            there = recorded(node.where, "token:out")
            what = "all processes" if everything else "the driver"
            print(f"kill {number + 1:2d} of {what}: {there:9,d} messages in token:out", flush=True)
            everything = not everything
        life = Query(node.where, checkpoint, options.rows)
        try:
            loading.join()
            _wait_until_through(life, node.where, options.messages)
        finally:
            life.kill(True)
        node.stop()  # so that the journal is complete
        found = list(numbers_in(node.journal("token:out")))
        twice = len(found) - len(set(found))
        lost = options.messages - len(set(found))
        ordered = all(one <= another for one, another in pairwise(found))
    verdict = "none lost, none twice" if not (twice or lost) else "WRONG"
    print(
        f"{options.messages:,} messages, {options.kills} kills: {len(found):,} arrived, "
        f"{lost} lost, {twice} twice, {'in order' if ordered else 'OUT OF ORDER'}: {verdict} "
        f"({time.monotonic() - begun:.0f} s)"
    )
    return 0 if not (twice or lost) and ordered else 1


def _wait_until_moving(life: Query, where: str, before: int) -> None:
    end = time.monotonic() + 120
    while recorded(where, "token:out") == before and time.monotonic() < end:
        if life.process.poll() is not None:
            raise SystemExit("the query ended by itself")
        time.sleep(0.05)


def _wait_until_through(life: Query, where: str, messages: int) -> None:
    """The second group has as many messages as the first, and its markers, and then no more."""
    last, since = -1, time.monotonic()
    while True:
        if life.process.poll() is not None:
            raise SystemExit("the query ended by itself")
        there = recorded(where, "token:out")
        if there != last:
            last, since = there, time.monotonic()
        elif there > messages and time.monotonic() - since > 8:
            return
        elif time.monotonic() - since > 300:
            raise SystemExit(f"nothing moves: {there} messages of {messages} in token:out")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
