"""The end of the demo: what Spark proves of the run that was just watched, and three sweeps beside.

1. `verify`: the traces of all sites, once more and by another way than the checkers that judged the
   run.
2. `reconcile`: the journals of its two recorders, one of which may have been killed, into one
   archive.
3. `sweep` and `figures`: the papers' figures, from few messages a point, so that it takes seconds;
   docs/sweep.md has the commands for good ones.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec

from roundelay.pipeline.archive.reconcile import Proof, reconcile
from roundelay.pipeline.research.figures import make_figures
from roundelay.pipeline.research.grid import load
from roundelay.pipeline.research.sweep import sweep
from roundelay.pipeline.session import SparkOptions, spark_session
from roundelay.pipeline.verify import verify
from roundelay.pipeline.verify.verdict import as_json
from roundelay.runs.report import grid as html_table
from roundelay.runs.report import verdict as html_verdict

SWEEPS: Final = (("fig6", 100, 1), ("complexity", 2, 1), ("spo", 10, 2))
"""Ready grids, with messages and repetitions for seconds instead of minutes."""

ARCHIVE: Final = "archive"
SWEPT: Final = "sweeps"
FIGURES: Final = "figures"

Tell = Callable[[str], None]


def on_spark(
    home: Path, journals: Sequence[Path], options: SparkOptions, tell: Tell
) -> dict[str, Any]:
    """All three, in the folder of the run; what came out, as `results.json` has it."""
    for name in (ARCHIVE, SWEPT, FIGURES):
        shutil.rmtree(home / name, ignore_errors=True)
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        seconds[what] = round(time.monotonic() - began, 1)

    began = time.monotonic()
    with spark_session("demo", options) as spark:
        seconds["start"] = round(time.monotonic() - began, 1)
        with timed("verify"), tempfile.TemporaryDirectory(prefix="roundelay-verify-") as scratch:
            verified = as_json(verify(spark, [home / "trace.parquet"], Path(scratch)))
        checked = sum(verdict["checked"] for verdict in verified["invariants"].values())
        tell(f"verify: {checked:,} checks, {'all hold' if verified['holds'] else 'BROKEN'}")
        with timed("reconcile"):
            # It would make a session of its own, and stop it.
            proof = reconcile(lambda: nullcontext(spark), journals, home / ARCHIVE)
        tell(f"reconcile: {_says(proof)}")
        with timed("sweep"):
            for name, messages, seeds in SWEEPS:
                done = sweep(spark, load(name, messages, seeds), home / SWEPT / name)
                tell(f"sweep {name}: {done.runs} runs, {done.violations} violations")
    with timed("figures"):
        drawn = make_figures([home / SWEPT / name for name, _, _ in SWEEPS], home / FIGURES)
    return {
        "verify": verified,
        "reconcile": msgspec.to_builtins(proof),
        "figures": drawn,
        "seconds": seconds,
        "good": verified["holds"] and proof.complete and proof.agreed,
    }


def _says(proof: Proof) -> str:
    rows = sum(group.records for group in proof.groups.values())
    gaps = "complete" if proof.complete else f"{len(proof.missing)} ranges MISSING"
    same = "the recorders agree" if proof.agreed else "the recorders DISAGREE"
    return f"{rows:,} messages of {len(proof.journals)} journals, {gaps}, {same}"


def sections(home: Path, results: dict[str, Any]) -> list[str]:
    """The same for the report."""
    rows = [
        (name, verdict["about"], verdict["checked"], "kept" if verdict["holds"] else "BROKEN")
        for name, verdict in results["verify"]["invariants"].items()
        if verdict["checked"]
    ]
    proof = msgspec.convert(results["reconcile"], Proof)
    archived = html_verdict(proof.complete and proof.agreed, _says(proof) + ".")
    pictures = [name for name in results["figures"]["files"] if name.endswith(".png")]
    return [
        html_table("Proved on Spark from the traces of all sites", ("", "", "checks", ""), rows),
        f"<h2>One archive of two recorders</h2>{archived}",
        "<h2>The papers' figures</h2><p>Few messages a point; docs/sweep.md has the commands for "
        "more.</p>" + "".join(_image(home / FIGURES / name) for name in pictures),
        html_table("Seconds on Spark", ("", ""), list(results["seconds"].items())),
    ]


def _image(path: Path) -> str:
    """A picture inside the page, which needs no other file."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    name = escape(path.stem)
    return f'<p><img alt="{name}" style="max-width:100%" src="data:image/png;base64,{data}"></p>'
