"""The small files of a journal.

- `journal.json`, and the same in `journal.bak`: id and group.  One damaged copy is made again from
  the other.
- `synced`: the position below which everything is on disk.  It is written after each sync but not
  synced itself, so it may lag behind after a power cut; blocks carry the mark as well.
- `lock`: held by whoever appends or repairs.

Each has a checksum of its own.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from roundelay.core.errors import ConfigError, MalformedPdu, RoundelayError, UsageError
from roundelay.durable import Disk, FileLock

META: Final = "journal.json"
META_COPY: Final = "journal.bak"
SYNCED: Final = "synced"
LOCK: Final = "lock"
SEGMENT: Final = ".rjs"
INDEX: Final = ".rji"
PARQUET: Final = ".parquet"
FORMAT: Final = 1


class JournalBroken(RoundelayError):
    """The disk failed: nothing more is appended, and nothing was acknowledged that is not there."""


class JournalInUse(UsageError):
    """Another process appends to the journal, or repairs it."""


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


def lock(folder: Path) -> FileLock:
    """Held by whoever appends to the journal or repairs it."""
    return FileLock(
        folder / LOCK,
        lambda _: JournalInUse(
            f"{folder} is being recorded to or repaired; wait, or stop that process"
        ),
    )
