"""The one place that starts Spark.

`--master` and `--remote` say where; without either it is all cores of this machine, or, inside
`spark-submit`, whatever that was told.  SPARK_HOME, SPARK_REMOTE and JAVA_HOME are respected.
Executors elsewhere get this package from here; what it needs of others (msgspec, pyarrow, numpy)
must be installed there.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from roundelay.core.errors import ConfigError, RoundelayError, UsageError
from roundelay.pipeline.spark.failures import full_text, one_line
from roundelay.pipeline.spark.interpreters import home_for_spark, python_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE: Final = Path(__file__).resolve().parents[1]

COMMON: Final = {
    "spark.ui.showConsoleProgress": "false",  # `progress` shows it
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A type that others read as a moment in UTC, as in archives; by default it is an old one.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Without it a data source that knows how to push filters down refuses to work at all.
    "spark.sql.python.filterPushdown.enabled": "true",
}

LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}


MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?|local-cluster\[\d+,\d+,\d+\]"
    r"|spark://\S+:\d+|yarn|k8s://\S+"
)
"""What Spark takes.  Of anything else it prints a page, and ends the JVM."""


class NoSpark(UsageError):
    """Spark is not installed, or could not be started."""


class SparkOptions(Struct, frozen=True):
    """Where to run, and what else Spark is to be told."""

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.master and self.remote:
            raise ConfigError("--remote", self.remote, "one of --master and --remote, not both")
        if self.remote and not self.remote.startswith("sc://"):
            raise ConfigError("--remote", self.remote, "sc://HOST[:PORT]")
        if self.master and not MASTER.fullmatch(self.master):
            allowed = "local, local[N], local[*], spark://HOST:PORT, yarn or k8s://…"
            raise ConfigError("--master", self.master, allowed)


def require_spark() -> None:
    """Raise NoSpark where it is not installed, before something else that it brings is missed."""
    if find_spec("pyspark") is None:
        raise NoSpark("Spark is not installed: pip install 'roundelay[spark]'")


@contextmanager
def spark_session(name: str, options: SparkOptions | None = None) -> Iterator[SparkSession]:
    """A session for one job; it is stopped at the end, unless it was there before."""
    spark, ours = open_session(name, options or SparkOptions())
    try:
        yield spark
    finally:
        if ours:
            spark.stop()


def open_session(name: str, options: SparkOptions) -> tuple[SparkSession, bool]:
    """A session, and whether this call made it."""
    require_spark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    builder = SparkSession.builder.appName(f"roundelay {name}")
    remote = options.remote or ("" if options.master else os.environ.get("SPARK_REMOTE", ""))
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit started a JVM and this
    master = options.master or ("" if remote or submitted else "local[*]")
    if remote:
        conf = {k: v for k, v in COMMON.items() if k.startswith("spark.sql.")}
        builder = builder.remote(remote)
    else:
        conf = {**COMMON, **(LOCAL if _is_local(master) else {})}
        if not submitted:
            conf |= _prepare_jvm(_is_local(master))
        if master:
            builder = builder.master(master)
    for key, value in {**conf, **options.conf}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
        if threading.current_thread() is threading.main_thread():
            # Spark's own handler calls Spark in the middle of another call; `progress` cancels.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if remote or not _is_local(master or str(spark.sparkContext.master)):
            _ship(spark, bool(remote))
    except RoundelayError:
        raise
    except Exception as error:
        where = remote or master or "spark-submit"
        raise NoSpark(
            f"Spark did not start on {where}: {one_line(full_text(error) or type(error).__name__)}"
        ) from error
    return spark, True


def _is_local(master: str) -> bool:
    """In this very process; `local-cluster[…]` has executors of its own.

    >>> [_is_local(m) for m in ("local", "local[2]", "local-cluster[2,1,1024]", "spark://h:7077")]
    [True, True, False, False]
    """
    return master == "local" or master.startswith("local[")


def _prepare_jvm(local: bool) -> dict[str, str]:
    """Before a JVM of ours starts: its Java, its workers' Python, where it may leave files."""
    os.environ["JAVA_HOME"] = str(home_for_spark())
    quick = python_for_spark()
    if os.environ.get("PYSPARK_PYTHON", quick) == quick:  # not set, or by us
        os.environ["PYSPARK_PYTHON"] = quick if local else sys.executable
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    scratch = tempfile.mkdtemp(prefix="roundelay-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return {
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={PACKAGE / 'pipeline' / 'log4j2.properties'} "
            f"-Dderby.system.home={scratch} -Djava.io.tmpdir={scratch} -XX:-UsePerfData"
        ),
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }


def _ship(spark: SparkSession, remote: bool) -> None:
    """Give the executors this package, as it is here."""
    folder = tempfile.mkdtemp(prefix="roundelay-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = str(package_archive(Path(folder)))
    if remote:
        spark.addArtifacts(archive, pyfile=True)
    else:
        spark.sparkContext.addPyFile(archive)


def package_archive(folder: Path) -> Path:
    """This package as a zip file that Python can import from."""
    archive = folder / "roundelay.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                file.write(path, path.relative_to(PACKAGE.parent))
    return archive
