"""What a command prints: JSON for programs, lines and tables for people, progress on stderr."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import click
import msgspec

from roundelay.journal.moments import lacks_zone
from roundelay.runs.folder import json_text

COLUMNS_MAX: Final = 7
MS: Final = 1_000_000


def print_json(content: Mapping[str, Any]) -> None:
    click.echo(json_text(content))


def report(content: Any, as_json: bool, show: Callable[[Any], object], broken: Any = False) -> int:
    """Print the outcome of a command as JSON, or have `show` print it for people; the exit status,
    which says whether something was `broken`."""
    if as_json:
        print_json(msgspec.to_builtins(content) if isinstance(content, msgspec.Struct) else content)
    else:
        show(content)
    return 1 if broken else 0


class Styled(str):
    """Text of ours, with a style that a terminal obeys."""


def styled(text: str, **style: Any) -> Styled:
    """`text` as `click.style` has it, unless the user wants no colours."""
    return Styled(
        printable(text) if "NO_COLOR" in os.environ else click.style(printable(text), **style)
    )


def coloured(text: str, good: Any, **style: Any) -> Styled:
    """A good word, or a bad one, by its colour."""
    return styled(text, fg="green" if good else "red", **style)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Iterable[str | float]]) -> None:
    """Print a table.  The first column stands left, and so do those whose names begin with "<"; in
    others are numbers.  Text is shown literally, numbers as people write them.

    `rich` is imported here because that takes longer than a short command."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to `main`: rich would exit with the status of a broken promise."""
            raise BrokenPipeError

    def cell(value: str | float) -> Text:
        if isinstance(value, Styled):
            return Text.from_ansi(value)
        return Text(printable(value) if isinstance(value, str) else number(value))

    names = [column.removeprefix("<") for column in columns]
    grid = Table(title=Text(printable(title)), show_header=any(names), box=box.SIMPLE_HEAD)
    grid.title_justify, grid.title_style = "left", "bold"
    for i, (name, column) in enumerate(zip(names, columns, strict=True)):
        left = not i or column.startswith("<")
        grid.add_column(cell(name), justify="left" if left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*map(cell, row))
    # A pipe or a file has no width of its own: lines are not to be broken there.
    Screen(width=None if sys.stdout.isatty() else 120, highlight=False).print(grid)


def print_violations(violations: Iterable[Mapping[str, Any]]) -> None:
    """Each with the invariant that is broken."""
    for violation in violations:
        name = styled(violation["invariant"], fg="red")
        click.echo(f"  {name} {printable(violation['detail'])}")


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


def text_line(head: str, data: bytes | str) -> str:
    """One message a line: `head`, then what it says."""
    text = data if isinstance(data, str) else data.decode(errors="backslashreplace")
    return f"{printable(head)}: {printable(text)}\n"


def json_line(content: Mapping[str, Any]) -> str:
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


def print_answer(content: Mapping[str, Any], indent: int = 0) -> None:
    """Print what a node answers: what is plain first, then what is nested."""
    margin = "  " * indent
    plain = [_item(key, value) for key, value in content.items() if not _nested(value)]
    width = max((len(key) for key, _ in plain), default=0)
    for key, text in plain:
        click.echo(f"{margin}{printable(key):<{width}}  {printable(text)}")
    for key, value in content.items():
        if isinstance(value, dict) and value:
            click.echo(f"{margin}{printable(key)}")
            print_answer(value, indent + 1)
        elif _nested(value):
            _print_list(key, value, indent)


def _print_list(key: str, items: list[dict[str, Any]], indent: int) -> None:
    columns = list(dict.fromkeys(column for item in items for column in item))
    flat = not any(_nested(value) for item in items for value in item.values())
    if flat and len(columns) <= COLUMNS_MAX:
        rows = ([_item(name, item.get(name))[1] for name in columns] for item in items)
        print_table(key, columns, rows)
        return
    for item in items:
        first = next(iter(item.values()), "")
        click.echo("  " * indent + printable(f"{key}: {word(first)}"))
        print_answer(item, indent + 1)


def _nested(value: object) -> bool:
    if isinstance(value, dict):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _item(key: str, value: object) -> tuple[str, str]:
    """
    >>> _item("stale_ns", 2_000_000_000), _item("sealed", True)
    (('stale', '2,000 ms'), ('sealed', 'yes'))
    """
    if key.endswith("_ns") and isinstance(value, int):
        return key[:-3], ms(value)
    return key, word(value)


def ms(value: Any) -> str:
    return "–" if value is None else f"{value / MS:,.0f} ms"


def word(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, list):
        return ", ".join(map(word, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {word(item)}" for key, item in value.items()) or "none"
    return str(value)
