"""What a member keeps: its promises, and how far it is, in a file; messages in journals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.engine import Effects
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.stable import Handled
from roundelay.node.roles.journal import RecorderJournal
from roundelay.node.roles.member import RoleMember
from roundelay.node.storage.folders import claim_group
from roundelay.node.storage.store import Store

ROTATE_BYTES: Final = 4 << 20


class Persistence:
    """The disk of one member in one group; `tell` is called when a journal of a level advances."""

    def __init__(self, member: RoleMember, tell: Callable[[int], None]) -> None:
        self.member = member
        self.tell = tell
        self.journals: dict[int, RecorderJournal] = {}
        """By level."""
        base = member.node.config.dir
        self.folder: Path | None = None
        if base is not None:
            self.folder = claim_group(base, member.group, member.node.specs)
        elif member.in_council:
            roles = ", ".join(member.role_names)
            raise ConfigError("dir", None, f"a directory: a {roles} must remember what it promised")
        self.store: Store | None = None
        self.kept = member.kept_class()
        if self.folder is not None:
            say = partial(member.node.log, "warning")
            self.store = Store(self.folder / "grsb.log", member.kept_class, say)
            if self.store.stable is not None:
                self.kept = self.store.stable

    # -- whose it is -----------------------------------------------------------------------

    def check_members(self) -> None:
        """Members go by their number on the wire and on disk; and majorities of two councils need
        not meet."""
        born, file, group = self.kept.born, self.member.file, self.member.group
        if born is None:
            return
        before = born.members
        if file.members[: len(before)] != before:
            allowed = (
                f"those that {group} has, in their order: {', '.join(before)}; new ones behind them"
            )
            raise ConfigError(f"config {file.path}: members", ", ".join(file.members), allowed)
        if born.council and born.council != file.council:
            allowed = (
                f"the council that {group} began with: {', '.join(born.council)}; for another one "
                "begin another group"
            )
            raise ConfigError(f"config {file.path}", ", ".join(file.council), allowed)

    def confirm_members(self) -> None:
        """A member of the council has the same file: so it is the group's, and is kept."""
        born = self.kept.born
        if born is not None and born.members != self.member.roster:
            self.kept.apply(structs.replace(born, members=self.member.roster))
            self.save()

    def forget(self, inc: int) -> None:
        """Another history has begun: nothing of the one so far counts any more."""
        self.kept = self.member.kept_class()
        self.kept.inc = inc

    # -- journals --------------------------------------------------------------------------

    def open_journals(self, history: str) -> None:
        """Open one for each level that this member is a recorder of."""
        for level, roles in self.member.levels.items():
            if self.member.me in roles.recorders:
                name = self.member.name(level)
                tell = partial(self.tell, level)
                journal = RecorderJournal(self.member, name, roles, history, tell)
                self.journals[level] = journal
                journal.recall(self.kept.levels[level])

    def opened(self) -> None:
        """The journals have their engine."""
        for level, journal in self.journals.items():
            journal.opened(self.member.sites[level])

    # -- writing ---------------------------------------------------------------------------

    def save(self) -> None:
        """Write a new file with all that is kept, now."""
        if self.store is not None:
            self.store.replace(self.kept.records())

    def keep(self, effects: Effects) -> None:
        """Promises and records are on disk before anything of the batch is sent.

        How far a user is, is written before it is told, so that nothing is delivered twice (I4):
        the engine itself would rather tell the last batch again after a crash.  Whoever must not
        miss anything then says where it was (`since`).
        """
        member, records = self.member, effects.persists
        if effects.deliveries:
            records = [record for record in records if not is_progress(record)]
        rest: list[Struct] = []
        for level, mine in member.by_level(records).items():
            journal = self.journals.get(level)
            unrecorded = mine if journal is None else journal.keep(mine)
            rest += [member.stored(level, record) for record in unrecorded]
        if effects.deliveries:
            rest.append(member.progress())
        if not rest:
            return
        for record in rest:
            self.kept.apply(record)
        if self.store is not None:
            if self.store.size > ROTATE_BYTES:
                self.save()
            else:
                self.store.write(rest, False)

    def stop(self) -> None:
        """The end: what the applications have been given is noted, and what was acknowledged."""
        member = self.member
        if self.store is None or member.engine is None:
            return
        last = [] if member.user is None else [member.progress()]
        acknowledger = member.shown.acknowledger
        if acknowledger is not None and (word := acknowledger.last_word()):
            last.append(word)
        self.store.write(last, False)

    def close(self) -> None:
        """Let go of the files."""
        if self.store is not None:
            self.store.close()
            self.store = None
        for journal in self.journals.values():
            journal.close()
        self.journals.clear()


def is_progress(record: Any) -> bool:
    """Whether a record, of whatever level, says how far a user is."""
    return type(getattr(record, "record", record)) is Handled
