"""Engines of any protocol as the explorer handles them: put aside, taken up again, compared.

An engine is its slots and those of its parts.  What is in them either never changes (numbers,
PDUs, configurations) and is shared, or is a container, whose content is copied.

Time stands still at 0: every timer is armed in the future, so none is due by itself; one that is
to fire is set to 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from random import Random
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.engine import Effects, Engine, Pdu

Recipe = tuple[Callable[[Any], Any], Any]
"""How to make a value anew, and of what."""

Frozen = tuple[tuple[Any, ...], tuple[Recipe, ...]]
"""An engine as tuples: a fifth of its size."""

_EMPTY: Final[dict[type, Recipe]] = {kind: (kind, ()) for kind in (dict, list, deque, set)}
_MADE_ANEW: Final = ("out", "handlers")


class Snapshots:
    """Puts engines of one class aside, and takes them up again.

    Taking up is what the explorer does most, so the code for it is written out for the class, as
    one would by hand: three assignments, to all slots at once.
    """

    def __init__(self, example: Engine) -> None:
        parts: dict[str, type[Any]] = getattr(example, "PARTS", {})
        owners: dict[str, Any] = {"engine": example}
        owners |= {name: getattr(example, name) for name in parts}
        values: list[str] = []  # "engine.me", "log.nts", …
        containers: list[str] = []
        links = [f"engine.{name} = {name}" for name in parts]
        for owner, instance in owners.items():
            known: dict[int, str] = {}
            for slot in slots_of(type(instance)):
                path, value = f"{owner}.{slot}", getattr(instance, slot, None)
                if slot == "site":
                    links.append(f"{path} = engine")
                elif slot in _MADE_ANEW or slot in parts:
                    continue
                elif value is not None and not _changes(value.__class__):
                    values.append(path)
                elif value is not None and id(value) in known:
                    links.append(f"{path} = {known[id(value)]}")  # PREQ is TREQ, in PO
                else:
                    known[id(value)] = path
                    containers.append(path)
        self._values = attrgetter(*(path.removeprefix("engine.") for path in values))
        self._containers = attrgetter(*(path.removeprefix("engine.") for path in containers))
        self._binds = hasattr(example, "bind_handlers")
        self._build = _compiled(
            [
                *(f"{owner} = new({owner}_class)" for owner in owners),
                f"{', '.join(values)}, = values",
                f"{', '.join(containers)}, = [make(content) for make, content in recipes]",
                *links,
                "return engine",
            ],
            {f"{owner}_class": type(instance) for owner, instance in owners.items()},
        )

    def freeze(self, engine: Engine) -> Frozen:
        """Return what `thaw` makes an engine in the same state of."""
        return self._values(engine), tuple([_recipe(value) for value in self._containers(engine)])

    def thaw(self, frozen: Frozen) -> Any:
        """Return a new engine in that state."""
        engine = self._build(*frozen)
        engine.out = Effects()
        if self._binds:
            engine.bind_handlers()
        return engine


def _compiled(body: list[str], classes: dict[str, type[Any]]) -> Callable[..., Any]:
    """Return a function of values and recipes, with these lines."""
    names: dict[str, Any] = {"new": object.__new__, **classes}
    exec("\n    ".join(["def build(values, recipes):", *body]), names)
    build: Callable[..., Any] = names["build"]
    return build


def slots_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of all slots of a class."""
    return tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))


def _recipe(value: Any) -> Recipe:
    kind = value.__class__
    if kind in _EMPTY:
        if not value:
            return _EMPTY[kind]
        content = value.values() if kind is dict else value
        if not any(map(_changes, set(map(type, content)))):
            return kind, tuple(value.items() if kind is dict else value)
        keys = tuple(value) if kind is dict else None
        return _nested, (kind, keys, tuple([_recipe(item) for item in content]))
    if _changes(kind):
        fields = [_recipe(getattr(value, name)) for name in value.__struct_fields__]
        return _struct, (kind, tuple(fields))
    return _same, value


@cache
def _changes(kind: type[Any]) -> bool:
    """Return whether values of that class can change."""
    return kind in _EMPTY or (issubclass(kind, Struct) and not kind.__struct_config__.frozen)


def _same(value: Any) -> Any:
    return value


def _nested(content: tuple[type[Any], tuple[Any, ...] | None, tuple[Recipe, ...]]) -> Any:
    kind, keys, recipes = content
    items = [make(of) for make, of in recipes]
    return kind(items) if keys is None else dict(zip(keys, items, strict=True))


def _struct(content: tuple[type[Any], tuple[Recipe, ...]]) -> Any:
    kind, recipes = content
    return kind(*[make(of) for make, of in recipes])


def comparable(value: Any, canonical: Callable[[Any], Any] = _same) -> Any:
    """Return `value` as something that can be hashed; the same for the same content.

    `canonical` takes out of a PDU what makes no difference.
    """
    if isinstance(value, Pdu):
        return canonical(value)
    if isinstance(value, dict):
        return tuple(sorted((key, comparable(item, canonical)) for key, item in value.items()))
    if isinstance(value, list | deque | tuple):
        return tuple([comparable(item, canonical) for item in value])
    if isinstance(value, set):
        return tuple(sorted(value))
    return comparable(structs.astuple(value)) if _changes(value.__class__) else value


class Still(Random):
    """Randomness decides back-offs, which do not matter while time stands still, and boot numbers.

    A site that restarts from its disk keeps its boot number here: numbers that differ could only
    make it refuse more.  One that lost its disk gets a new one, as it does in earnest.
    """

    def __init__(self, boot: int) -> None:
        super().__init__(0)
        self.boot = boot

    def randint(self, a: int, b: int) -> int:
        return a

    def getrandbits(self, k: int, /) -> int:
        return self.boot
