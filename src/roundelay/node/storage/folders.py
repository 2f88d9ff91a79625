"""The folders of a group below the directory of a node: `groups/NAME` for what a member must not
forget, `journals/NAME` for what is recorded (`roundelay.file_names` says what NAME is).

Earlier versions encoded letters without a fixed width, so that two groups could share a folder
(`team/alpha` and `team˺lpha`).  A folder of that time is moved to where its group looks for it
now, unless what is in it says, or may mean, that it is another group's.

The directory of a node is its own from start to stop: two would overwrite each other's promises.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from roundelay.core.errors import ConfigError, FolderInUse
from roundelay.durable import FileLock, put
from roundelay.file_names import file_name
from roundelay.journal.files import look

GROUPS: Final = "groups"
JOURNALS: Final = "journals"
OWNER: Final = "group"
"""File in a folder of `groups`: the full name of its group."""
ROSTER: Final = "roster.json"
"""The same: the epoch that the member is in."""
LOCK: Final = "lock"
"""File in the directory of a node."""


def journal_folder(base: Path, group: str) -> Path:
    """Where a node with the directory `base` keeps the journal of a group.

    >>> str(journal_folder(Path("a"), "token:orders"))
    'a/journals/token%3aorders'
    """
    return base / JOURNALS / file_name(group)


def group_folder(base: Path, group: str) -> Path:
    """Where a node with the directory `base` keeps what its member of a group promised."""
    return base / GROUPS / file_name(group)


def claim_journal(base: Path, group: str) -> Path:
    """`journal_folder`, to be written: one of an earlier version is moved there."""
    folder = journal_folder(base, group)
    _move_old(folder, group, ())
    _clear(folder, group)
    return folder


def claim_group(base: Path, group: str, others: Container[str] = ()) -> Path:
    """`group_folder`, made, marked as that of the group; one of an earlier version is moved there.

    `others` are groups of this node: none of theirs is taken."""
    folder = group_folder(base, group)
    _move_old(folder, group, others)
    _clear(folder, group)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / OWNER).exists():
        put(folder / OWNER, group.encode())
    return folder


def _move_old(folder: Path, group: str, others: Container[str]) -> None:
    old = folder.with_name(_old_name(group))
    if old == folder or folder.exists() or len(old.name) > 255 or not old.is_dir():
        return
    owner, theirs = _owner(old), unquote(old.name, errors="replace")  # whose name it is now
    if owner == group or (not owner and theirs not in others):
        os.rename(old, folder)


def _clear(folder: Path, group: str) -> None:
    """What an earlier version kept here of another group goes to where that one looks for it."""
    owner = _owner(folder)
    if owner in ("", group):
        return
    theirs = folder.with_name(file_name(owner))
    if theirs.exists():
        raise ConfigError("dir", folder, f"the folder of {group}, but it is one of {owner}")
    os.rename(folder, theirs)


def _old_name(group: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", lambda match: f"%{ord(match[0]):02x}", group)


def _owner(folder: Path) -> str:
    """Whose folder it is, by what is in it; empty: nothing there says that."""
    for name in (OWNER, ROSTER):
        try:
            text = (folder / name).read_text(encoding="utf-8")
            return text if name == OWNER else str(json.loads(text)["group"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    meta, _ = look(folder)
    return meta.group if meta is not None else ""


def take(path: Path) -> FileLock:
    """Make the directory of a node if need be, and lock it; FolderInUse if another node has it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK, lambda pid: FolderInUse(str(path), pid))
    except OSError as error:
        why = f"a folder that can be made and written ({error.strerror})"
        raise ConfigError("dir", path, why) from None
    lock.sign()
    return lock
