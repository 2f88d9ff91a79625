"""Which history of its group a journal holds, said twice.

`history` is its name as text.  `history.bak` has the same with a checksum and counts where it is
sound: it is written first.  Whoever took another name for the journal's own would put the journal
aside, with all that is in it.  Journals of earlier versions have the first file alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from crc32c import crc32c

from roundelay.durable import Disk

HISTORY: Final = "history"
HISTORY_COPY: Final = "history.bak"
DAMAGED: Final = "not as it was written"


def _read(path: Path) -> str | None:
    """None: it is not there; what is not text is damaged, and says nothing."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return ""


def _checked(history: str) -> str:
    return f"{crc32c(history.encode()):08x} {history}\n"


def read_history(folder: Path) -> tuple[str, list[str]]:
    """The name of the history, "" if nothing says it, and what is wrong with the files."""
    text, copy = _read(folder / HISTORY), _read(folder / HISTORY_COPY)
    plain = (text or "").strip()
    wrong = []
    if copy is None:
        if text is not None and not plain:
            wrong.append(f"{HISTORY}: {DAMAGED}")
        return plain, wrong
    known = copy[9:].strip()
    if copy != _checked(known):
        wrong.append(f"{HISTORY_COPY}: {DAMAGED}")
        known = plain
    if text is None:
        wrong.append(f"{HISTORY}: missing")
    elif text != f"{known}\n":
        wrong.append(f"{HISTORY}: {DAMAGED}")
    return known, wrong


def write_history(folder: Path, history: str, disk: Disk) -> None:
    for name, text in ((HISTORY_COPY, _checked(history)), (HISTORY, f"{history}\n")):
        if _read(folder / name) != text:
            disk.put(folder / name, [text.encode()])
