"""Names of nodes that were given none.

A member comes back under its name or not at all, so a node that has a folder keeps there what it
was called.  One without a folder has another name at every start: where its group cannot go on
without it, nobody can bring it back, which is said with the name (`node.membership.reasons`).
"""

from __future__ import annotations

import re
import secrets
import socket
from pathlib import Path
from typing import Final

from roundelay.core.errors import ConfigError
from roundelay.durable import put

NAME: Final = "name"
"""File in the folder of a node."""
LOOKS_MADE_UP: Final = re.compile(r".+-[0-9a-f]{6}")


def made_up_name(folder: Path | None) -> str:
    """A name that nobody else has: the one that is kept in `folder`, or a new one."""
    path = None if folder is None else folder / NAME
    if path is not None:
        try:
            kept = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            kept = ""
        if LOOKS_MADE_UP.fullmatch(kept) and len(kept.encode()) <= 64:
            return kept
    name = f"{socket.gethostname()[:32]}-{secrets.token_hex(3)}"
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, f"{name}\n".encode())
        except OSError as error:
            why = f"a folder that can be made and written ({error.strerror})"
            raise ConfigError("dir", folder, why) from None
    return name


def looks_made_up(name: str) -> bool:
    """
    >>> looks_made_up("db7-09af3c"), looks_made_up("ann")
    (True, False)
    """
    return LOOKS_MADE_UP.fullmatch(name) is not None
