"""`roundelay reconcile`, `archive` and `query`: what recorders wrote, on Spark."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from roundelay.cli.options import (
    FOLDER,
    PATH,
    Moment,
    Session,
    Whole,
    json_lines_option,
    json_option,
    mark_options,
    option,
    selection_of,
    several,
    spark_options,
)
from roundelay.cli.output import print_table, report
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.positions import count_of
from roundelay.core.selection import POSITION_MAX, chosen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from roundelay.pipeline.archive import ArchiveResult
    from roundelay.pipeline.archive.reconcile import GroupProof, Proof
    from roundelay.pipeline.query import Search

ROWS_SHOWN: Final = 100
LINES_SHOWN: Final = 20
WIDTH: Final = 60
FORMATS: Final = ("parquet", "csv", "json")

RECONCILE_EPILOG = """\b
Examples:
  roundelay reconcile recorder1/orders recorder2/orders recorder3/orders --out complete
  roundelay reconcile recorder1 recorder2 --out complete --json

\b
Exit status: 0 the archive is complete and nobody disagrees, 1 positions are missing everywhere or
recorders disagree, 2 wrong input.
"""

ARCHIVE_EPILOG = """\b
Examples:
  roundelay archive recorder1 --out archive
  roundelay archive recorder1 recorder2 --out archive --keep-days 90 --keep-days token:debug=7
"""

QUERY_EPILOG = """\b
Examples:
  roundelay query archive recorder1 --conference 7 --text late
  roundelay query archive "sender = 'ann' and seq between 1000 and 2000"
  roundelay query archive "SELECT sender, count(*) AS messages FROM messages GROUP BY sender"
  roundelay query archive --json-field order.state=open --since 2026-01-31 --json
  roundelay query archive --group token:orders --out orders.csv

