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
from typing import TYPE_CHECKING, Final

from roundelay.core.engine import MS, SECOND
from roundelay.node.roles.member import shortened
from roundelay.node.storage.store import Began, Born
from roundelay.wire.codec import group_id
from roundelay.wire.control import MEMBERS_MAX as SHOWN_MAX
from roundelay.wire.control import Ask, GroupInfo, Info, Start

if TYPE_CHECKING:
    from roundelay.node.roles.group import RoleGroup

ASK_NS: Final = 250 * MS
"""How often to ask for what is needed to begin."""
INC_EPOCH_S: Final = 1_704_067_200
"""2024-01-01: starts of a member are numbered by the second since then."""


class Bootstrap:
    """The beginning of one group at one node: `group` is told when it has begun."""

    def __init__(self, group: RoleGroup, now: int) -> None:
        self.group = group
        self.member = group.member
        self.node = group.member.node
        self.persistence = group.persistence
        self.lines = group.lines
        self.history = ""
        """Its name; empty: none yet."""
        self.inc = -1
        """The number of this start."""
        self.lives: dict[str, tuple[bytes, str]] = {}
        """Council members: the UUID of their node, and the history it takes part in."""
        self.ask_due = self.started_at = now
        self.split = False
        """The others have begun another history."""
        self.strangers: set[str] = set()
        """Members whose file is another one."""

    @property
    def other_files(self) -> str:
        """For a state: whose file is not ours; they do not hear us, nor we them."""
        strangers = ", ".join(sorted(self.strangers))
        path = self.member.file.path
        return f"; the file of {strangers} is another one than {path}" * bool(strangers)

    # -- what nodes tell each other --------------------------------------------------------

    def info(self) -> GroupInfo:
        """What other nodes are told: which file, which history, and where our line B is."""
        line = self.lines.second
        return GroupInfo(
            self.member.group,
            f"{self.member.file.digest}.{self.history}",
            self.group.status_view.epoch,
            min(len(self.member.roster), SHOWN_MAX),
            line.address if line is not None else ("", 0),
        )

    def heard(self, info: Info, now: int) -> None:
        """Another node says who it is, and in what groups."""
        member, name = self.member, info.name
        about = next((group for group in info.groups if group.name == member.group), None)
        if self.group.closed or about is None or name not in member.roster:
            return
        digest, dot, history = about.incarnation.partition(".")
        if not dot:
            return
        if digest != member.file.digest:
            self.node.drop("group with another file")
            if name not in self.strangers:
                self.strangers.add(name)
                self.node.log("error", "group.other_file", group=member.group, of=name)
            return
        self.strangers.discard(name)
        if self.lines.second is not None:
            known = self.node.directory.by_name.get(name)
            address = None if known is None else known.address
            self.lines.second.meet(name, about.line, address)
        if name in member.file.council:
            self.lives[name] = (info.uuid, history)
            if history and history == self.history:
                # Not before: a file that the others refuse must not keep us from going back to
                # theirs.
                self.persistence.confirm_members()
            if not self.history:
                self.meet(now)
            elif history and history != self.history:
                self._other_history(history, now)

    def meet(self, now: int) -> None:
        """No history yet: is there one, or are all there to begin it?"""
        member, council = self.member, self.member.file.council
        history = next((history for _, history in self.lives.values() if history), "")
        if history:
            if member.in_council:
                self._ask(history, now)  # who was there when it began?
            else:
                self.enter(Born(history), now, wiped=False)
            return
        others = [name for name in council if name != self.node.name]
        missing = [name for name in others if name not in self.lives or not self.node.alive(name)]
        if missing:
            waits = f"forming: waiting for {shortened(missing)}"
            self.group.status_view.say(f"{waits}{self.other_files}")
        elif member.me == member.roles.retransmitters[0]:
            lives = {name: life for name, (life, _) in self.lives.items()}
            lives[self.node.name] = self.node.uuid
            there = tuple(lives[name] for name in council)
            self.enter(Born(secrets.token_hex(8), council, there, member.roster), now, wiped=False)
            self._announce()

    def _ask(self, history: str, now: int) -> None:
        if now >= self.ask_due:
            self.ask_due = now + ASK_NS
            ask = Ask(self.member.group, history, self.node.name, life=self.node.uuid)
            self.node.send_control(ask)

    def _announce(self) -> None:
        """Who was there when the group began."""
        born = self.persistence.kept.born
        if born is not None and born.council:
            self.node.send_control(
                Start(self.member.group, born.history, 0, born.council, born.lives, 0, 0)
            )

    def told(self, word: Ask | Start, now: int) -> None:
        """Somebody asks who was there, or says it."""
        if self.group.closed:
            return
        if isinstance(word, Ask):
            if word.incarnation == self.history and now >= self.ask_due:
                self.ask_due = now + ASK_NS // 4
                self._announce()
            return
        council = self.member.file.council
        known = any(history == word.incarnation for _, history in self.lives.values())
        expected = self.member.in_council and not self.history
        if known and expected and word.roster == council:
            born = Born(word.incarnation, word.roster, word.lives, self.member.roster)
            life = word.lives[council.index(self.node.name)]
            self.enter(born, now, wiped=life != self.node.uuid)

    # -- taking part -----------------------------------------------------------------------

    def _other_history(self, history: str, now: int) -> None:
        """The council has begun anew, without what was there."""
        self.node.drop("group with another history")
        if self.member.in_council:
            self.split = True
            self.group.status_view.say(
                f"broken: the others have begun another history of {self.member.group}; move "
                f"{self.persistence.folder} away to join them"
            )
            return
        self.node.log("error", "group.began_anew", group=self.member.group, history=history)
        self.node.schedule.unregister(self.group)
        self.lines.group_id = 0
        self.persistence.forget(self.inc)
        self.member.engine = None
        self.group.outbox.abandon("the group has begun anew, with positions of its own")
        self.enter(Born(history), now, wiped=False)

    def enter(self, born: Born, now: int, wiped: bool) -> None:
        """Take part in this history."""
        kept = self.persistence.kept
        again = kept.born is not None
        self.history = born.history
        if not again and self.member.in_council:
            kept.apply(born)
        self._begin_life(now)
        file = self.member.file
        self.lines.group_id = group_id(f"{self.member.group}\0{file.digest}.{born.history}")
        self.node.schedule.register(self.group)
        self.node.say_soon(now)
        self.group.begin(now, again=again, wiped=wiped)

    def _begin_life(self, now: int) -> None:
        """Number this start: higher than every earlier one, also of a member without a disk.

        Without one, the number is that of the coming second, and nothing is sent before it has
        come: an earlier start in the same second would have waited for it as well.
        """
        persistence = self.persistence
        second = time.time_ns() / 1e9 - INC_EPOCH_S
        if self.inc < 0:
            self.inc = max(persistence.kept.inc + 1, int(second) + 1)
            if persistence.store is None:
                self.started_at = now + int((self.inc - second) * SECOND)
        persistence.kept.apply(Began(self.inc))
        persistence.save()
