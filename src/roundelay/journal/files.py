"""The small files of a journal.

- `journal.json`, and the same in `journal.bak`: id and group.  One damaged copy is made again from
  the other.
- `ends.json`, and the same in `ends.bak`: how far the journal reaches, for a segment that is gone
  leaves no hole where it was the first or the last one.  Written when a segment is begun or let go,
  and when the journal is closed; what is appended in between is told by the `synced` mark.
- `history`: which history of its group the journal holds, as text.  `history.bak` has the same
  with a checksum and counts where it is sound: it is written first.  Whoever took another name for
  the journal's own would put the journal aside, with all that is in it.
- `synced`: the position below which everything is on disk.  It is written after each sync but not
  synced itself, so it may lag behind after a power cut; blocks carry the mark as well.
- `lock`: held by whoever appends or repairs.

Each has a checksum of its own.  Journals of earlier versions have neither `ends` nor `history.bak`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from crc32c import crc32c
from msgspec import Struct

from roundelay.core.errors import ConfigError, MalformedPdu, RoundelayError, UsageError
from roundelay.durable import Disk, FileLock
from roundelay.journal.format import NO_LINK

META: Final = "journal.json"
META_COPY: Final = "journal.bak"
ENDS: Final = "ends.json"
ENDS_COPY: Final = "ends.bak"
HISTORY: Final = "history"
HISTORY_COPY: Final = "history.bak"
SYNCED: Final = "synced"
LOCK: Final = "lock"
SEGMENT: Final = ".rjs"
INDEX: Final = ".rji"
PARQUET: Final = ".parquet"
FORMAT: Final = 1
MISSING: Final = "missing"
DAMAGED: Final = "not as it was written"

T = TypeVar("T")


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


def _read_copies(
    folder: Path, names: tuple[str, ...], parse: Callable[[bytes], T | str]
) -> tuple[list[T], list[str]]:
    """What the sound ones of these files say, and what is wrong with the others."""
    good: list[T] = []
    wrong: list[str] = []
    for name in names:
        try:
            content = parse((folder / name).read_bytes())
        except FileNotFoundError:
            content = MISSING
        if isinstance(content, str):
            wrong.append(f"{name}: {content}")
        else:
            good.append(content)
    return good, wrong


def _write_copies(folder: Path, texts: Mapping[str, bytes], disk: Disk) -> None:
    """Write the files that do not say this already."""
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != text:
            disk.put(path, [text])


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


def _parse_meta(data: bytes) -> Meta | str:
    try:
        known = json.loads(data.decode())
        if known["check"] != _check(known):
            return "checksum"
        if known["format"] != FORMAT:
            return f"format {known['format']}; this version reads {FORMAT}"
        meta = Meta(bytes.fromhex(known["id"]), str(known["group"]))
        return meta if data == meta.text() else DAMAGED
    except (ValueError, KeyError, TypeError) as error:
        return f"{DAMAGED} ({error})"


def look(folder: Path) -> tuple[Meta | None, list[str]]:
    """What the journal is, as far as a good copy says, and what is wrong with the copies."""
    good, wrong = _read_copies(folder, (META, META_COPY), _parse_meta)
    return next(iter(good), None), wrong


def read_meta(folder: Path) -> Meta:
    """What the journal is, from the copy that is good."""
    good, wrong = look(folder)
    if good is not None:
        return good
    if not (folder / META).exists() and not (folder / META_COPY).exists():
        raise ConfigError("journal", folder, f"a folder with {META}")
    raise MalformedPdu("journal", f"{folder}: {', '.join(wrong)}; repair names the group again")


def write_meta(folder: Path, meta: Meta, disk: Disk) -> None:
    _write_copies(folder, dict.fromkeys((META, META_COPY), meta.text()), disk)


# ------------------------------------------------------------------------ how far it reaches


class Ends(Struct, frozen=True):
    """What a journal had at least, when this was written."""

    first: int = 0
    """Where the first segment begins; those before it were let go."""
    last: int = 0
    """Where the last segment begins."""
    end: int = 0
    """All below this was on disk."""
    link_base: int = 0
    link: str = ""
    """The last link of the hash chain, and where the segment begins that has it."""

    @property
    def reached(self) -> int:
        """Below this position there must be records, or a hole that is known."""
        return max(self.last, self.end)

    def text(self) -> bytes:
        known = msgspec.json.encode(self)
        return b"%08x %s\n" % (crc32c(known), known)


def link_text(link: bytes) -> str:
    """A link of the hash chain in hex; empty if there is none."""
    return link.hex() if link != NO_LINK else ""


def _parse_ends(data: bytes) -> Ends | str:
    try:
        ends = msgspec.json.decode(data[9:], type=Ends)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return DAMAGED
    return ends if data == ends.text() else DAMAGED


def read_ends(folder: Path) -> tuple[Ends | None, list[str]]:
    """How far the journal reaches, and what is wrong with the copies.

    None, and nothing wrong, where there is no copy at all.  Between the two files the newer one
    counts: they are written one after the other.
    """
    good, wrong = _read_copies(folder, (ENDS, ENDS_COPY), _parse_ends)
    if not good and all(what.endswith(f": {MISSING}") for what in wrong):
        wrong = []
    return max(good, key=lambda ends: (ends.reached, ends.first), default=None), wrong


def write_ends(folder: Path, ends: Ends, disk: Disk) -> None:
    _write_copies(folder, dict.fromkeys((ENDS, ENDS_COPY), ends.text()), disk)


def mark_text(position: int) -> bytes:
    digits = b"%020d" % position
    return b"%s %08x\n" % (digits, crc32c(digits))


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
        raise MalformedPdu("synced", DAMAGED)
    return int(digits)


def look_at_mark(folder: Path) -> tuple[int, str]:
    """The position below which all is on disk, 0 if nothing says it, and what is wrong with the
    file: then nobody knows that there is no more."""
    try:
        return read_mark(folder), "" if (folder / SYNCED).exists() else MISSING
    except MalformedPdu as error:
        return 0, str(error)


def reached(folder: Path) -> int:
    """Below this position everything was there once, as the files beside the segments say."""
    ends, _ = read_ends(folder)
    return max(look_at_mark(folder)[0], 0 if ends is None else ends.reached)


# ------------------------------------------------------------------------ whose history it is


def _history_text(folder: Path, name: str) -> str | None:
    """None: it is not there; what is not text is damaged, and says nothing."""
    try:
        return (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return ""


def _checked(history: str) -> str:
    return f"{crc32c(history.encode()):08x} {history}\n"


def read_history(folder: Path) -> tuple[str, list[str]]:
    """The name of the history, "" if nothing says it, and what is wrong with the files."""
    text, copy = _history_text(folder, HISTORY), _history_text(folder, HISTORY_COPY)
    plain = (text or "").strip()
    if copy is None:
        return plain, [f"{HISTORY}: {DAMAGED}"] if text is not None and not plain else []
    wrong = []
    known = copy[9:].strip()
    if copy != _checked(known):
        wrong.append(f"{HISTORY_COPY}: {DAMAGED}")
        known = plain
    if text != f"{known}\n":
        wrong.append(f"{HISTORY}: {MISSING if text is None else DAMAGED}")
    return known, wrong


def write_history(folder: Path, history: str, disk: Disk) -> None:
    texts = {HISTORY_COPY: _checked(history).encode(), HISTORY: f"{history}\n".encode()}
    _write_copies(folder, texts, disk)


# ------------------------------------------------------------------------ who may write


def lock(folder: Path) -> FileLock:
    """Held by whoever appends to the journal or repairs it."""
    return FileLock(
        folder / LOCK,
        lambda _: JournalInUse(
            f"{folder} is being recorded to or repaired; wait, or stop that process"
        ),
    )
