"""The pipeline on a real Spark cluster: a master and two workers, started on this machine.

    make cluster-test

Everything comes from the installed packages: `spark-class` from PySpark, the Java that
`roundelay.pipeline.spark.interpreters` finds.  Each executor must work with the package that the
session sent it, and then `sweep`, `verify`, `reconcile` and a stream from one group into another
run there, each as a user would start it.  Whatever happens, nothing is left running.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.stream_kills import load, numbers_in, processes_of
from tools.recording_node import PROGRAM, RecordingNode

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
START_S = 180
JOB_S = 900
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}
GRID = """\
messages = 60
seeds = 2
[[grid]]
protocol = ["token", "positive-ack"]
sites = [3, 4]
loss = [0.0, 0.1]
"""
MESSAGES = 5000


class Cluster:
    """A standalone master and its workers."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.master = ""
        self._port, self._page = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._daemon(
            "master.Master", "--host", "127.0.0.1", "--port", str(self._port),
            "--webui-port", str(self._page),
        )  # fmt: skip
        self.master = f"spark://127.0.0.1:{self._port}"
        wait_for("the master to answer", self._answers)
        for number in range(WORKERS):
            self._daemon(
                "worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g",
                "--webui-port", "0", "--work-dir", str(self.scratch / f"work{number}"), self.master,
            )  # fmt: skip
        wait_for(f"{WORKERS} workers", lambda: self._state().get("aliveworkers") == WORKERS)

    def _daemon(self, name: str, *arguments: str) -> None:
        import pyspark

        from roundelay.pipeline.session import PACKAGE
        from roundelay.pipeline.spark.interpreters import home_for_spark

        home = Path(pyspark.__file__).parent
        log4j = PACKAGE / "pipeline" / "log4j2.properties"
        environment = os.environ | {
            "JAVA_HOME": str(home_for_spark()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self.scratch / "local"),
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={log4j}",
            # Executors must not find the package here by chance.
            "PYTHONPATH": "",
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        self._processes.append(
            subprocess.Popen(
                [*command, *arguments], env=environment, cwd=self.scratch, start_new_session=True
            )
        )

    def _state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _answers(self) -> bool:
        try:
            return bool(self._state())
        except OSError:
            return False

    def logs(self) -> str:
        """The last words of the executors."""
        found = []
        for file in sorted(self.scratch.glob("work*/app-*/*/stderr"))[-4:]:
            found.append(f"--- {file}\n" + "\n".join(file.read_text().splitlines()[-15:]))
        return "\n".join(found)

    def stop(self) -> None:
        sessions = [process.pid for process in self._processes]
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
        for session in sessions:
            for process_id in processes_of(session):
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
        for process in self._processes:
            process.wait()


@contextmanager
def cluster(scratch: Path) -> Iterator[Cluster]:
    made = Cluster(scratch)
    try:
        made.start()
        yield made
    except BaseException:
        print(made.logs(), file=sys.stderr)
        raise
    finally:
        made.stop()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"cluster-test: waited {START_S} s for {what}")
        time.sleep(0.2)


# ------------------------------------------------------------------------ the jobs


def command(cluster: Cluster, *words: str, status: int = 0) -> Any:
    """`roundelay …` on the cluster; what it prints as JSON."""
    conf = [word for key, value in CONF.items() for word in ("--conf", f"{key}={value}")]
    done = subprocess.run(
        [str(PROGRAM), *words, "--json", "--master", cluster.master, *conf],
        stdout=subprocess.PIPE, text=True, timeout=JOB_S, cwd=ROOT, check=False,
    )  # fmt: skip
    if done.returncode != status:
        raise SystemExit(f"cluster-test: roundelay {words[0]} ended with {done.returncode}")
    return json.loads(done.stdout)


