"""`roundelay journal info | cat | check | repair`: read a journal's folder; no node is needed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from roundelay.cli.options import (
    PATH,
    Moment,
    Whole,
    json_lines_option,
    json_option,
    mark_options,
    option,
    selection_of,
    several,
)
from roundelay.cli.output import json_line, payload, print_answer, printable, report, text_line, utc
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.grsb.pdu import SINGLE
from roundelay.core.positions import count_of
from roundelay.core.selection import EVERYTHING, POSITION_MAX
from roundelay.journal.damage.check import Problem, Verdict, check
from roundelay.journal.damage.repair import RepairReport, repair
from roundelay.journal.files import index_of, read_mark, segments_of
from roundelay.journal.format import GAP, HEADS_ONLY, Run
from roundelay.journal.grsb import mtype_of
from roundelay.journal.index import Index
from roundelay.journal.reader import Reader, read_segments
from roundelay.node.groups import family_of
from roundelay.node.recording.units import part_of_unit

EPILOG = """\b
Examples:
  roundelay journal info DIR
  roundelay journal cat DIR --since 1000 --conference 7 --sender ann
  roundelay journal cat DIR --since-time 2026-01-31T12:00:00Z --json > some.jsonl
  roundelay journal check DIR
  roundelay journal repair DIR --from OTHER

