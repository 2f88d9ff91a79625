"""How far an exploration goes: the bounds that make the reachable states finite."""

from __future__ import annotations

from typing import ClassVar, Self

from msgspec import Struct

from roundelay.core.errors import ConfigError


class Bounds(Struct, frozen=True, kw_only=True):
    """Bounds of one exploration; those of each family are a class of their own."""

    LIMITS: ClassVar[dict[str, tuple[int, int]]]
    """The least and the most that some of them may be."""
    ALWAYS_NAMED: ClassVar[tuple[str, ...]]
    """Those that a command line names even if they are the usual ones."""

    def check(self) -> Self:
        """Raise ConfigError unless all bounds make sense."""
        for field, (least, most) in self.LIMITS.items():
            value = getattr(self, field)
            if not least <= value <= most:
                raise ConfigError(field, value, f"a whole number from {least} to {most}")
        return self

    def command(self, mutant: str = "") -> str:
        """Return the command line that explores this: the bounds that count most, and all others
        that are not the usual ones."""
        usual = type(self)()
        words = ["roundelay explore"]
        for field in self.__struct_fields__:
            value, option = getattr(self, field), "--" + field.replace("_", "-")
            if field in self.ALWAYS_NAMED or value != getattr(usual, field):
                words.append(option if value is True else f"{option} {value}")
        if mutant:
            words.append(f"--mutant {mutant}")
        return " ".join(words)