\b
Columns: group, seq, time, sender, conference, kind, data (bytes), and text: the payload where it is
UTF-8.  Fields of JSON payloads in SQL: get_json_object(text, '$.order.state').
"""

FOLDERS = click.argument("paths", metavar="JOURNAL…", nargs=-1, required=True, type=PATH)


def _journals(paths: Sequence[Path]) -> list[Path]:
    from roundelay.pipeline.journals import find

    journals: dict[Path, None] = {}
    for path in paths:
        inside, _ = find([path])  # an archive may lie beside the journals
        if not inside:
            raise ConfigError("journal", path, "a journal, or a folder of journals")
        journals |= dict.fromkeys(inside)
    return list(journals)


def _positions(lo: int, hi: int) -> str:
    return f"position {lo}" if hi == lo + 1 else f"positions {lo} to {hi - 1}"


# ------------------------------------------------------------------------ reconcile


@click.command(epilog=RECONCILE_EPILOG)
@FOLDERS
@option("--out", FOLDER, "Folder for the archive and its proof.", required=True)
@spark_options
@json_option
def reconcile_command(paths: tuple[Path, ...], out: Path, session: Session, as_json: bool) -> int:
    """Make one complete archive of what several recorders have.

    JOURNAL is a journal's folder, or a folder of journals.  Checksums and hash chains are checked;
    each position is taken from whoever has it; what no recorder has is named, and so is every
    position on which recorders disagree.  OUT/_proof.json says which recorders vouch for what."""
    from roundelay.pipeline.archive.reconcile import reconcile as run

    proof = run(session, _journals(paths), out)
    content = msgspec.to_builtins(proof) | {"out": str(out)}
    broken = not (proof.complete and proof.agreed)
    return report(content, as_json, lambda _: _show_proof(proof, out), broken)


def _show_proof(proof: Proof, out: Path) -> None:
    rows = []
    for journal in proof.journals:
        last = journal.end - 1 if journal.end > journal.begin else "–"
        chain = (journal.chain.checked, "holds" if journal.chain_holds else "BROKEN")
        places = (journal.begin, last, count_of(journal.missing))
        rows.append((journal.journal, journal.group, *places, *chain))
    columns = ("journal", "group", "from", "to", "missing", "sealed", "hash chain")
    print_table("", columns, rows)
    for journal in proof.journals:
        for what in journal.chain.problems[:LINES_SHOWN]:
            click.echo(f"{journal.journal}: {what}")
    for group, group_proof in proof.groups.items():
        _show_group(group, group_proof)
    click.echo(f"archive and proof are in {out}")


def _show_group(group: str, proof: GroupProof) -> None:
    for disagreement in proof.disagreeing[:LINES_SHOWN]:
        click.echo(f"{group}: recorders disagree on position {disagreement.seq}:")
        for copy in disagreement.copies:
            taken = "  (taken)" if copy.journal == disagreement.chosen else ""
            click.echo(f"  {copy.sha256}  {copy.journal}{taken}")
    if proof.disagreements > LINES_SHOWN:
        click.echo(f"{group}: {proof.disagreements:,} positions in all on which recorders disagree")
    for lo, hi in proof.missing[:LINES_SHOWN]:
        click.echo(f"{group}: no recorder has {_positions(lo, hi)}")
    if len(proof.missing) > LINES_SHOWN:
        click.echo(f"{group}: and {len(proof.missing) - LINES_SHOWN:,} other ranges")
    if proof.begin == proof.end:
        click.echo(f"{group}: nothing was recorded")
        return
    absent = count_of(proof.missing)
    state = f"{absent:,} missing" if absent else "complete"
    click.echo(f"{group}: {_positions(proof.begin, proof.end)}, {proof.records:,} records: {state}")


# ------------------------------------------------------------------------ archive


def keep_days_of(words: Sequence[str]) -> dict[str, int]:
    """Days to keep, by group; of all others under the empty name.

    >>> keep_days_of(["90", "token:debug=7"])
    {'': 90, 'token:debug': 7}
    """
    days_of = {}
    for word in words:
        group, sign, days = word.rpartition("=")
        if not days.isascii() or not days.isdigit() or (sign and not group):
            raise ConfigError("keep_days", word, "DAYS or GROUP=DAYS, a whole number from 0 up")
        days_of[group] = int(days)
    return days_of


@click.command(epilog=ARCHIVE_EPILOG)
@FOLDERS
@option(
    "--out",
    FOLDER,
    "Folder of the archive; one that is there already gets what is new.",
    required=True,
)
@several(
    "--keep-days [GROUP=]DAYS",
    str,
    "Let go of older days, in all groups or in one; repeat it.",
    "keep",
)
@spark_options
@json_option
def archive_command(
    paths: tuple[Path, ...], out: Path, keep: tuple[str, ...], session: Session, as_json: bool
) -> int:
    """Put journals into Parquet tables, partitioned by group and day.

    JOURNAL is a journal's folder, or a folder of journals; several recorders of one group complete
    each other.  Only positions that OUT does not have are read.  Anything that reads Parquet reads
    OUT.  Exit status 1 if recorders disagree."""
    keep_days = keep_days_of(keep)
    from roundelay.pipeline.archive import archive as run

    done = run(session, _journals(paths), out, keep_days=keep_days)
    disagreements = sum(group.disagreements for group in done.groups.values())
    return report(done, as_json, _show_archived, disagreements)


def _show_archived(done: ArchiveResult) -> None:
    rows = []
    for group, stored in done.groups.items():
        kept = (stored.records, stored.days, stored.files, stored.bytes / 1e6)
        rows.append((group, stored.new, *kept, stored.let_go, count_of(stored.missing)))
    columns = ("group", "new", "records", "days", "files", "MB", "let go", "missing")
    print_table("", columns, rows)
    for group, stored in done.groups.items():
        for lo, hi in stored.missing[:LINES_SHOWN]:
            click.echo(f"{group}: no journal has {_positions(lo, hi)}")
        if stored.disagreements:
            click.echo(
                f"{group}: recorders disagree on {stored.disagreements:,} positions; "
                "`roundelay reconcile` tells which"
            )
    for path in done.gone:
        click.echo(f"{path} was gone; what the journals still have of it was taken again")
    if done.compacted or done.removed:
        click.echo(f"{done.compacted} files put together, {done.removed} let go")


# ------------------------------------------------------------------------ query


@click.command(epilog=QUERY_EPILOG)
@click.argument("words", metavar='[PATH…] ["…"]', nargs=-1)
@several(
    "--from PATH",
    PATH,
    "An archive, a journal, or a folder of them; if none is named, the present folder.",
    "sources",
)
@several("--group", str, "Only of these groups.", "groups")
@mark_options
@option("--since", Moment(), "From this date or time on (UTC).", unset=0)
@option("--until", Moment(), "Before this date or time (UTC).", unset=POSITION_MAX)
@option("--seq-from", Whole(0), "From this position on.", unset=0)
@option("--seq-until", Whole(0), "Before this position.", unset=POSITION_MAX)
@option("--text", str, "Part of the payload; case does not matter.", multiple=True)
@several(
    "--json-field PATH=VALUE",
    str,
    "A field of a JSON payload, as order.lines[0].item=screw.",
    "json_fields",
)
@option("--sql", str, "A SELECT over the table `messages`.", unset="")
@option("--limit", Whole(1), f"Rows at most; {ROWS_SHOWN} in a table.")
@option("--out", PATH, "Write the rows to this file.")
@option("--format", FORMATS, "Of that file, if its name does not say.", to="form")
@spark_options
@json_lines_option
def query_command(
    words: tuple[str, ...],
    sources: tuple[Path, ...],
    groups: tuple[str, ...],
    since: int,
    until: int,
    seq_from: int,
    seq_until: int,
    text: tuple[str, ...],
    json_fields: tuple[str, ...],
    sql: str,
    limit: int | None,
    out: Path | None,
    form: str | None,
    session: Session,
    as_json: bool,
    **marks: Any,
) -> None:
    """Find messages in archives and journals.

    "…" is a condition in SQL over the columns, or a whole SELECT over the table `messages`; a word
    that names a folder is a place to look in.  All that is given must hold.  Archives and journals
    are one table: what is in both is there once."""
    from roundelay.pipeline.query import Search, json_field

    paths, asked = _sorted_out(words, sources, sql)
    where = {"since": seq_from, "until": seq_until, "since_time": since, "until_time": until}
    search = Search(
        groups=chosen(groups),
        selection=selection_of(where | marks),
        text=text,
        json_fields=tuple(map(json_field, json_fields)),
        query=asked,
    )
    if sql and not search.is_sql:
        raise ConfigError("sql", sql, "SELECT … FROM messages …")
    if out is not None:
        form = _checked_format(out, form)
    from roundelay.pipeline.journals import find

    try:
        find(paths)  # nothing to look in: say so before Spark starts
    except ConfigError as error:
        if asked not in words or sources or any(Path(word).is_dir() for word in words):
            raise
        # `roundelay query archve`: no folder was named, so this one is looked in.
        raise UsageError(
            f"{error}; {asked!r} is no folder, and was taken for a condition"
        ) from None
    with session() as spark:
        from roundelay.pipeline.spark.progress import watching

        with watching(spark, "looking"):
            if out is not None:
                _with(spark, paths, search, limit, lambda rows: _write(rows, out, form or ""))
            elif as_json:
                _with(spark, paths, search, limit, _lines)
            else:
                most = limit or ROWS_SHOWN
                columns, rows = _with(spark, paths, search, most + 1, _collected)
    if out is None and not as_json:
        _show_rows(columns, rows, most, limit is None)


def _sorted_out(words: Sequence[str], sources: Sequence[Path], sql: str) -> tuple[list[Path], str]:
    """Places to look in, and what is asked."""
    paths = [*sources, *(Path(word) for word in words if Path(word).is_dir())]
    asked = [*([sql] if sql else []), *(word for word in words if not Path(word).is_dir())]
    if len(asked) > 1:
        allowed = f"one condition or SELECT; there is also {asked[0]!r}, or no such folder"
        raise ConfigError("query", asked[1], allowed)
    return paths or [Path()], asked[0] if asked else ""


def _with(
    spark: SparkSession,
    paths: Sequence[Path],
    search: Search,
    limit: int | None,
    use: Callable[[DataFrame], Any],
) -> Any:
    """Use the rows; once more without the Parquet of journals if that could not be read."""
    from roundelay.pipeline.query import found_in
    from roundelay.pipeline.spark.failures import JobFailed, spark_errors

    allowed = "a condition such as sender = 'ann', or SELECT … FROM messages; for words use --text"
    for native in (True, False):
        try:
            with spark_errors("query", search.query, allowed):
                rows = found_in(spark, paths, search, native=native)
                return use(rows if limit is None else rows.limit(limit))
        except JobFailed as error:
            if not native or ".parquet" not in str(error):
                raise
            click.echo(f"{error}: reading the segments instead", err=True)
    return None


def _lines(rows: DataFrame) -> None:
    from pyspark.sql.functions import struct, to_json

    from roundelay.pipeline.query import printable

    shown = printable(rows)
    columns = [f"`{name}`" for name in shown.columns]
    for row in shown.select(to_json(struct(*columns)).alias("line")).toLocalIterator():
        sys.stdout.write(row.line + "\n")


def _collected(rows: DataFrame) -> tuple[list[str], list[list[Any]]]:
    from roundelay.pipeline.query import printable

    shown = printable(rows)
    return shown.columns, [list(row) for row in shown.collect()]


def _show_rows(columns: list[str], rows: list[list[Any]], most: int, cut: bool) -> None:
    coded = {"data", "base64"} <= set(columns)
    names = [name for name in columns if not (coded and name == "base64")]
    cells = []
    for row in rows[:most]:
        values = dict(zip(columns, row, strict=True))
        if coded and values["data"] is None and values["base64"] is not None:
            values["data"] = f"base64 {values['base64']}"
        cells.append([_cell(values[name]) for name in names])
    print_table("", [f"<{name}" for name in names], cells)
    if len(rows) > most and cut:
        click.echo(f"there are more; --limit shows more than {most}, --out and --json all")
    elif not rows:
        click.echo("nothing found")


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    if not text.isprintable():
        text = text.encode("unicode_escape").decode()
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _checked_format(out: Path, form: str | None) -> str:
    """What to write to `out`; ConfigError, before Spark starts, if that cannot be."""
    form = form or out.suffix.lstrip(".").lower()
    form = "json" if form in ("jsonl", "ndjson") else form
    if form not in FORMATS:
        raise ConfigError("out", out, "a name that ends in .parquet, .csv or .json, or --format")
    if out.is_dir():
        raise ConfigError("out", out, "the name of a file; this is a folder")
    if not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        raise ConfigError("out", out, "a file in a folder that is there and can be written")
    return form


def _write(rows: DataFrame, out: Path, form: str) -> None:
    """One file, written aside by Spark and renamed."""
    from roundelay.pipeline.query import printable

    aside = out.with_name(f".{out.name}.{os.getpid()}.aside").absolute()
    try:
        single = (rows if form == "parquet" else printable(rows)).coalesce(1)
        writer = single.write.mode("error")
        if form == "csv":
            # As it is: bytes at the ends of a payload are part of it.
            spaces = {"ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False}
            writer = writer.options(header=True, escape='"', **spaces)
        writer.format(form).save(str(aside))
        (part,) = aside.glob("part-*")
        os.replace(part, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
