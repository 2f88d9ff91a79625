"""The small files of a journal, and what it asks of the operating system.

- `journal.json`, and the same in `journal.bak`: id and group.  One damaged copy is made again from
  the other.
- `synced`: the position below which everything is on disk.  It is written after each sync but not
  synced itself, so it may lag behind after a power cut; blocks carry the mark as well.
- `lock`: held by whoever appends or repairs.

Each has a checksum of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from roundelay.core.errors import ConfigError, MalformedPdu, RoundelayError, UsageError

META: Final = "journal.json"
META_COPY: Final = "journal.bak"
SYNCED: Final = "synced"
LOCK: Final = "lock"
SEGMENT: Final = ".rjs"
INDEX: Final = ".rji"
PARQUET: Final = ".parquet"
ASIDE: Final = ".new"
FORMAT: Final = 1
PARTS_MAX: Final = 64
"""Byte strings handed to the system at once; more are joined first."""


class JournalBroken(RoundelayError):
    """The disk failed: nothing more is appended, and nothing was acknowledged that is not there."""


class JournalInUse(UsageError):
    """Another process appends to the journal, or repairs it."""


class Disk:
    """What a journal asks of the operating system; a test hands in one that fails."""

    def write(self, file: int, parts: Sequence[bytes]) -> None:
        """Write all of it, or raise OSError."""
        if len(parts) > PARTS_MAX:
            parts = [b"".join(parts)]
        done = os.writev(file, parts)
        size = sum(map(len, parts))
        if done < size:
            rest = memoryview(b"".join(parts))[done:]
            while rest:
                rest = rest[os.write(file, rest) :]

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def put(self, path: Path, parts: Iterable[bytes]) -> None:
        """A whole file: written aside, synced, renamed."""
        aside = path.with_name(path.name + ASIDE)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for part in parts:
                self.write(handle, [part])
            self.sync(handle)
        finally:
            os.close(handle)
        os.replace(aside, path)
        self.sync_folder(path.parent)


def segments_of(folder: Path) -> list[Path]:
    """Paths of the segments, by position."""
    return sorted(path for path in folder.glob(f"*{SEGMENT}") if path.stem.isdigit())


def path_of(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}{SEGMENT}"


def index_of(path: Path) -> Path:
    return path.with_suffix(INDEX)


def parquet_of(path: Path) -> Path:
    return path.with_suffix(PARQUET)


# ------------------------------------------------------------------------ what it is


class Meta(Struct, frozen=True):
    """What a journal is."""

    journal: bytes
    group: str

    def text(self) -> bytes:
        known = {"format": FORMAT, "id": self.journal.hex(), "group": self.group}
        return json.dumps(known | {"check": _check(known)}).encode() + b"\n"


def _check(known: dict[str, object]) -> str:
    text = f"{known['format']} {known['id']} {known['group']}"
    return f"{crc32c(text.encode()):08x}"


def _meta_at(path: Path) -> Meta | str:
    """What the file says, or what is wrong with it."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["check"] != _check(known):
            return "checksum"
        if known["format"] != FORMAT:
            return f"format {known['format']}; this version reads {FORMAT}"
        found = Meta(bytes.fromhex(known["id"]), str(known["group"]))
        return found if path.read_bytes() == found.text() else "not as it was written"
    except FileNotFoundError:
        return "missing"
    except (ValueError, KeyError, TypeError) as error:
        return f"not as it was written ({error})"


def look(folder: Path) -> tuple[Meta | None, list[str]]:
    """What the journal is, as far as a good copy says, and what is wrong with the copies."""
    wrong, good = [], None
    for name in (META, META_COPY):
        found = _meta_at(folder / name)
        if isinstance(found, str):
            wrong.append(f"{name}: {found}")
        elif good is None:
            good = found
    return good, wrong


def read_meta(folder: Path) -> Meta:
    """What the journal is, from the copy that is good."""
    good, wrong = look(folder)
    if good is not None:
        return good
    if not (folder / META).exists() and not (folder / META_COPY).exists():
        raise ConfigError("journal", folder, f"a folder with {META}")
    raise MalformedPdu("journal", f"{folder}: {', '.join(wrong)}; repair names the group again")


def write_meta(folder: Path, meta: Meta, disk: Disk) -> None:
    for name in (META, META_COPY):
        if _meta_at(folder / name) != meta:
            disk.put(folder / name, [meta.text()])


def new_meta(group: str) -> Meta:
    return Meta(secrets.token_bytes(16), group)


# ------------------------------------------------------------------------ how far it is synced


def mark_text(position: int) -> bytes:
    digits = b"%020d" % position
    return b"%s %08x\n" % (digits, crc32c(digits))


def has_mark(folder: Path) -> bool:
    """Whether it is known how far the journal was synced."""
    try:
        return read_mark(folder) > 0 or (folder / SYNCED).exists()
    except MalformedPdu:
        return False


def read_mark(folder: Path) -> int:
    """The position below which all is on disk; MalformedPdu if the file is damaged; 0: none yet."""
    try:
        text = (folder / SYNCED).read_bytes()
    except FileNotFoundError:
        return 0
    if not text:
        return 0
    digits = text[:20]
    if not digits.isdigit() or text != mark_text(int(digits)):
        raise MalformedPdu("synced", "not as it was written")
    return int(digits)


# ------------------------------------------------------------------------ who may write


class Lock:
    """Held as long as the object is not closed; a process that dies lets go of it."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise JournalInUse(
                f"{folder} is being recorded to or repaired; wait, or stop that process"
            ) from None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
