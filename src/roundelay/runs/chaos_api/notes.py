"""What applications of `roundelay chaos --api` note down, and how it is read.

A *life* is one process of a member.  Its notes are JSON objects, one a line, each with `t` (ns of
the machine's monotonic clock, the same for all processes) and `e`:

=============  ===================================================================================
started        `name`, `life`, `since` ([history, position], or null: from now on)
joining        `since`, again: a life may join more than once
joined         `join` has returned
view           `members`, `state`, `h`
sent           `id`, `members` of the view; `to` (destinations), `last` (of this life)
confirmed      `id`, `seq`, `members` of the view; `h`, `given_up`
indeterminate  `id`: nobody can say
refused        `id`: it will not be delivered
failed         `id`, `kind` of the error, `why`
given          `seq`, `from`, `id`; `h`; `damaged`: the bytes are not those that were sent
error          `where` (join, read), `kind`, `why`; `first`, `last`: positions that are missing
over           the group ended without a word
settling       from here on it wants one last message confirmed
left           the end, as it was told
=============  ===================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

MEMBER: Final = "member"
TWIN: Final = "twin"
REPLACED: Final = "replaced"
"""A life that was stopped, and woken when another had taken its place."""

LEFT_OUT: Final = "LeftOut"
"""The error that says to a member without positions that messages may be missing."""
NAME_TAKEN: Final = "NameTaken"
NOTHING_QUEUED: Final = frozenset(
    {"GroupClosed", "QueueFull", "NoRecorder", "ClusterBroken", "ConfigError", "PayloadTooLarge"}
)
"""Errors of `broadcast` that say that nothing was sent."""


class Given(Struct, frozen=True):
    at: int
    """Which line of its life it is."""
    time: int
    seq: int | None
    sender: str
    ident: str
    history: str
    damaged: bool


class Sent(Struct, frozen=True):
    time: int
    number: int
    members: tuple[str, ...]
    to: tuple[str, ...]
    last: bool


class Confirmed(Struct, frozen=True):
    time: int
    seq: int | None
    history: str
    members: tuple[str, ...]
    given_up: tuple[str, ...] | None


class Trouble(Struct, frozen=True):
    """An error that an application got."""

    at: int
    time: int
    kind: str
    first: int | None
    last: int | None


class Seen(Struct, frozen=True):
    """A view."""

    time: int
    members: tuple[str, ...]
    state: str


class Life(Struct):
    """What one process has noted down."""

    name: str
    number: int
    role: str = MEMBER
    since: tuple[str, int] | None = None
    begun: int = 0
    ended: int = 0
    given: list[Given] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    confirmed: dict[str, Confirmed] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    errors: list[Trouble] = field(default_factory=list)
    views: list[Seen] = field(default_factory=list)
    joins: list[tuple[int, tuple[str, int] | None]] = field(default_factory=list)
    there: list[tuple[int, int]] = field(default_factory=list)
    """When it was in the group: from each `joined` until the next error, or the end."""
    over: int = 0
    settling: int = 0
    settled: str = ""
    left: bool = False

    def __str__(self) -> str:
        return f"{self.name} (life {self.number})"


def read_life(path: Path, role: str = MEMBER) -> Life:
    """The life whose notes are in `path`; half a line at its end is one that was killed."""
    lines = []
    for line in path.read_bytes().split(b"\n"):
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return life_of(lines, role)


def _since(value: Any) -> tuple[str, int] | None:
    return None if not value or value[1] is None else (value[0] or "", value[1])


def life_of(lines: Iterable[Mapping[str, Any]], role: str = MEMBER) -> Life:
    """A life, from its lines."""
    life = Life("?", 0, role)
    lasts: set[str] = set()
    since, time = 0, 0
    for at, line in enumerate(lines):
        event, time = line["e"], line.get("t", 0)
        if since and event in ("error", "over"):
            life.there.append((since, time))
            since = time if line.get("kind") == LEFT_OUT else 0  # it reads on
        life.begun = life.begun or time
        life.ended = time
        ident = line.get("id", "")
        members = tuple(line.get("members", ()))
        if event == "given":
            life.given.append(Given(at, time, line["seq"], line["from"], ident, line.get("h", ""),
                                    line.get("damaged", False)))  # fmt: skip
        elif event == "sent":
            number = len(life.sent)
            last = line.get("last", False)
            life.sent[ident] = Sent(time, number, members, tuple(line.get("to", ())), last)
            if last:
                lasts.add(ident)
        elif event == "confirmed":
            given_up = line.get("given_up")
            out = None if given_up is None else tuple(given_up)
            receipt = Confirmed(time, line["seq"], line.get("h", ""), members, out)
            life.confirmed[ident] = receipt
            if ident in lasts:
                life.settled = ident
        elif event == "indeterminate":
            life.doubtful.add(ident)
        elif event == "refused":
            life.denied.add(ident)
        elif event == "failed":
            (life.denied if line["kind"] in NOTHING_QUEUED else life.doubtful).add(ident)
        elif event == "error":
            life.errors.append(Trouble(at, time, line["kind"], line.get("first"), line.get("last")))
        elif event == "view":
            life.views.append(Seen(time, members, line["state"]))
        elif event == "started":
            life.name, life.number, life.since = line["name"], line["life"], _since(line["since"])
        elif event == "joining":
            life.joins.append((at, _since(line["since"])))
        elif event == "joined":
            since = time
        elif event == "over":
            life.over += 1
        elif event == "settling":
            life.settling = life.settling or time
        elif event == "left":
            life.left = True
    if since:
        life.there.append((since, time))
    return life
