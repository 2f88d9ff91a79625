"""Checks of parameters, shared by all configurations: each error names the field."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from roundelay.core.errors import ConfigError

UNLIMITED: Final = 1 << 60
"""A bound that is never reached."""
FAR: Final = 1 << 40
"""A bound from here up is not worth naming."""


def whole(field: str, value: object, least: int, most: int = UNLIMITED, where: str = "") -> int:
    """`value`, or ConfigError unless it is a whole number from `least` to `most`.

    >>> whole("kr", 7, 1, 4, " for 5 sites")
    Traceback (most recent call last):
    ...
    roundelay.core.errors.ConfigError: kr = 7 is not allowed: a whole number from 1 to 4 for 5 sites
    """
    if not (isinstance(value, int) and least <= value <= most):
        top = "up" if most >= FAR else f"to {most}"
        raise ConfigError(field, value, f"a whole number from {least} {top}{where}")
    return value


def chance(field: str, value: object) -> float:
    """`value`, or ConfigError unless it is a probability below one."""
    if not (isinstance(value, int | float) and 0 <= value < 1):
        raise ConfigError(field, value, "a number from 0 up to, not including, 1")
    return value


def one_of(field: str, value: str, allowed: Collection[str], between: str = " or ") -> None:
    """Raise ConfigError, which lists them, unless `value` is one of those that are allowed.

    >>> one_of("delivery", "soon", ("stable", "fast"))
    Traceback (most recent call last):
    ...
    roundelay.core.errors.ConfigError: delivery = soon is not allowed: stable or fast
    """
    if value not in allowed:
        raise ConfigError(field, value, between.join(allowed))
