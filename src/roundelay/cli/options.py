"""Types and decorators of options.  What they refuse, they refuse with the field's name, the value
and what is allowed, as the configurations do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roundelay.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

# Newer versions of click know what a type converts to; older ones cannot be asked at run time.
if TYPE_CHECKING:
    WholeType = click.ParamType[int]
    NumberType = click.ParamType[float]
    WordType = click.ParamType[str]
else:
    WholeType = NumberType = WordType = click.ParamType


def _field(param: click.Parameter | None) -> str:
    return (param.name or "value") if param is not None else "value"


class Whole(WholeType):
    """A whole number from `least` to `most`, or up."""

    name = "integer"

    def __init__(self, least: int, most: int | None = None) -> None:
        self.least = least
        self.most = most
        self.allowed = f"a whole number from {least} {'up' if most is None else f'to {most}'}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if number < self.least or (self.most is not None and number > self.most):
            raise ConfigError(_field(param), value, self.allowed)
        return number


class Number(NumberType):
    """A finite number; `allowed` says which, `ok` decides."""

    name = "number"

    def __init__(self, allowed: str, ok: Callable[[float], bool]) -> None:
        self.allowed = allowed
        self.ok = ok

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not (isfinite(number) and self.ok(number)):
            raise ConfigError(_field(param), value, self.allowed)
        return number


class OneOf(WordType):
    """One of a few words."""

    name = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.allowed = " or ".join(self.words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        words = "|".join(self.words)
        return f"{{{words}}}" if isinstance(param, click.Argument) else f"[{words}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.words:
            raise ConfigError(_field(param), value, self.allowed)
        return str(value)


LOSS = Number("a number from 0 up to, not including, 1", lambda x: 0 <= x < 1)
POSITIVE = Number("a number above 0", lambda x: x > 0)
NOT_NEGATIVE = Number("a number from 0 up", lambda x: x >= 0)


def json_option(function: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
    )(function)


def force_option(function: F) -> F:
    return click.option("--force", is_flag=True, help="Replace the run in a folder that exists.")(
        function
    )
