"""What a command prints: JSON for programs, tables for people, progress on stderr."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec

from roundelay.journal.moments import lacks_zone
from roundelay.runs.folder import json_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(content: Mapping[str, Any]) -> None:
    click.echo(json_text(content))


def report(content: Any, as_json: bool, show: Callable[[Any], object]) -> None:
    """Print the outcome of a command as JSON, or have `show` print it for people."""
    if as_json:
        print_json(msgspec.to_builtins(content) if isinstance(content, msgspec.Struct) else content)
    else:
        show(content)


def console() -> Console:
    """Where tables go.  `rich` is imported here because it takes longer than a short command."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to `main`: rich would exit with the status of a broken promise."""
            raise BrokenPipeError

    plain = not sys.stdout.isatty()
    # A pipe or a file has no width of its own: lines are not to be broken there.
    return Screen(width=120 if plain else None, highlight=False)


def table(title: str, *columns: str, left: Sequence[str] = (), **options: Any) -> Table:
    """A table whose first column is a name; the others are numbers, but for those in `left`."""
    from rich import box
    from rich.table import Table

    options |= {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE_HEAD}
    grid = Table(title=title, show_header=any(columns), **options)
    for i, column in enumerate(columns):
        grid.add_column(column, justify="right" if i and column not in left else "left")
    return grid


def add_row(grid: Table, *cells: str | float) -> None:
    """Add a row of text that is shown literally, and of numbers as people write them."""
    grid.add_row(*(literally(cell) if isinstance(cell, str) else number(cell) for cell in cells))


class Tick(Protocol):
    """Called with how much is done, how much there is in all, and a remark."""

    def __call__(self, done: int, total: int | None, remark: str = "", /) -> None: ...


@contextmanager
def progress(text: str, *, quiet: bool) -> Iterator[Tick]:
    """A bar on stderr; nothing if that is no terminal, or with `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total, remark="": None
        return
    from rich import progress as columns
    from rich.console import Console

    bar = columns.Progress(
        columns.TextColumn("{task.description}"),
        columns.BarColumn(),
        columns.MofNCompleteColumn(),
        columns.TimeElapsedColumn(),
        columns.TimeRemainingColumn(),
        columns.TextColumn("{task.fields[remark]}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(text, total=None, remark="")

        def tick(done: int, total: int | None, remark: str = "") -> None:
            bar.update(task, completed=done, total=total, remark=remark)

        yield tick


def printable(text: str) -> str:
    r"""`text` with everything escaped that a terminal would obey instead of showing it.

    >>> printable("ok"), printable("\x1b[2J")
    ('ok', '\\x1b[2J')
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def json_line(content: msgspec.Struct) -> str:
    """One object a line, in which a terminal finds nothing to obey either."""
    text = msgspec.json.encode(content).decode()
    if not text.isprintable():
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    return text + "\n"


def payload(data: bytes) -> dict[str, Any]:
    """The fields of a JSON line that have a message: as text, or coded where it is none."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data": None, "base64": base64.b64encode(data).decode()}


def utc(ns: int) -> str:
    """A moment as JSON lines have it.

    >>> utc(1_700_000_000_123_456_789)
    '2023-11-14T22:13:20.123456Z'
    """
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def say_zone(text: str, option: str) -> None:
    """Tell people how a time that they gave without a zone was taken."""
    if lacks_zone(text):
        name = option.replace("_", "-")
        click.echo(f"--{name} {text}: no zone given, taken as UTC", err=True)


def literally(text: str) -> str:
    """`text` from elsewhere for a console, which would take brackets for its own."""
    from rich.markup import escape

    return escape(printable(text))


def number(value: float) -> str:
    """A number for people.

    >>> number(1234567), number(2.3456), number(0.00012)
    ('1,234,567', '2.346', '0.00012')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2g}" if 1e-9 < abs(value) < 0.01 else f"{value:,.3f}"


def counted(counts: Mapping[str, int]) -> str:
    """How often what was seen, for people.

    >>> counted({"pause": 1, "kill": 2}), counted({})
    ('kill 2, pause 1', 'none')
    """
    return ", ".join(f"{name} {number(count)}" for name, count in sorted(counts.items())) or "none"
