"""How a group whose roles come from a file begins, and how a member finds its way back into it.

Positions would be given twice if a retransmitter that has lost its disk took itself for new.  So a
group begins once, when all members of its council (everybody but mere users) are there for the
first time: the first retransmitter then gives the *history* a name and says whose nodes were there
(`Start`).  A council member without a disk that was there, by the UUID of its running node, is new;
any other has lost its disk, and rejoins as one that has.  Whoever was there can tell others
(`Ask`), so the first one may be away again.

PDUs carry the history and a digest of the file in their group id, so nothing of one history, or of
other roles, is taken for another.  The council is kept on disk: majorities of two councils need not
meet, so a file that names another one is refused.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import ConfigError
from roundelay.node.folders import claim_group
from roundelay.node.groups import GroupSpec, check_roles
from roundelay.node.grsb_file import read_file
from roundelay.node.lines import SecondLine, open_line
from roundelay.node.role_file import RoleFile
from roundelay.node.store import Began, Born, GrsbKept, Store
from roundelay.wire.codec import group_id
from roundelay.wire.info import MEMBERS_MAX as SHOWN_MAX
from roundelay.wire.info import Ask, GroupInfo, Info, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node

ASK_NS: Final = 250 * MS
"""How often to ask for what is needed to begin."""
INC_EPOCH_S: Final = 1_704_067_200
"""2024-01-01: starts of a member are numbered by the second since then."""


class Birth(ABC):
    """The part of a group's place that is about its beginning; the rest is the subclass's."""

    id: int
    """Of our datagrams; 0: no history yet."""

    # What a group with a file of another kind has (`node.wide`).
    reads: Callable[[Path], RoleFile] = staticmethod(read_file)
    kept_class: type[GrsbKept] = GrsbKept

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        self.node = node
        self.spec = check_roles(spec)
        self.file: RoleFile = self.reads(Path(spec.config))
        if node.name not in self.file.members:
            raise ConfigError(
                "name", node.name, f"a member of {spec.name}: {', '.join(self.file.members)}"
            )
        self.roster = self.file.members
        self.me = self.roster.index(node.name)
        self.roles = self.file.roles
        self.role_names = self.file.roles_of(self.me)
        self.in_council = self.me in self.roles.council
        self.id = 0
        self.closed = False
        self.history_name = ""
        self.inc = -1
        self.lives: dict[str, tuple[bytes, str]] = {}
        """Council members: the UUID of their node, and the history it takes part in."""
        self.ask_due = self.started_at = now
        self.store = self._open_store()
        self.kept: GrsbKept = self.store.stable if self.store is not None else self.kept_class()
        self.split = False
        """The others have begun another history."""
        self.strangers: set[str] = set()
        """Members whose file is another one."""
        if self.kept.born is not None:
            self._check_places(self.kept.born)
        self.line: SecondLine | None = None
        if self.roles.lines == 2:
            self.line = open_line(node, self.file.line_b, self.file.interface_b)
            node.second_lines[spec.name] = self.line.line

    # -- what the subclass has -------------------------------------------------------------

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Of the reign, as far as it is known; -1: not at all."""

    @abstractmethod
    def begin(self, now: int, *, again: bool, wiped: bool) -> None:
        """The history is known, and what is kept of it in `kept`."""

    @abstractmethod
    def begin_anew(self, reason: str) -> None:
        """Another history has begun: nothing of the one so far counts any more."""

    @abstractmethod
    def say_state(self, state: str) -> None: ...

    def _open_store(self) -> Store | None:
        folder = self._folder()
        if folder is None:
            if self.in_council:
                roles = ", ".join(self.role_names)
                raise ConfigError(
                    "dir", None, f"a directory: a {roles} must remember what it promised"
                )
            return None
        say = partial(self.node.log, "warning")
        store = Store(folder / "grsb.log", self.kept_class, say)
        if store.stable is None:
            store.stable = self.kept_class()
        return store

    def _folder(self) -> Path | None:
        base = self.node.config.dir
        return None if base is None else claim_group(base, self.spec.name, self.node.specs)

    def _check_places(self, born: Born) -> None:
        """Members go by their number on the wire and on disk; and majorities of two councils need
        not meet."""
        before = born.members
        if self.roster[: len(before)] != before:
            raise ConfigError(
                f"config {self.file.path}: members", ", ".join(self.roster),
                f"those that {self.spec.name} has, in their order: {', '.join(before)}; "
                "new ones behind them",
            )  # fmt: skip
        if born.council and born.council != self.file.council:
            raise ConfigError(
                f"config {self.file.path}", ", ".join(self.file.council),
                f"the council that {self.spec.name} began with: {', '.join(born.council)}; "
                "for another one begin another group",
            )  # fmt: skip

    def _confirm_places(self) -> None:
        """A member of the council has the same file: so it is the group's, and is kept.

        Not before: a file that the others refuse must not keep us from going back to theirs.
        """
        born = self.kept.born
        if born is not None and born.members != self.roster:
            self.kept.apply(structs.replace(born, members=self.roster))
            self.save()

    # -- how it begins ---------------------------------------------------------------------

    def info(self) -> GroupInfo | None:
        """What other nodes are told: which file, which history, and where our line B is."""
        return GroupInfo(
            self.spec.name,
            f"{self.file.digest}.{self.history_name}",
            self.epoch,
            min(len(self.roster), SHOWN_MAX),
            self.line.address if self.line is not None else ("", 0),
        )

    def heard(self, info: Info, now: int) -> None:
        """Another node says who it is, and in what groups."""
        said = next((group for group in info.groups if group.name == self.spec.name), None)
        if said is None or self.closed or info.name not in self.roster:
            return
        digest, dot, history = said.incarnation.partition(".")
        if not dot:
            return
        if digest != self.file.digest:
            self.node.drop("group with another file")
            if info.name not in self.strangers:
                self.strangers.add(info.name)
                self.node.log("error", "group.other_file", group=self.spec.name, of=info.name)
            return
        self.strangers.discard(info.name)
        if self.line is not None:
            known = self.node.directory.by_name.get(info.name)
            self.line.meet(info.name, said.line, None if known is None else known.address)
        if info.name in self.file.council:
            self.lives[info.name] = (info.uuid, history)
            if history and history == self.history_name:
                self._confirm_places()
            if not self.history_name:
                self._meet(now)
            elif history and history != self.history_name:
                self._other_history(history, now)

    @property
    def other_files(self) -> str:
        """For a state: whose file is not ours; they do not hear us, nor we them."""
        strangers = ", ".join(sorted(self.strangers))
        return f"; the file of {strangers} is another one than {self.file.path}" * bool(strangers)

    def _meet(self, now: int) -> None:
        """No history yet: is there one, or are all there to begin it?"""
        found = next((history for _, history in self.lives.values() if history), "")
        if found:
            if self.in_council:
                self._ask(found, now)  # who was there when it began?
            else:
                self.enter(Born(found), now, wiped=False)
            return
        others = [name for name in self.file.council if name != self.node.name]
        missing = [one for one in others if one not in self.lives or not self.node.alive(one)]
        if missing:
            waits = ", ".join(missing[:8]) + (" …" if len(missing) > 8 else "")
            self.say_state(f"forming: waiting for {waits}{self.other_files}")
        elif self.me == self.roles.retransmitters[0]:
            lives = {name: life for name, (life, _) in self.lives.items()}
            lives[self.node.name] = self.node.uuid
            council = self.file.council
            born = Born(
                secrets.token_hex(8), council, tuple(lives[one] for one in council), self.roster
            )
            self.enter(born, now, wiped=False)
            self._announce()

    def _ask(self, history: str, now: int) -> None:
        if now >= self.ask_due:
            self.ask_due = now + ASK_NS
            self.node.send_control(
                Ask(self.spec.name, history, self.node.name, life=self.node.uuid)
            )

    def _announce(self) -> None:
        """Who was there when the group began."""
        born = self.kept.born
        if born is not None and born.council:
            self.node.send_control(
                Start(self.spec.name, born.history, 0, born.council, born.lives, 0, 0)
            )

    def told(self, word: Ask | Start, now: int) -> None:
        if self.closed:
            return
        if isinstance(word, Ask):
            if word.incarnation == self.history_name and now >= self.ask_due:
                self.ask_due = now + ASK_NS // 4
                self._announce()
            return
        known = any(history == word.incarnation for _, history in self.lives.values())
        expected = self.in_council and not self.history_name
        if known and expected and word.roster == self.file.council:
            place = self.file.council.index(self.node.name)
            born = Born(word.incarnation, word.roster, word.lives, self.roster)
            self.enter(born, now, wiped=word.lives[place] != self.node.uuid)

    def _other_history(self, history: str, now: int) -> None:
        """The council has begun anew, without what was there."""
        self.node.drop("group with another history")
        if self.in_council:
            self.split = True
            self.say_state(
                f"broken: the others have begun another history of {self.spec.name}; move "
                f"{self._folder()} away to join them"
            )
            return
        self.node.log("error", "group.began_anew", group=self.spec.name, history=history)
        self.node.unregister(self)  # type: ignore[arg-type]
        self.id = 0
        self.kept = self.kept_class()
        self.kept.inc = self.inc
        if self.store is not None:
            self.store.stable = self.kept
        self.begin_anew("the group has begun anew, with positions of its own")
        self.enter(Born(history), now, wiped=False)

    def enter(self, born: Born, now: int, wiped: bool) -> None:
        """Take part in this history."""
        again = self.kept.born is not None
        self.history_name = born.history
        if not again and self.in_council:
            self.kept.apply(born)
        self._begin_life(now)
        self.id = group_id(f"{self.spec.name}\0{self.file.digest}.{born.history}")
        self.node.register(self)  # type: ignore[arg-type]
        self.node.say_soon(now)
        self.begin(now, again=again, wiped=wiped)

    def _begin_life(self, now: int) -> None:
        """Number this start: higher than every earlier one, also of a member without a disk.

        Without one, the number is that of the coming second, and nothing is sent before it has
        come: an earlier start in the same second would have waited for it as well.
        """
        second = time.time_ns() / 1e9 - INC_EPOCH_S
        if self.inc < 0:
            self.inc = max(self.kept.inc + 1, int(second) + 1)
            if self.store is None:
                self.started_at = now + int((self.inc - second) * SECOND)
        self.kept.apply(Began(self.inc))
        self.save()

    def save(self) -> None:
        """Write a new file with all that is kept, now."""
        if self.store is not None:
            self.store.replace(self.kept.records())
