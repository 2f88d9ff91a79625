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

from pathlib import Path
from typing import Final

import msgspec
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


class Note(
    Struct,
    kw_only=True,
    rename={"time": "t", "event": "e", "ident": "id", "sender": "from", "history": "h"},
):
    """A line; what each event has is in the table above."""

    event: str
    time: int = 0
    at: int = 0
    """Which line of its life it is."""
    number: int = 0
    """Of a broadcast: how many its life had begun before."""
    ident: str = ""
    seq: int | None = None
    sender: str = ""
    history: str = ""
    damaged: bool = False
    members: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    given_up: tuple[str, ...] | None = None
    state: str = ""
    kind: str = ""
    why: str = ""
    first: int | None = None
    last: int | bool | None = None
    since: tuple[str | None, int | None] | None = None
    name: str = ""
    life: int = 0

    @property
    def position(self) -> tuple[str, int] | None:
        """`since`, if it is a position and not from now on."""
        if self.since is None or self.since[1] is None:
            return None
        return self.since[0] or "", self.since[1]


class Life(Struct):
    """What one process has noted down."""

    name: str
    number: int
    role: str = MEMBER
    path: Path | None = None
    """Where its notes are, which are read while it goes on."""
    read: int = 0  # bytes of them
    lines: int = 0
    since: tuple[str, int] | None = None
    ended: int = 0
    given: list[Note] = field(default_factory=list)
    sent: dict[str, Note] = field(default_factory=dict)
    confirmed: dict[str, Note] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    errors: list[Note] = field(default_factory=list)
    views: list[Note] = field(default_factory=list)
    joins: list[tuple[int, tuple[str, int] | None]] = field(default_factory=list)
    stays: list[tuple[int, int]] = field(default_factory=list)
    """When it was in groups that it is not in any more."""
    joined: int = 0
    """When it joined the group that it is in."""
    over: int = 0
    settling: int = 0
    settled: str = ""
    left: bool = False
    state: str = "starting"
    """Of its last view, or its last error."""
    confirmed_sent: int = 0
    """When the newest confirmed broadcast was begun."""

    def __str__(self) -> str:
        return f"{self.name} (life {self.number})"

    @property
    def there(self) -> list[tuple[int, int]]:
        """When it was in the group: from each `joined` until the next error, or the end."""
        return [*self.stays, *([(self.joined, self.ended)] if self.joined else ())]

    @property
    def open_with(self) -> tuple[str, ...]:
        """Members of the last view, if it was open."""
        last = self.views[-1] if self.views else None
        return last.members if last is not None and last.state.startswith("open") else ()

    @property
    def position(self) -> tuple[str, int] | None:
        """Where it would go on reading."""
        for given in reversed(self.given):
            if given.seq is not None:
                return given.history, given.seq + 1
        return None

    def take(self, at: int, note: Note) -> None:
        """Add line number `at` of the notes."""
        note.at = at
        event, time = note.event, note.time
        if self.joined and event in ("error", "over"):
            self.stays.append((self.joined, time))
            self.joined = time if note.kind == LEFT_OUT else 0  # it reads on
        self.ended = time
        if event == "given":
            self.given.append(note)
        elif event == "sent":
            note.number = len(self.sent)
            self.sent[note.ident] = note
        elif event == "confirmed":
            self.confirmed[note.ident] = note
            sent = self.sent.get(note.ident)
            if sent is not None:
                self.confirmed_sent = max(self.confirmed_sent, sent.time)
                self.settled = note.ident if sent.last else self.settled
        elif event in ("indeterminate", "refused", "failed"):
            denied = event == "refused" or note.kind in NOTHING_QUEUED
            (self.denied if denied else self.doubtful).add(note.ident)
        elif event == "error":
            self.errors.append(note)
            self.state = f"{note.kind}: {note.why}"
        elif event == "view":
            self.views.append(note)
            self.state = note.state
        elif event == "started":
            self.name, self.number, self.since = note.name, note.life, note.position
        elif event == "joining":
            self.joins.append((note.at, note.position))
        elif event == "joined":
            self.joined = time
        elif event == "over":
            self.over += 1
        elif event == "settling":
            self.settling = self.settling or time
        elif event == "left":
            self.left = True

    def look(self) -> Life:
        """Read what is new; half a line at the end is not read yet, or of one that was killed."""
        if self.path is not None and self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.read)
                for line in file:
                    if line.endswith(b"\n"):
                        self.read += len(line)
                        self.take(self.lines, msgspec.json.decode(line, type=Note))
                        self.lines += 1
        return self