def shipped(spark: Any) -> str:
    """Every executor has the package from the session, and there are as many as workers."""

    def where(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        import roundelay

        for batch in batches:
            time.sleep(0.2)  # so that no executor does it all
            columns = {"executor": os.getcwd(), "package": roundelay.__file__}
            arrays = [pa.repeat(pa.scalar(text), batch.num_rows) for text in columns.values()]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    rows = spark.range(0, 16, 1, 16).mapInArrow(where, "executor string, package string")
    found = {(row.executor, row.package) for row in rows.collect()}
    for executor, package in found:
        assert "roundelay.zip" in package, f"{executor} uses {package}"
    assert len(found) == WORKERS, found
    return f"{len(found)} executors, each with the package that was sent to it"


def sweep(cluster: Cluster) -> str:
    grid = cluster.scratch / "grid.toml"
    grid.write_text(GRID)
    out = cluster.scratch / "sweep"
    command(cluster, "sweep", str(grid), "--out", str(out))
    import pyarrow.parquet as pq

    rows = pq.read_table(out / "runs.parquet").num_rows
    assert rows == 16, rows
    return f"{rows} runs"


def verify(cluster: Cluster) -> str:
    out = cluster.scratch / "run"
    words = ["simulate", "token", "--messages", "300", "--loss", "0.05", "--out", str(out)]
    subprocess.run([str(PROGRAM), *words], check=True, stdout=subprocess.DEVNULL, timeout=JOB_S)
    found = command(cluster, "verify", str(out))["invariants"]
    assert found
    assert all(one["holds"] for one in found.values()), found
    return f"{len(found)} invariants hold"


def reconcile(cluster: Cluster) -> str:
    from roundelay.core.bundle import Bundle
    from roundelay.journal.format import Run
    from roundelay.journal.journal import Journal, JournalConfig

    folders = []
    for number in range(3):
        folder = cluster.scratch / "journals" / f"recorder{number}"
        journal = Journal(folder, "token:orders", JournalConfig(sync="os"))
        for first in range(0, 6000, 100):
            if (first // 2000) != number:  # each lacks another third
                bundle = Bundle.of(*[b"message %d" % i for i in range(first, first + 100)])
                journal.add(Run(first, 1_790_000_000_000_000_000 + first, "ann", bundle))
                journal.commit()
        journal.close()
        folders.append(str(folder))
    out = cluster.scratch / "complete"
    command(cluster, "reconcile", *folders, "--out", str(out))
    rows = sum(file["rows"] for file in json.loads((out / "_archive.json").read_text())["files"])
    assert rows == 6000, rows
    return f"{rows} positions complete from three journals that lack some"


def stream(cluster: Cluster, spark: Any) -> str:
    with RecordingNode(cluster.scratch / "node", ["in", "out"]) as node:
        load(node.where, MESSAGES, rate=1e9)
        for _ in range(2):  # the second time there is nothing left to do
            source = spark.readStream.format("roundelay").option("recorder", node.where)
            source = source.option("group", "token:in").option("maxRowsPerTrigger", 2000)
            sink = source.load().select("data").writeStream.format("roundelay")
            sink = sink.option("node", node.where).option("group", "token:out")
            sink = sink.option("checkpointLocation", str(cluster.scratch / "checkpoint"))
            sink.trigger(availableNow=True).start().awaitTermination()
        node.stop()
        found = list(numbers_in(node.journal("token:out")))
    assert found == list(range(MESSAGES)), len(found)
    return f"{len(found)} messages, each once and in order"


def main() -> int:
    from roundelay.pipeline.session import SparkOptions, spark_session

    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is stopped

    def say(what: str, result: str) -> None:
        print(f"cluster-test {time.monotonic() - begun:6.1f} s  {what}: {result}", flush=True)

    scratch = Path(tempfile.mkdtemp(prefix="roundelay-cluster-"))
    try:
        with cluster(scratch) as made:
            say("cluster", f"a master and {WORKERS} workers at {made.master}")
            with spark_session("cluster", SparkOptions(master=made.master, conf=CONF)) as spark:
                say("package", shipped(spark))
                say("stream", stream(made, spark))
            say("sweep", sweep(made))
            say("verify", verify(made))
            say("reconcile", reconcile(made))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say("all", "passed, and everything is stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
