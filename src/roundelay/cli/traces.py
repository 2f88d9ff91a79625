"""`roundelay check`, `verify` and `diagram`: judge traces, and draw them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from roundelay.cli.options import (
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    Session,
    flag,
    json_option,
    option,
    spark_options,
)
from roundelay.cli.output import coloured, print_table, printable, report, styled
from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.runs.folder import TRACE
from roundelay.trace.checkers.checkers import check_trace
from roundelay.trace.live import live_files
from roundelay.trace.merge import merge

CHECK_EPILOG = """\b
Examples:
  roundelay check runs/first                    the folder of a run
  roundelay check runs/first/trace.parquet
  roundelay node --name a --trace /tmp/traces … ; roundelay check /tmp/traces
"""


@click.command(epilog=CHECK_EPILOG)
@click.argument("path", type=PATH)
@option("--group", str, "Only this group, of those that live nodes have left traces of.")
@json_option
def check_command(path: Path, group: str | None, as_json: bool) -> int:
    """Judge a trace: was there one order, was anything lost, twice, or made up?

    PATH is a trace file, the folder of a run, or a folder with the traces of live nodes, which are
    put together first.  What has to be true only in the end is judged if the run had one.  Exit
    status 1 if a promise was broken."""
    results = list(_judged(path, group))
    broken = sum(len(result["violations"]) for result in results)
    return report({"broken": broken, "traces": results}, as_json, _show_judged, broken)


def _show_judged(content: dict[str, Any]) -> None:
    for result in content["traces"]:
        name = f"{result['group']}: " if result["group"] else ""
        click.echo(
            f"{name}{result['sites']} sites, {result['committed']} messages delivered, "
            f"{result['everywhere']} of them by everybody"
        )
        for violation in result["violations"]:
            click.echo(f"  {violation}")
    click.echo("a promise was broken" if content["broken"] else "every promise was kept")


def _judged(path: Path, group: str | None) -> Iterator[dict[str, Any]]:
    if not path.exists():
        raise ConfigError("path", path, "a trace file, or a folder with traces")
    if path.is_dir():
        groups = sorted({file.header.group for file in live_files(path)})
        if group is not None and group not in groups:
            raise ConfigError("group", group, "one of " + (", ".join(groups) or "none"))
        if groups:
            with tempfile.TemporaryDirectory(prefix="roundelay-check-") as folder:
                for name in groups if group is None else [group]:
                    merged = merge(path, Path(folder) / TRACE, group=name)
                    yield _judge(merged.path, name)
            return
        path = path / TRACE
        if not path.exists():
            raise ConfigError("path", path.parent, "a folder with a trace of a run or of nodes")
    elif group is not None:
        raise ConfigError("group", group, "only with a folder of traces of live nodes")
    yield _judge(path, "")


def _judge(path: Path, group: str) -> dict[str, Any]:
    checker = check_trace(path)
    return {
        "group": group,
        "sites": len(checker.sites),
        "order": checker.order,
        "committed": checker.committed,
        "everywhere": checker.everywhere,
        "uncompared": checker.uncompared,
        "violations": [str(violation) for violation in checker.violations],
    }


VERIFY_EPILOG = """\b
Examples:
  roundelay verify runs/demo
  roundelay verify runs/first runs/second --json
  roundelay verify /tmp/traces                    the folder of `roundelay node --trace`
  roundelay verify runs/demo --strategy sql       the same by an independent way
  roundelay verify /tmp/traces --watch            while the nodes are running
