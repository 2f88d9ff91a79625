"""Which Python Spark's workers on this machine run: this one, and quick to start.

Spark puts its own `pyspark.zip` in front of a worker's path.  In it there are no compiled files, so
each worker would compile what it imports once more, for about a second; and one that reads a stream
has to be there within ten seconds, also on a busy machine.  Where the zip is that of the `pyspark`
which is installed here, workers get a Python that passes it over and imports the installed one.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from roundelay.pipeline.spark.java import placed


def python_for_spark() -> str:
    """What to give Spark as PYSPARK_PYTHON; nobody but processes of this machine can use it."""
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
