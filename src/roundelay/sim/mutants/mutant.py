"""A mutant: a protocol with one rule broken, and the promise that must be reported broken.

A checker that never finds anything proves nothing.  A mutant says which rule it breaks, why that
matters, what catches it (an exploration, as small as shows it, or random runs), and what has to be
reported then.  Anything else that goes wrong is no catch: a mutant that stumbles over a missing
attribute shows nothing about the checkers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from roundelay.core.families import CLUSTERS, FAMILIES, TOKEN
from roundelay.sim.explore.scope import Bounds
from roundelay.sim.explore.token.relevance import JOINED

CLUSTER: Final = "cluster"

PROTOCOLS: Final[dict[type[Any], str]] = {core.engine: name for name, core in FAMILIES.items()}
"""By the class of their engines."""


class Patch(Struct, frozen=True):
    """An attribute of an engine, or of a part of one, replaced."""

    owner: type[Any]
    name: str
    value: object

    @staticmethod
    def of(owner: type[Any], name: str, function: Callable[..., Any]) -> Patch:
        """Return a patch by `function`, as a property if it stands for one.

        A first parameter `shipped` of `function` is given what is replaced.
        """
        shipped = getattr(owner, name)
        is_property = isinstance(shipped, property)
        if next(iter(signature(function).parameters)) == "shipped":
            function = _curried(function, shipped.fget if is_property else shipped)
        return Patch(owner, name, property(function) if is_property else function)


def _curried(function: Callable[..., Any], first: object) -> Callable[..., Any]:
    # Not `partial`, which would not be bound to an instance.
    return lambda *args, **kwargs: function(first, *args, **kwargs)


class Mutant(Struct, frozen=True, kw_only=True):
    """A protocol with a broken rule."""

    name: str
    protocol: str = TOKEN
    rule: str
    """Ids of the rule, and what is missing."""
    wrong: str
    """Why it is needed."""
    expects: tuple[str, ...]
    """Promises of which one has to be reported broken: I1 … I8, a rule (TR-15, QUIET), or
    "InvariantBroken: " and part of what an engine says when it notices by itself."""
    patches: tuple[Patch, ...] = ()
    scope: Bounds | None = None
    """The exploration that catches it."""
    seeds: tuple[int, int] | None = None
    """Otherwise the seeds, A up to but not including B, the first of which that goes wrong has to
    show it."""
    memory: str = JOINED
    """What its sites never forget, see `explore.token.relevance`."""

    @property
    def family(self) -> str:
        return CLUSTER if self.protocol in CLUSTERS else self.protocol

    @property
    def caught_by(self) -> str:
        """The command that shows it.

        >>> Mutant(name="x", rule="", wrong="", expects=("I1",), seeds=(0, 9)).caught_by
        'roundelay swarm --seeds 0:9 --stop-at-first --mutant x'
        """
        if self.scope is not None:
            return self.scope.command(self.name)
        assert self.seeds is not None
        words = f"roundelay swarm --seeds {self.seeds[0]}:{self.seeds[1]} --stop-at-first"
        if self.protocol != TOKEN:
            words += f" --protocol {self.protocol}"
        return f"{words} --mutant {self.name}"

    def expected(self, invariant: str, detail: str) -> bool:
        """Whether a finding is what this mutant must be caught by.

        An explorer calls what an engine noticed by itself `engine`, the swarm by its exception.

        >>> m = Mutant(name="x", rule="", wrong="", expects=("I1", "InvariantBroken: starts at"))
        >>> m.expected("I1", "…"), m.expected("engine", "InvariantBroken: list 7 starts at …")
        (True, True)
        >>> m.expected("InvariantBroken", "list 7 starts at …"), m.expected("KeyError", "'list'")
        (True, False)
        """
        if invariant == "engine":
            invariant, _, detail = detail.partition(": ")
        for promise in self.expects:
            name, _, text = promise.partition(": ")
            if name == invariant and text in detail:
                return True
        return False

    def break_rule(self) -> ExitStack:
        """Break the rule in the engines of this process, until what is returned is closed.

        What is wrong must be noticed by what engines do to others, not by a look inside.
        """
        unchecked = Patch(FAMILIES[self.protocol].engine, "check_invariants", lambda engine: None)
        mend = ExitStack()
        for owner, name, value in map(structs.astuple, (*self.patches, unchecked)):
            mend.callback(owner.__init_subclass__)
            if name in vars(owner):
                mend.callback(setattr, owner, name, vars(owner)[name])
            else:
                mend.callback(delattr, owner, name)
            setattr(owner, name, value)
            owner.__init_subclass__()  # makes tables of its methods anew, if it has some
        return mend


Broken = TypeVar("Broken", bound=Callable[..., Any])
"""The function that breaks a rule."""


class MutantTable:
    """The mutants of a family.

    Each is declared by a decorator of the function that stands in place of one that keeps the rule,
    and has the name of that.  The first paragraph of its docstring names the rule and what is
    missing, then why it is needed.

    >>> class Site:
    ...     def awaits(self, sites): return set(sites)
    >>> broken = MutantTable(protocol="positive-ack", seeds=(0, 60))
    >>> @broken(Site, "awaits", "I2")
    ... def counts_on_the_first_copy(self, sites):
    ...     "PA-3: no receiver is awaited; who lost a copy never gets it."
    ...     return set()
    >>> mutant = broken.mutants[0]
    >>> mutant.name, mutant.rule, mutant.wrong
    ('counts-on-the-first-copy', 'PA-3: no receiver is awaited', 'who lost a copy never gets it')
    >>> mutant.expects, mutant.seeds
    (('I2',), (0, 60))
    """

    def __init__(self, **usual: Any) -> None:
        self.mutants: list[Mutant] = []
        self._usual = usual

    def __call__(
        self,
        owner: type[Any],
        attribute: str,
        *expects: str,
        also: tuple[tuple[type[Any], str, Callable[..., Any]], ...] = (),
        **fields: Any,
    ) -> Callable[[Broken], Broken]:
        """Declare a mutant, by the fields of `Mutant` that are not the table's usual ones.

        The decorated function replaces `attribute` of `owner`, and those of `also` what they name.
        """
        if "scope" in fields:
            fields.setdefault("seeds", None)

        def declare(broken: Broken) -> Broken:
            summary = " ".join((broken.__doc__ or "").partition("\n\n")[0].split())
            rule, _, wrong = summary.removesuffix(".").partition("; ")
            first = Patch.of(owner, attribute, broken)
            stated: dict[str, Any] = {
                "name": broken.__name__.replace("_", "-"),
                "rule": rule,
                "wrong": wrong,
                "expects": expects,
                "patches": (first, *(Patch.of(*each) for each in also)),
            }
            if owner in PROTOCOLS:
                stated["protocol"] = PROTOCOLS[owner]
            self.mutants.append(Mutant(**(self._usual | stated | fields)))
            return broken

        return declare
