"""Types and decorators of options.  What they refuse, they refuse with the field's name, the value
and what is allowed, as the configurations do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roundelay.cli.output import say_zone
from roundelay.core.errors import ConfigError
from roundelay.core.selection import Selection, chosen
from roundelay.journal.moments import nanoseconds, parse_time

F = TypeVar("F", bound=Callable[..., Any])

# Newer versions of click know what a type converts to; older ones cannot be asked at run time.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    ValueType = click.ParamType[Any]
    Session = Callable[[], AbstractContextManager[SparkSession]]
else:
    ValueType = click.ParamType
    Session = Any


def _field(param: click.Parameter | None) -> str:
    return (param.name or "value") if param is not None else "value"


class Checked(ValueType):
    """What a word is read as, where `ok` likes it; `allowed` says what that is."""

    read: type[Any] = str

    def __init__(self, allowed: str, ok: Callable[[Any], bool]) -> None:
        self.allowed = allowed
        self.ok = ok

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        with suppress(ValueError):
            content = self.read(value)
            if self.ok(content):
                return content
        raise ConfigError(_field(param), value, self.allowed)


class Whole(Checked):
    """A whole number from `least` to `most`, or up."""

    name = "integer"
    read = int

    def __init__(self, least: int, most: int | None = None) -> None:
        top = "up" if most is None else f"to {most}"
        allowed = f"a whole number from {least} {top}"
        super().__init__(allowed, lambda x: least <= x and (most is None or x <= most))


class Number(Checked):
    """A finite number."""

    name = "number"
    read = float


class OneOf(Checked):
    """One of a few words."""

    name = "word"

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(" or ".join(words), lambda word: word in words)
        self.metavar = "|".join(words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"{{{self.metavar}}}" if isinstance(param, click.Argument) else f"[{self.metavar}]"


class Moment(ValueType):
    """A moment: nanoseconds since 1970, or a date and time (UTC unless it has a zone)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.isdigit():
            return int(value)
        field = _field(param)
        moment = parse_time(value, field)
        say_zone(value, field)
        return nanoseconds(moment)


LOSS = Number("a number from 0 up to, not including, 1", lambda x: 0 <= x < 1)
POSITIVE = Number("a number above 0", lambda x: 0 < x < inf)
NOT_NEGATIVE = Number("a number from 0 up", lambda x: 0 <= x < inf)


PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)


def option(
    name: str,
    kind: Any,
    help: str = "",
    default: Any = None,
    *,
    unset: Any = None,
    to: str = "",
    **more: Any,
) -> Callable[[F], F]:
    """An option such as "--key FILE", which the command gets as `to`, or by its name.

    `kind` is a type, or the words to choose from.  Its `default` is shown, what it is when `unset`
    is not.
    """
    if isinstance(kind, tuple):
        kind = OneOf(kind)
    name, _, metavar = name.partition(" ")
    if default is not None:
        more |= {"default": default, "show_default": True}
    elif unset is not None:
        more["default"] = unset
    return click.option(
        *filter(None, (name, to)), type=kind, help=help or None, metavar=metavar or None, **more
    )


def several(name: str, kind: Any, help: str, to: str, **more: Any) -> Callable[[F], F]:
    """An option that may be given more than once."""
    return option(name, kind, help, to=to, multiple=True, **more)


def flag(name: str, help: str, **more: Any) -> Callable[[F], F]:
    """An option without a value."""
    return click.option(*name.split(), is_flag=True, help=help, **more)


def mark_options(function: F) -> F:
    """Which conferences, senders and kinds: see `selection_of`."""
    for name, kind in (("kind", Whole(0)), ("sender", str), ("conference", Whole(0))):
        function = several(f"--{name}", kind, "Only of these.", f"{name}s")(function)
    return function


def selection_of(given: dict[str, Any]) -> Selection:
    """What is selected by options of these names; of `mark_options` none given means all."""
    for name in ("conferences", "senders", "kinds"):
        given[name] = chosen(given[name])
    return Selection(**given)


json_option = flag("--json as_json", "Print one JSON object and nothing else.")
json_lines_option = flag("--json as_json", "Print one JSON object a line.")
force_option = flag("--force", "Replace the run in a folder that exists.")


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --master, --remote and --conf; the command gets `session`, which opens such a one."""

    @option(
        "--master URL",
        str,
        "Where Spark runs: local[N], spark://HOST:PORT, …; if absent, here on all cores.",
    )
    @option("--remote sc://HOST[:PORT]", str, "Run on a Spark Connect server.")
    @several("--conf KEY=VALUE", str, "A setting of Spark; repeat it.", "settings")
    @wraps(command)
    def with_spark(
        *args: Any, master: str | None, remote: str | None, settings: tuple[str, ...], **others: Any
    ) -> Any:
        from roundelay.pipeline.session import SparkOptions, require_spark, spark_session
        from roundelay.pipeline.spark.failures import spark_errors

        require_spark()
        conf = {}
        for text in settings:
            key, sign, value = text.partition("=")
            if not sign or not key:
                raise ConfigError("--conf", text, "KEY=VALUE, such as spark.driver.memory=4g")
            conf[key] = value
        # On Ctrl-C py4j would tell the root logger about the call that was interrupted.
        logging.getLogger().addHandler(logging.NullHandler())
        options = SparkOptions(master=master, remote=remote, conf=conf)
        name = click.get_current_context().info_name or ""

        @contextmanager
        def session() -> Iterator[SparkSession]:
            with spark_session(name, options) as spark, spark_errors():
                yield spark

        return command(*args, session=session, **others)

    return with_spark