DIR is the folder of one journal: the one with journal.json in it.
"""

DIR = click.argument("folder", metavar="DIR", type=PATH)


@click.group(epilog=EPILOG)
def journal_command() -> None:
    """Read, check and repair a journal, with or without a recorder running.

    Only `repair` changes anything."""


# ------------------------------------------------------------------------ info


@journal_command.command()
@DIR
@json_option
def info(folder: Path, as_json: bool) -> None:
    """Show what the journal in DIR holds."""
    reader = Reader(folder)
    conferences: Counter[int] = Counter()
    senders: Counter[str] = Counter()
    latest = max((segment.latest for segment in reader.segments), default=0)
    earliest = latest
    for segment in reader.segments:
        if segment.sealed:
            with (
                suppress(OSError, MalformedPdu, ValueError),
                Index(index_of(segment.path)) as index,
            ):
                earliest = min(earliest, index.head.earliest)
                conferences.update(index.conferences)
                senders.update(index.senders)
            continue
        for run in read_segments([segment], EVERYTHING):
            if not run.flags & GAP:
                earliest = min(earliest, run.time)
                conferences[run.conference] += len(run.bundle.data)
                senders[run.sender] += len(run.bundle.data)
    report(
        {
            "group": reader.meta.group,
            "begin": reader.begin,
            "end": reader.end,
            "durable": read_mark(folder),
            "first": utc(earliest) if earliest else None,
            "last": utc(latest) if latest else None,
            "segments": len(reader.segments),
            "sealed": sum(segment.sealed for segment in reader.segments),
            "bytes": sum(segment.size for segment in reader.segments),
            "missing": [list(gap) for gap in reader.missing],
            "payload bytes by conference": {str(k): v for k, v in sorted(conferences.items())},
            "payload bytes by sender": dict(sorted(senders.items())),
        },
        as_json,
        print_answer,
    )


# ------------------------------------------------------------------------ cat


@journal_command.command()
@DIR
@option("--since", Whole(0), "From this position on.", unset=0)
@option("--until", Whole(0), "Up to, not including, this one.", unset=POSITION_MAX)
@option("--since-time", Moment(), "From this moment on.", unset=0)
@option("--until-time", Moment(), "Up to this moment.", unset=POSITION_MAX)
@mark_options
@option("--count", Whole(1), "Stop after so many.")
@json_lines_option
def cat(folder: Path, count: int | None, as_json: bool, **given: Any) -> None:
    """Print the records of the journal in DIR, all or those that are selected."""
    selection = selection_of(given)
    reader = Reader(folder)
    group = reader.meta.group
    printed = 0
    for run in reader.read(selection):
        if run.flags & GAP:
            gap = {"group": group, "missing": (run.position, run.end)}
            text = f"{run.position} to {run.end - 1} missing\n"
            sys.stdout.write(json_line(gap) if as_json else text)
            continue
        for line in _json_lines(run, group) if as_json else _text_lines(run):
            sys.stdout.write(line)
            printed += 1
            if printed == count:
                return


def _json_lines(run: Run, group: str) -> Iterator[str]:
    """`size` is given where only the head was kept; `unit` in groups with units: `start`, `middle`,
    `end`, or `abort`, where the sender started again."""
    time = utc(run.time)
    unit = {}
    if family_of(group).has_roles and mtype_of(run) != SINGLE:
        unit["unit"] = part_of_unit(run)
    marks = {"sender": run.sender, "time": time, "conference": run.conference, "kind": run.kind}
    for seq, (size, data) in enumerate(_records(run), run.position):
        record = {"data": None, "size": size} if data is None else payload(data)
        yield json_line({"group": group, "seq": seq, **marks, **record, **unit})


def _text_lines(run: Run) -> Iterator[str]:
    for seq, (size, data) in enumerate(_records(run), run.position):
        yield text_line(
            f"{seq} {run.sender}", f"({size} bytes, not kept)" if data is None else data
        )


def _records(run: Run) -> list[tuple[int, bytes | None]]:
    if run.flags & HEADS_ONLY:
        return [(size, None) for size in run.bundle.sizes]
    return [(len(data), data) for data in run.bundle]


# ------------------------------------------------------------------------ check, repair


@journal_command.command(name="check")
@DIR
@json_option
def check_command(folder: Path, as_json: bool) -> int:
    """Read every byte of the journal in DIR: is it what was written?

    Exit status 1 if something is damaged or missing."""
    verdict = check(folder)
    content: dict[str, Any] = msgspec.to_builtins(verdict)
    content |= {"good": verdict.good, "missing": [list(gap) for gap in verdict.missing]}
    return report(content, as_json, lambda _: _show_verdict(folder, verdict), not verdict.good)


def _show_verdict(folder: Path, verdict: Verdict) -> None:
    _print_problems(verdict.problems)
    if verdict.unfinished:
        click.echo(f"a write was under way: {verdict.unfinished}")
    empty = verdict.end <= verdict.begin
    where = "empty" if empty else f"positions {verdict.begin} to {verdict.end - 1}"
    state = "as it was written" if verdict.good else f"{len(verdict.problems)} problems"
    click.echo(
        f"{folder}: {printable(verdict.group)}, {where}, "
        f"{verdict.records:,} records in {verdict.segments} segments: {state}"
    )


def _print_problems(problems: list[Problem]) -> None:
    for problem in problems:
        lost = f", positions {problem.lo} to {problem.hi - 1}" if problem.hi > problem.lo else ""
        click.echo(f"{problem.file}: {problem.what}{lost}")


@journal_command.command(name="repair")
@DIR
@several("--from DIR", PATH, "A journal of the same group; may be given several times.", "sources")
@option("--group", str, "The group's name, if no copy of journal.json is good.", unset="")
@json_option
def repair_command(folder: Path, sources: tuple[Path, ...], group: str, as_json: bool) -> int:
    """Put right what is damaged in DIR, with what other recorders have.

    No node may be recording to DIR meanwhile.  Intact records of damaged blocks are saved, the
    damaged bytes are kept beside the segment (.damaged).  What nobody has stays a gap; where
    nothing can be gained, nothing is changed.  Exit status 1 if something is still missing."""
    if not segments_of(folder) and not folder.is_dir():
        raise ConfigError("journal", folder, "a folder with journal.json")
    done = repair(folder, sources, group)
    return report(done, as_json, lambda _: _show_repaired(folder, done), done.still_missing)


def _show_repaired(folder: Path, done: RepairReport) -> None:
    _print_problems(done.problems)
    outcomes = {
        "saved from damaged blocks": done.saved,
        "restored": done.restored,
        "still missing": done.still_missing,
    }
    for name, ranges in outcomes.items():
        for lo, hi in ranges:
            click.echo(f"{name}: positions {lo} to {hi - 1}")
    missing = count_of(done.still_missing)
    outcome = f"{missing:,} records are still missing" if missing else "all is there"
    click.echo(f"{folder}: {outcome}")
