"""`roundelay diagram`: a stretch of a trace as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from roundelay.cli.options import NOT_NEGATIVE, PATH, json_option, option
from roundelay.cli.output import report
from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.runs.folder import TRACE

EPILOG = """\b
Examples:
  roundelay diagram runs/demo
  roundelay diagram runs/demo --from-ms 1200 --to-ms 1350 --out crash.svg
"""


@click.command(epilog=EPILOG)
@click.argument("source", metavar="RUN_OR_TRACE", type=PATH)
@option("--from-ms", NOT_NEGATIVE, "Begin of the stretch, in virtual time.")
@option("--to-ms", NOT_NEGATIVE, "Its end.")
@option("--out", PATH, "The SVG file to write.  [default: beside the trace]")
@json_option
def command(
    source: Path, from_ms: float | None, to_ms: float | None, out: Path | None, as_json: bool
) -> None:
    """Draw a stretch of a trace: sites as lines, PDUs as arrows.

    RUN_OR_TRACE is the folder of a run, or a trace file.  Without a stretch, one worth looking at
    is chosen."""
    from roundelay.trace.diagram.drawing import draw
    from roundelay.trace.reader import TraceFile

    trace = source / TRACE if source.is_dir() else source
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise ConfigError("to_ms", to_ms, f"a number above from_ms = {from_ms:g}")
    opened = TraceFile(trace)
    if from_ms is not None and from_ms * MS > opened.last_ns:
        last = opened.last_ns / MS
        raise ConfigError("from_ms", from_ms, f"at most {last:g}, where the trace ends")
    target = out or trace.with_name(_name(from_ms, to_ms))
    if target.suffix != ".svg":
        raise ConfigError("out", target, "the name of a file that ends in .svg")
    try:
        draw(opened, target, _ns(from_ms), _ns(to_ms))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("out", target, f"a file that can be written ({reason})") from None
    written = {"trace": str(trace), "out": str(target)}
    report(written, as_json, lambda _: click.echo(f"written: {target}"))


def _ns(ms: float | None) -> int | None:
    return None if ms is None else int(ms * MS)


def _name(from_ms: float | None, to_ms: float | None) -> str:
    if from_ms is None and to_ms is None:
        return "spacetime.svg"
    start = "start" if from_ms is None else f"{from_ms:g}"
    end = "end" if to_ms is None else f"{to_ms:g}"
    return f"spacetime-{start}-{end}.svg"