"""


@click.command(epilog=VERIFY_EPILOG)
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=PATH)
@option("--strategy", ("fast", "sql"), "By ranges of positions in numpy, or by Spark SQL.", "fast")
@flag("--oracle", "The same as --strategy sql.")
@flag("--watch", "Look at growing traces again and again; stop at the first alarm.")
@option("--every-s", POSITIVE, "With --watch: from trigger to trigger.", 2.0)
@option("--for-s", POSITIVE, "With --watch: stop after that long without an alarm.")
@json_option
@spark_options
def verify_command(
    paths: tuple[Path, ...],
    strategy: str,
    oracle: bool,
    watch: bool,
    every_s: float,
    for_s: float | None,
    as_json: bool,
    session: Session,
) -> int:
    """Judge the traces of all sites: one order, nothing lost, twice, or made up?

    DIR is the folder of a run, a trace file, a folder with the traces of live nodes, or a folder
    with any of these in it.  Says for every invariant whether it holds, and shows the rows that
    prove it if not.  Exit status 1 if a promise was broken."""
    if oracle:
        strategy = "sql"
    if watch:
        return _watch(paths, every_s, for_s, as_json, session)
    from roundelay.pipeline.verify.runs import find_runs

    scratch = Path(tempfile.mkdtemp(prefix="roundelay-verify-"))
    keep = False
    try:
        runs = find_runs(paths, scratch)  # wrong input is told before Spark is started
        with session() as spark:
            from roundelay.pipeline.verify import judge_all
            from roundelay.pipeline.verify.verdict import as_json as rendered

            verdict = rendered(judge_all(spark, runs, strategy=strategy))
        # What was put together from live traces is needed to draw what is wrong with them.
        keep = not verdict["holds"] and any(scratch.iterdir())
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    return report(verdict, as_json, _show_verdict, not verdict["holds"])


def _show_verdict(verdict: dict[str, Any]) -> None:
    for run in verdict["runs"]:
        end = "" if run["settled"] else ", cut short: what must hold in the end is not judged"
        click.echo(
            f"{printable(run['run'])}: order {run['order']}, {run['sites']} sites, "
            f"{run['rows']:,} rows{end}"
        )
    rows = []
    for name, invariant in verdict["invariants"].items():
        holds, checked = invariant["holds"], invariant["checked"]
        mark = coloured("holds" if holds else f"BROKEN {invariant['broken']} ×", holds)
        if holds and not checked:
            mark = styled("nothing to check", dim=True)
        rows.append((name, invariant["about"], checked, mark))
    print_table("Invariants", ("", "<", "checked", "<"), rows)
    for name, invariant in verdict["invariants"].items():
        for row in invariant["counterexamples"]:
            where = f"site {row['site']}, " if row["site"] >= 0 else ""
            moment = f"{where}{row['time_ns'] / 1e6:.3f} ms"
            click.echo(f"  {coloured(name, False)} at {moment}: {printable(row['detail'])}")
            click.echo(f"      {printable(row['diagram'])}")
    good = verdict["holds"]
    sentence = "every promise was kept" if good else "a promise was broken"
    click.echo(f"\n  {coloured(sentence, good, bold=True)}")


def _watch(
    paths: tuple[Path, ...], every_s: float, for_s: float | None, as_json: bool, session: Session
) -> int:
    for path in paths:
        if not path.is_dir():
            raise ConfigError("path", path, "with --watch a folder that exists")
    with session() as spark:
        from roundelay.pipeline.verify.watch import watch

        for trigger in watch(spark, paths, every_s=every_s, for_s=for_s):
            if as_json:
                click.echo(trigger.json())
            elif trigger.alarms or trigger.rows:
                click.echo(str(trigger))
            if trigger.alarms:
                return 1
    return 0


DIAGRAM_EPILOG = """\b
Examples:
  roundelay diagram runs/demo
  roundelay diagram runs/demo --from-ms 1200 --to-ms 1350 --out crash.svg
"""


@click.command(epilog=DIAGRAM_EPILOG)
@click.argument("source", metavar="RUN_OR_TRACE", type=PATH)
@option("--from-ms", NOT_NEGATIVE, "Begin of the stretch, in virtual time.")
@option("--to-ms", NOT_NEGATIVE, "Its end.")
@option("--out", PATH, "The SVG file to write.  [default: beside the trace]")
@json_option
def diagram_command(
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
