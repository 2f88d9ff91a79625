"""Why a group does not work, in words that name the members it waits for."""

from __future__ import annotations

from collections.abc import Sequence

from roundelay.node.membership.identity import looks_made_up


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else last


def gone(names: Sequence[str]) -> str:
    """
    >>> gone(["a", "b"])
    'a and b are missing'
    """
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'} missing"


def blocked(info: tuple[object, ...], roster: Sequence[str]) -> str:
    """The state of a member whose engine says that it is blocked.

    >>> blocked(("majority", (1, 2), ()), ["a", "b", "c"])
    'blocked: majority (b and c are missing)'
    >>> blocked(("resiliency", (1,), (0,)), ["a", "b", "c"])
    'blocked: resiliency (b is missing; a has forgotten what it had)'
    """
    reason, *who = info
    silent, forgetful = who if len(who) == 2 else ((), ())
    words = []
    for places, singular, plural in (
        (silent, "is missing", "are missing"),
        (forgetful, "has forgotten what it had", "have forgotten what they had"),
    ):
        assert isinstance(places, tuple)
        if places:
            names = [roster[place] for place in sorted(places)]
            words.append(f"{listed(names)} {singular if len(names) == 1 else plural}")
            if places is silent and any(looks_made_up(name) for name in names):
                words.append("a name that was made up comes back only with its folder")
    return f"blocked: {reason}" + (f" ({'; '.join(words)})" if words else "")


def broken(why: str, silent: Sequence[str]) -> str:
    """The state of a member whose engine has stopped, because of those who are silent if any are.

    >>> broken("no answer from [1, 2]", ["b", "c"])
    'broken: no answer from b and c'
    """
    return f"broken: no answer from {listed(silent)}" if silent else f"broken: {why}"
